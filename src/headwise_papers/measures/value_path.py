"""Output relevance beyond recurrent models: along the value path of one attention layer.

A head adds to the logits of a classifier what its output brings, a weighted average of values. So
each position l has logits of its own, those that its value alone would bring:

    theta_{h,l,o} = sum_q J_{h,q,o} . v_{h,l}      J_{h,q,o} = d logit_o / d output of head h at q

over the queries q that the logits read: the first for a [CLS] token, all real ones for a mean over
positions. Where everything after the layer is linear this is exact, and the weighted average of
theta is the head's part of the logits. Behind layer norms and feed-forward layers it is the
first-order effect at the model's present state.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from dataclasses import replace as dataclass_replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headwise.analysis import eval_with_gradients
from headwise.ops import Attended, softmax_attention
from headwise.ops.scores import spread_groups
from headwise.sites import Attend, Site, Where, find_sites, replace
from headwise_papers.measures.influence import Batch, logits_of
from headwise_papers.ops.relevance import Looked, output_relevance, output_relevance_of_each

__all__ = ["ValuePath", "value_path"]

Unembed = Callable[[Tensor], Tensor]  # values (B, H, K, E) -> their logits (B, H, K, O)


class ValuePath(NamedTuple):
    """Attention of each head of a layer, and the output relevance of its values."""

    alpha: Float[Tensor, "B H ... K"]  # weights; a mean where the logits read several queries
    beta: Float[Tensor, "B H ... K"]  # output relevance of the target
    theta: Float[Tensor, "B H K O"]  # logits of each position's value, (0, z) of one logit z
    lengths: Int[Tensor, "B ..."]  # keys that may be attended
    right: Bool[Tensor, "B ..."]  # whether the model's prediction is the target

    def looked(self) -> Looked:
        """Return it as `mode_match` and recorders take it, with heads in the place of seeds.

        Rows are those of the batch, or queries of each of them in turn.
        """
        alpha_HNK, beta_HNK = (
            x.movedim(1, 0).reshape(x.shape[1], -1, x.shape[-1]) for x in (self.alpha, self.beta)
        )
        right_HN = self.right.reshape(1, -1).expand(len(alpha_HNK), -1)
        return Looked(alpha_HNK, beta_HNK, self.lengths.reshape(-1), right_HN)


def value_path(
    model: nn.Module,
    batch: Batch,
    target: Int[Tensor, "B ..."],
    *,
    where: Where | None = None,
    query: int | Int[Tensor, " B"] | None = None,
    unembed: Unembed | None = None,
) -> ValuePath:
    """Compute output relevance and attention of each head of one layer, by default the last.

    Works on anything with sites: Headwise's models, and adopted Hugging Face classifiers. Takes
    one forward pass, without dropout, and a backward pass down to the layer for each output, so
    it is for classifiers; for a large vocabulary give `unembed`, and nothing is differentiated.
    Padding must be at the end. A model with one logit z says no or yes with logits (0, z). The
    model is left as it was.

    Args:
        model: has sites, and gives logits (B, O) or (B,), or (B, Q, O) with `unembed`.
        batch: its inputs: a mapping by name, a tuple in order, or a single tensor.
        target: the right outputs; with `unembed` there may be one for each query.
        where: the site to look at.
        query: look at the value path through this query alone, one for all or each row its own;
            None takes all that the logits read.
        unembed: values of the heads to logits, in place of J.
    """
    site = _one_site(model, where)
    seen = _Seen(_attend_of(site))
    with eval_with_gradients(model), replace(model, seen, where=lambda other: other is site):
        logits = two_logits(logits_of(model, batch))
        target = target.to(logits.device)
        _check_shapes(logits, target, query, unembed)
        call = seen.last(site)
        right = logits.detach().argmax(-1) == target
        if unembed is None:
            return _pooled(call, *_differentiated(logits, call, query), target, right)
    theta_BHKO = _unembedded(unembed, call)
    if query is None:
        return _each_query(call, theta_BHKO, target, right)
    return _pooled(call, theta_BHKO, _only(query, call), target, right)


class _Call(NamedTuple):
    """One attention computation."""

    tap: Tensor  # (B, H, Q, E): zeros added to the output, to differentiate by
    values: Tensor  # (B, H, K, E)
    weights: Tensor  # (B, H, Q, K)
    visible: Tensor  # (B, Q, K)


@dataclass(eq=False)
class _Seen:
    """Op that calls a site's former op and keeps the call, since observers do not see values."""

    attend: Attend
    calls: list[_Call] = field(default_factory=list[_Call])

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        lengths: Tensor | None = None,
        scale: float | None = None,
        cap: float | None = None,
        sink: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Attended:
        more = {"cap": cap, "sink": sink}
        attended = self.attend(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            causal=causal,
            lengths=lengths,
            scale=scale,
            dropout=dropout,
            **{name: given for name, given in more.items() if given is not None},
        )
        tap_BHQE = torch.zeros_like(attended.out, requires_grad=True)
        self.calls[:] = [_Call(tap_BHQE, *_looked_at(attended, v))]
        return dataclass_replace(attended, out=attended.out + tap_BHQE)

    def last(self, site: Site) -> _Call:
        """Return the last call; layers that share weights make several."""
        if not self.calls:
            raise ValueError(f"The model did not compute {site.name} for this batch.")
        return self.calls[-1]


