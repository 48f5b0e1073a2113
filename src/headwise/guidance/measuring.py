"""The guidance loss of many attention calls at once.

Calls of one shape and mask are given to one op, so that a model of twelve layers costs the host one
op instead of twelve. Only guided heads are computed.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.guidance.counting import first_keys, holding, own_queries, sees_ahead
from headwise.guidance.patterns import Aim
from headwise.guidance.plan import Plan
from headwise.guidance.schedule import Convention
from headwise.ops.guidance import GuidedHeads, Pattern, guidance_rows, guided_heads
from headwise.ops.scores import Scores
from headwise.sites import Site

TOGETHER = 2**28  # numbers of q, guided or not, that one op may be for: 512 MB in bfloat16
MOST_CALLS = 32  # that one op may be for: a kernel is told of each where its q and k lie


class Noted(NamedTuple):
    """One attention call of a guided site."""

    site: Site
    scores: Scores


class Texts(NamedTuple):
    """How to ask for what a forward pass was given, by stack, "encoder" or "decoder"."""

    ids: Callable[[str], Tensor]  # raises where there is none
    real: Callable[[str, tuple[int, int]], Tensor | None]  # queries that count, of this shape


@dataclass(frozen=True)
class SitePlan:
    """A plan made ready for one site."""

    plan: Plan
    num_heads: int
    weights: tuple[float, ...]  # a guided head


def site_plan(plan: Plan, site: Site, convention: Convention) -> SitePlan:
    """Raises if the site has fewer heads than the plan."""
    if max(plan.heads) >= site.num_heads:
        raise ValueError(
            f"The plan guides head {max(plan.heads)}, but {site.name} has heads 0 to "
            f"{site.num_heads - 1}; guide fewer heads, or choose sites with where=."
        )
    aims = list(plan.aims.values())
    weights = tuple(1 / aims.count(aim) if convention.by_pattern else 1.0 for aim in aims)
    return SitePlan(plan, site.num_heads, weights)


class Measure:
    """Computes losses; keeps the small tensors that say which heads look where."""

    def __init__(self, plans: Mapping[str, SitePlan], convention: Convention) -> None:
        self.plans, self.convention = plans, convention
        aims = [aim for plan in plans.values() for aim in plan.plan.aims.values()]
        self.labels = tuple(dict.fromkeys(aim.label for aim in aims))  # of the patterns, P
        self._made: dict[Hashable, tuple[GuidedHeads, Tensor]] = {}
        self._looked: set[str] = set()  # sites whose masks let heads follow their patterns

    def __call__(self, noted: list[Noted], texts: Texts) -> Tensor:
        """The guidance loss of each pattern, (P,), summed over sites."""
        losses = [self._together(calls, texts) for calls in self._groups(noted)]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum(dim=0)

    def _groups(self, noted: list[Noted]) -> Iterator[list[Noted]]:
        groups: dict[Hashable, list[Noted]] = {}
        for number, call in enumerate(noted):
            self._check(call)
            groups.setdefault(_kind(call, number), []).append(call)
        for calls in groups.values():
            together = max(1, min(MOST_CALLS, TOGETHER // calls[0].scores.q.numel()))
            for start in range(0, len(calls), together):
                yield calls[start : start + together]

    def _together(self, calls: list[Noted], texts: Texts) -> Tensor:
        site, scores = calls[0]
        plans = [self.plans[call.site.name] for call in calls]
        sets = _key_sets(plans, masked=scores.mask is not None)
        guided, weights_NP = self._guided(plans, sets, scores)
        members = [_members(aim, scores, site, texts) for aim in sets]
        key_sets = torch.stack(members) if members else None
        every = [_with_mask(call.scores, scores.mask) for call in calls]
        rows = guidance_rows(every, guided, key_sets=key_sets)
        return self._counted(*rows, weights_NP, _counting(scores, site, texts))

    def _counted(
        self, loss_BNQ: Tensor, seen_BNQ: Tensor, weights_NP: Tensor, real_BQ: Tensor | None
    ) -> Tensor:
        """One loss of all rows a pattern; what does not depend on q and k is joined first."""
        if real_BQ is not None:
            real_B1Q = real_BQ[:, None].to(loss_BNQ.dtype)
            loss_BNQ, seen_BNQ = loss_BNQ * real_B1Q, seen_BNQ * real_B1Q
        if self.convention.reduction == "mean":
            weights_NP = weights_NP / seen_BNQ.sum(dim=(0, 2)).clamp(min=1)[:, None]
        else:
            weights_NP = weights_NP / len(loss_BNQ)
        # no product of matrices: autocast would round it
        return (loss_BNQ.sum(dim=(0, 2))[:, None] * weights_NP).sum(dim=0)

    def _guided(
        self, plans: list[SitePlan], sets: list[Aim], scores: Scores
    ) -> tuple[GuidedHeads, Tensor]:
        """Which heads of all calls look where, and what each counts, (N, P); made once for all."""
        known = (tuple(id(plan) for plan in plans), scores.q.device, scores.dtype)
        if (*known, tuple(sets)) not in self._made:
            # with a mask and without: hosts that leave theirs out make it while CUDA records them,
            # when nothing can be made here
            for each in (_key_sets(plans, masked=masked) for masked in (False, True)):
                self._made[*known, tuple(each)] = self._make(plans, each, scores)
        return self._made[*known, tuple(sets)]

    def _make(
        self, plans: list[SitePlan], sets: list[Aim], scores: Scores
    ) -> tuple[GuidedHeads, Tensor]:
        device, each = scores.q.device, scores.shape[1]
        patterns = {
            number * each + head: self._pattern(aim, sets)
            for number, plan in enumerate(plans)
            for head, aim in plan.plan.aims.items()
        }
        weights = [
            [weight * (aim.label == label) for label in self.labels]
            for plan in plans
            for aim, weight in zip(plan.plan.aims.values(), plan.weights, strict=True)
        ]
        return (
            guided_heads(patterns, num_heads=len(plans) * each, device=device),
            torch.tensor(weights, dtype=scores.dtype, device=device),
        )

    def _pattern(self, aim: Aim, sets: list[Aim]) -> Pattern:
        normalised, edges = self.convention.normalised, self.convention.edges
        if aim in sets:
            return Pattern(key_set=sets.index(aim), normalised=normalised, edges=edges)
        if aim.offset is not None:
            return Pattern(offset=aim.offset, normalised=normalised, edges=edges)
        return Pattern(column=0, normalised=normalised, edges=edges)

    def _check(self, call: Noted) -> None:
        site, scores = call
        planned, heads = self.plans[site.name].num_heads, scores.shape[1]
        if heads != planned:
            raise ValueError(
                f"{site.name} had {planned} heads when guide was called, and has {heads} now; "
                "undo the guidance before heads are pruned, and guide again."
            )
        if scores.fixed is not None:
            raise ValueError(
                f"{site.name} attends by position alone, so its heads cannot be guided; leave it "
                "out with where=."
            )
        self._check_ahead(call)

    def _check_ahead(self, call: Noted) -> None:
        """Refuse patterns that no query can follow, as the keys they aim at are hidden from all."""
        site, scores = call
        if site.name in self._looked or not (scores.causal or _can_look()):
            return
        told = True
        for head, aim in self.plans[site.name].plan.aims.items():
            if aim.offset is None or aim.offset < 1:
                continue
            seen = sees_ahead(scores, aim.offset)
            if seen is False:
                raise ValueError(
                    f"Head {head} of {site.name} is to look at {aim.name!r}, {aim.offset} after "
                    "each query, but attention there is causal and sees no later keys; take "
                    "patterns like 'prev' and 'first', or choose other sites with where=."
                )
            told = told and seen is True
        if told:
            self._looked.add(site.name)


def _kind(call: Noted, number: int) -> Hashable:
    """Equal for calls that one op can be for."""
    site, scores = call
    alone = scores.bias is not None or scores.sink is not None or _by_head(scores.mask)
    return (
        number if alone else None,
        scores.shape,
        scores.k.shape,
        scores.q.stride(),
        scores.k.stride(),
        scores.q.dtype,
        scores.q.device,
        _place(scores.mask),
        id(scores.lengths),
        scores.causal,
        scores.scale,
        scores.cap,
        scores.first,
        (site.queries, site.keys),
    )


def _place(mask: Tensor | None) -> Hashable:
    """The same for masks that are views of one: a host may make one for every layer."""
    if mask is None or torch.compiler.is_compiling():
        return id(mask)
    return mask.data_ptr(), mask.shape, mask.stride(), mask.dtype


def _with_mask(scores: Scores, mask: Tensor | None) -> Scores:
    """The same call, with the mask of another that is a view of the same one."""
    return scores if scores.mask is mask else replace(scores, mask=mask)


def _key_sets(plans: list[SitePlan], *, masked: bool) -> list[Aim]:
    """The patterns that need a set of keys; the first key only where a mask may hide key 0."""
    aims = dict.fromkeys(aim for plan in plans for aim in plan.plan.aims.values())
    return [aim for aim in aims if aim.tokens or (masked and aim.offset is None)]


def _members(aim: Aim, scores: Scores, site: Site, texts: Texts) -> Tensor:
    """The keys a pattern aims at, (B, K)."""
    if not aim.tokens:
        return first_keys(scores)
    ids_BK = texts.ids(site.keys)
    wanted = (scores.shape[0], scores.shape[3])
    if ids_BK.shape != wanted:
        raise ValueError(
            f"The pattern {aim.name!r} needs the token of every key: {site.name} attends to "
            f"{wanted} (batch, keys), but the model was given ids of shape {tuple(ids_BK.shape)}."
        )
    return holding(ids_BK, aim.tokens)


def _counting(scores: Scores, site: Site, texts: Texts) -> Tensor | None:
    """Which queries count, (B, Q)."""
    own_BQ = own_queries(scores, to_itself=site.keys == site.queries)
    real_BQ = texts.real(site.queries, (scores.shape[0], scores.shape[2]))
    if own_BQ is None or real_BQ is None:
        return real_BQ if own_BQ is None else own_BQ
    return own_BQ & real_BQ


def _can_look() -> bool:
    """Not while a graph is made, which cannot look at what is in tensors."""
    if torch.compiler.is_compiling():
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _by_head(broadcastable: Tensor | None) -> bool:
    return broadcastable is not None and broadcastable.dim() > 2 and broadcastable.shape[-3] > 1
