"""Guidance loss of the attention calls of one forward pass.

Calls with the same shape and mask are computed by one op, so that a model of twelve layers costs
one op instead of twelve. Only guided heads are computed, and never a (Q, K) tensor.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.guidance.plan import Aim, Convention, Plan
from headwise.ops.guidance import GuidedHeads, Pattern, guidance_rows, guided_heads
from headwise.ops.scores import Scores
from headwise.sites import Site

MAX_ELEMENTS = 2**28  # elements of q in one op, guided or not: 512 MB in bfloat16
MAX_CALLS = 32  # attention calls in one op: a kernel gets the addresses of q and k of each


class GuidedCall(NamedTuple):
    """Attention call of a guided site."""

    site: Site
    scores: Scores


class Texts(NamedTuple):
    """Getters for the inputs of a forward pass, by stack: "encoder" or "decoder"."""

    ids: Callable[[str], Tensor]  # token ids; raises if there are none
    real: Callable[[str, tuple[int, int]], Tensor | None]  # real queries (not padding), (B, Q)


@dataclass(frozen=True)
class SitePlan:
    """Plan of one site, with the weight of each guided head."""

    plan: Plan
    num_heads: int
    weights: tuple[float, ...]  # one per guided head


def site_plan(plan: Plan, site: Site, convention: Convention) -> SitePlan:
    """Prepare a plan for a site; raise if the site has fewer heads than the plan."""
    if max(plan.heads) >= site.num_heads:
        raise ValueError(
            f"The plan guides head {max(plan.heads)}, but {site.name} has heads 0 to "
            f"{site.num_heads - 1}; guide fewer heads, or choose sites with where=."
        )
    aims = list(plan.aims.values())
    weights = tuple(1 / aims.count(aim) if convention.by_pattern else 1.0 for aim in aims)
    return SitePlan(plan, site.num_heads, weights)


class GuidanceLoss:
    """Guidance loss by pattern; caches the small tensors that describe guided heads."""

    def __init__(self, plans: Mapping[str, SitePlan], convention: Convention) -> None:
        self.plans, self.convention = plans, convention
        aims = [aim for plan in plans.values() for aim in plan.plan.aims.values()]
        self.labels = tuple(dict.fromkeys(aim.label for aim in aims))  # of the patterns, P
        self._cache: dict[Hashable, tuple[GuidedHeads, Tensor]] = {}
        self._checked: set[str] = set()  # sites whose masks let heads follow their patterns

    def __call__(self, calls: list[GuidedCall], texts: Texts) -> Tensor:
        """Return the guidance loss of each pattern, (P,), summed over sites."""
        losses = [self._group_loss(group, texts) for group in self._groups(calls)]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum(dim=0)

    def _groups(self, calls: list[GuidedCall]) -> Iterator[list[GuidedCall]]:
        groups: dict[Hashable, list[GuidedCall]] = {}
        for number, call in enumerate(calls):
            self._check(call)
            groups.setdefault(_group_key(call, number), []).append(call)
        for group in groups.values():
            size = max(1, min(MAX_CALLS, MAX_ELEMENTS // group[0].scores.q.numel()))
            for start in range(0, len(group), size):
                yield group[start : start + size]

    def _group_loss(self, calls: list[GuidedCall], texts: Texts) -> Tensor:
        site, scores = calls[0]
        plans = [self.plans[call.site.name] for call in calls]
        sets = _key_sets(plans, masked=scores.mask is not None)
        guided, weights_NP = self._guided(plans, sets, scores)
        aimed = [_aimed_keys(aim, scores, site, texts) for aim in sets]
        key_sets = torch.stack(aimed) if aimed else None
        every = [_with_mask(call.scores, scores.mask) for call in calls]
        rows = guidance_rows(every, guided, key_sets=key_sets)
        return self._reduced(*rows, weights_NP, _real_queries(scores, site, texts))

    def _reduced(
        self, loss_BNQ: Tensor, seen_BNQ: Tensor, weights_NP: Tensor, real_BQ: Tensor | None
    ) -> Tensor:
        """Reduce the losses of rows to one loss per pattern."""
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
        """Return the guided heads of all calls and their weights, (N, P), made once."""
        known = (tuple(id(plan) for plan in plans), scores.q.device, scores.dtype)
        if (*known, tuple(sets)) not in self._cache:
            # with and without a mask: some hosts make theirs only while CUDA records a graph, when
            # no tensor can be made here
            for each in (_key_sets(plans, masked=masked) for masked in (False, True)):
                self._cache[*known, tuple(each)] = self._make(plans, each, scores)
        return self._cache[*known, tuple(sets)]

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
        make = partial(Pattern, normalised=self.convention.normalised, edges=self.convention.edges)
        if aim in sets:
            return make(key_set=sets.index(aim))
        return make(column=0) if aim.offset is None else make(offset=aim.offset)

    def _check(self, call: GuidedCall) -> None:
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

    def _check_ahead(self, call: GuidedCall) -> None:
        """Raise if the keys that a pattern aims at are hidden from all queries."""
        site, scores = call
        if site.name in self._checked or not (scores.causal or _can_read_tensors()):
            return
        decided = True
        for head, aim in self.plans[site.name].plan.aims.items():
            if aim.offset is None or aim.offset < 1:
                continue
            seen = _sees_ahead(scores, aim.offset)
            if seen is False:
                raise ValueError(
                    f"Head {head} of {site.name} should attend to {aim.name!r}, {aim.offset} after "
                    "each query, but attention there is causal and sees no later keys; use "
                    "patterns like 'prev' and 'first', or choose other sites with where=."
                )
            decided = decided and seen is True
        if decided:
            self._checked.add(site.name)


def _group_key(call: GuidedCall, number: int) -> Hashable:
    """Return a key that is equal for calls which one op can compute."""
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
        _mask_key(scores.mask),
        id(scores.lengths),
        scores.causal,
        scores.scale,
        scores.cap,
        scores.first,
        (site.queries, site.keys),
    )


def _mask_key(mask: Tensor | None) -> Hashable:
    """Return a key that is equal for views of one mask; hosts make a view for every layer."""
    if mask is None or torch.compiler.is_compiling():
        return id(mask)
    return mask.data_ptr(), mask.shape, mask.stride(), mask.dtype


def _with_mask(scores: Scores, mask: Tensor | None) -> Scores:
    """Replace the mask by that of another call, a view of the same tensor."""
    return scores if scores.mask is mask else replace(scores, mask=mask)


def _key_sets(plans: list[SitePlan], *, masked: bool) -> list[Aim]:
    """Return the patterns that need a set of keys; "first" does if a mask may hide key 0."""
    aims = dict.fromkeys(aim for plan in plans for aim in plan.plan.aims.values())
    return [aim for aim in aims if aim.tokens or (masked and aim.offset is None)]


def _aimed_keys(aim: Aim, scores: Scores, site: Site, texts: Texts) -> Tensor:
    """Return a mask of the keys that a pattern aims at, (B, K)."""
    if not aim.tokens:
        return first_keys(scores)
    ids_BK = texts.ids(site.keys)
    wanted = (scores.shape[0], scores.shape[3])
    if ids_BK.shape != wanted:
        raise ValueError(
            f"The pattern {aim.name!r} needs the token of every key: {site.name} attends to "
            f"{wanted} (batch, keys), but the model was given ids of shape {tuple(ids_BK.shape)}."
        )
    return has_token(ids_BK, aim.tokens)


def _real_queries(scores: Scores, site: Site, texts: Texts) -> Tensor | None:
    """Return a mask of the queries that are no padding, (B, Q); None if all count."""
    own_BQ = _unmasked_queries(scores) if site.keys == site.queries else None
    real_BQ = texts.real(site.queries, (scores.shape[0], scores.shape[2]))
    if own_BQ is None or real_BQ is None:
        return real_BQ if own_BQ is None else own_BQ
    return own_BQ & real_BQ


def _can_read_tensors() -> bool:
    """Return whether contents of tensors can be read: not while a graph is made."""
    if torch.compiler.is_compiling():
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _by_head(broadcastable: Tensor | None) -> bool:
    return broadcastable is not None and broadcastable.dim() > 2 and broadcastable.shape[-3] > 1


def _is_square(scores: Scores) -> bool:
    """Return whether query i is at key i: self-attention without a cache."""
    return scores.shape[2] == scores.shape[3] and scores.first_position == 0


def first_keys(scores: Scores) -> Tensor:
    """Return a mask of the keys at which texts begin, (B, K).

    A key begins a text if its query does not see the last real key before it. Real keys are seen by
    their own query, so that a hole in the mask of a text does not begin another text.
    """
    mask_BQK = _mask(scores)
    if not _is_square(scores):
        row_BK = mask_BQK[:, 0]
        return row_BK & (row_BK.cumsum(dim=-1) == 1)
    own_BT = mask_BQK.diagonal(dim1=1, dim2=2)
    last_BT = torch.where(own_BT, scores.key_position(), -1).cummax(dim=-1).values
    before_BT = pad(last_BT[:, :-1], (1, 0), value=-1)
    sees_BT = mask_BQK.gather(2, before_BT.clamp(min=0)[..., None])[..., 0]
    return own_BT & ~(sees_BT & (before_BT >= 0))


def _unmasked_queries(scores: Scores) -> Tensor | None:
    """Return a mask of the queries of self-attention whose own key is real, (B, Q).

    None if all are, or if that is unknown.
    """
    if not _is_square(scores):
        return None
    real_BQ = None
    if scores.lengths is not None:
        real_BQ = scores.key_position() < scores.lengths[:, None]
    if scores.mask is not None:
        seen_BQ = _mask(scores).diagonal(dim1=1, dim2=2)
        real_BQ = seen_BQ if real_BQ is None else real_BQ & seen_BQ
    return real_BQ


def _sees_ahead(scores: Scores, offset: int) -> bool | None:
    """Return whether some query sees the key `offset` after its own; None if that is unknown.

    Reading the mask waits for its device. The answer is no only if some query sees the key before
    its own: else the texts may just be short.
    """
    if scores.causal:
        return False
    mask = scores.mask
    if mask is None or mask.shape[-2:] != scores.shape[2:] or not _is_square(scores):
        return True
    mask_BQK = mask.flatten(0, -3) if mask.dim() > 2 else mask[None]
    own_BT, ahead_BT, before_BT = (
        mask_BQK.diagonal(shift, dim1=1, dim2=2) for shift in (0, offset, -1)
    )
    if bool((ahead_BT & own_BT[:, : ahead_BT.shape[1]]).any()):
        return True
    return False if bool((before_BT & own_BT[:, 1:]).any()) else None


def has_token(ids_BK: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Return a mask of the positions with one of the tokens, (B, K)."""
    found_BK = ids_BK == tokens[0]  # unlike torch.isin this does not wait for the device
    for token in tokens[1:]:
        found_BK = found_BK | (ids_BK == token)
    return found_BK


def _mask(scores: Scores) -> Tensor:
    """View the mask of a call as (B, Q, K); where heads differ, what any head sees."""
    assert scores.mask is not None
    batch, _, n_queries, n_keys = scores.shape
    mask = scores.mask[(None,) * (4 - scores.mask.dim())]
    mask_BQK = mask[:, 0] if mask.shape[1] == 1 else mask.any(dim=1)
    return torch.broadcast_to(mask_BQK, (batch, n_queries, n_keys))