@torch.no_grad()
def _looked_at(attended: Attended, v_BGKE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape, visible = attended.scores.shape, attended.scores.visible()
    weights_BHQK = attended.weights
    if visible is None:
        visible = torch.ones(1, dtype=torch.bool, device=weights_BHQK.device)
    visible_BQK = visible.expand(shape).any(1)
    values_BHKE = spread_groups(v_BGKE.detach(), shape[1]).to(weights_BHQK.dtype)
    return values_BHKE, weights_BHQK, visible_BQK


def _differentiated(
    logits_BO: Tensor, call: _Call, query: int | Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return theta, and a mask (B, Q) of the queries that the logits depend on."""
    only_BQ = None if query is None else _only(query, call)
    reads_BQ = torch.zeros(call.visible.shape[:2], dtype=torch.bool, device=logits_BO.device)
    theta: list[Tensor] = []
    for logit_B in logits_BO.unbind(-1):  # rows are apart, so their sum gives each its own
        (slope_BHQE,) = torch.autograd.grad(logit_B.sum(), call.tap, retain_graph=True)
        slope_BHQE = slope_BHQE.to(call.values.dtype)
        reads_BQ = reads_BQ | (slope_BHQE != 0).any(dim=-1).any(dim=1)
        if only_BQ is not None:
            slope_BHQE = slope_BHQE * only_BQ[:, None, :, None]
        theta.append(torch.einsum("bhqe,bhke->bhk", slope_BHQE, call.values))
    return torch.stack(theta, dim=-1), reads_BQ if only_BQ is None else only_BQ


def _unembedded(unembed: Unembed, call: _Call) -> Tensor:
    with torch.no_grad():
        theta_BHKO = two_logits(unembed(call.values))
    if theta_BHKO.shape[:3] != call.values.shape[:3]:
        raise ValueError(
            f"unembed must turn values {tuple(call.values.shape)} into logits on the last axis, "
            f"got {tuple(theta_BHKO.shape)}."
        )
    return theta_BHKO


def _only(query: int | Tensor, call: _Call) -> Tensor:
    """Return a mask (B, Q) of one query per row."""
    batch, n_queries = call.visible.shape[:2]
    place_B = torch.as_tensor(query, device=call.visible.device).expand(batch)
    if bool(((place_B < 0) | (place_B >= n_queries)).any()):
        raise ValueError(f"query must lie between 0 and {n_queries - 1}, got {query}.")
    return torch.arange(n_queries, device=place_B.device) == place_B[:, None]


def _pooled(
    call: _Call, theta_BHKO: Tensor, reads_BQ: Tensor, target_B: Tensor, right_B: Tensor
) -> ValuePath:
    if not bool(reads_BQ.any(-1).all()):
        raise ValueError(
            "The logits of some rows do not depend on this site; choose another one with where=."
        )
    share_BQ = reads_BQ / reads_BQ.sum(-1, keepdim=True)
    alpha_BHK = torch.einsum("bhqk,bq->bhk", call.weights, share_BQ.to(call.weights.dtype))
    beta_BHK = output_relevance(theta_BHKO, target_B[:, None].expand(theta_BHKO.shape[:2]))
    visible_BK = (call.visible & reads_BQ[..., None]).any(1)
    return ValuePath(alpha_BHK, beta_BHK, theta_BHKO, _lengths(visible_BK), right_B)


def _each_query(call: _Call, theta_BHKO: Tensor, target_BQ: Tensor, right_BQ: Tensor) -> ValuePath:
    target_BHQ = target_BQ[:, None].expand(-1, theta_BHKO.shape[1], -1)
    beta_BHQK = output_relevance_of_each(theta_BHKO, target_BHQ)
    return ValuePath(call.weights, beta_BHQK, theta_BHKO, _lengths(call.visible), right_BQ)


def _lengths(visible_XK: Tensor) -> Tensor:
    """Count the keys that may be attended; raise unless they are the first ones of each row."""
    lengths_X = visible_XK.sum(-1)
    place_K = torch.arange(visible_XK.shape[-1], device=visible_XK.device)
    if not torch.equal(visible_XK, place_K < lengths_X[..., None]):
        raise ValueError(
            "The keys that may be attended are not the first ones of each row; pad at the end, "
            "and choose a site that sees all positions."
        )
    return lengths_X


def _one_site(model: nn.Module, where: Where | None) -> Site:
    sites = find_sites(model) if where is None else find_sites(model, where=where)
    if where is not None and len(sites) > 1:
        names = ", ".join(site.name for site in sites)
        raise ValueError(f"One site was wanted, but where={where!r} chooses {names}.")
    return sites[-1]


def _attend_of(site: Site) -> Attend:
    """Return the op a site uses now; softmax attention for a host's, which cannot be called."""
    if site.replacements:
        return site.replacements[-1]
    return softmax_attention if site.hosted else site.attend


def _check_shapes(
    logits: Tensor, target: Tensor, query: int | Tensor | None, unembed: Unembed | None
) -> None:
    if logits.dim() != target.dim() + 1 or logits.shape[:-1] != target.shape:
        raise ValueError(
            f"For logits of shape {tuple(logits.shape)} the target must have shape "
            f"{tuple(logits.shape[:-1])}, got {tuple(target.shape)}."
        )
    if unembed is None and target.dim() != 1:
        raise ValueError(
            "One target a row was wanted; for one at each query give unembed, as differentiating "
            "each would take a backward pass for every query and output."
        )
    if unembed is not None and target.dim() == 1 and query is None:
        raise ValueError("With unembed and one target a row, say which query the logits read.")
    if target.dim() == 2 and query is not None:
        raise ValueError("With a target at each query there is no one query to choose.")


def two_logits(logits: Tensor) -> Tensor:
    """Return logits of no and yes, (0, z), for one logit z, (B,) or (..., 1); others unchanged.

    >>> two_logits(torch.tensor([3.0, -1.0]))
    tensor([[ 0.,  3.],
            [ 0., -1.]])
    """
    apart = logits[:, None] if logits.dim() == 1 else logits
    return torch.cat([torch.zeros_like(apart), apart], -1) if apart.shape[-1] == 1 else apart
