"""The ops of the GPU benchmark at one shape: what we ship, what is right, and the yardstick."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks.judging import Attend, Contestant, Outputs, Question
from headwise.ops import (
    Attended,
    entmax_attention,
    softmax_attention,
    sparsemax_attention,
    topk_attention,
    topk_selected,
)
from headwise.ops.guidance import (
    FIRST,
    NEXT,
    PREVIOUS,
    GuidedHeads,
    guidance_loss,
    guided_heads,
)
from headwise.ops.row_sweep import row_sweep
from headwise.ops.scores import Scores

DROPOUT = 0.1
PARTS = ("softmax", "topk", "entmax", "sparsemax", "statistics", "guidance")
# A weight grows with its score like this power of itself: 2 - alpha, softmax's alpha being 1.
GROWTH = {"topk": 1.0, "entmax": 0.5, "sparsemax": 0.0}

Aims = dict[int, tuple[float | None, float | None]]  # n -> ratio to SDPA, forward and with backward
TOPK = {512: (1.7, 1.4), 2048: (1.2, 1.0), 4096: (1.05, 0.7), 16384: (0.9, 0.4)}
SPARSE = {512: (None, 2.0), 2048: (None, 2.2), 4096: (None, 2.0), 16384: (None, 2.0)}
STATISTICS = {512: (1.2, None), 2048: (1.0, None), 4096: (1.0, None), 16384: (1.0, None)}
GUIDANCE = {512: (None, 0.4), 2048: (None, 0.35), 4096: (None, 0.35), 16384: (None, 0.35)}


class Shape(NamedTuple):
    """Of q, k and v."""

    batch: int
    heads: int
    length: int
    width: int


@dataclass(frozen=True)
class Case:
    """One op with its options."""

    part: str  # what --only names
    name: str
    question: Question
    yardstick: Attend  # SDPA with the same options
    ours: Attend | None
    aims: tuple[float | None, float | None] = (None, None)
    dropout: float = 0.0
    added: bool = False  # the ratio is of what comes on top of the yardstick
    on_trained: bool = True  # also with q, k and v of a trained encoder
    width: int | None = None  # of heads, where it is another one than the block's

    @property
    def contestant(self) -> Contestant | None:
        """Us."""
        return None if self.ours is None else Contestant("headwise", self.ours)


def cases(shape: Shape, device: torch.device, only: tuple[str, ...] = ()) -> list[Case]:
    """Every op at a shape, or those parts that are named."""
    aims = partial(_aims, length=shape.length)
    lengths_B = _lengths(shape, device)
    mask_B1QK = _padding_mask(shape, lengths_B)
    plain = partial(_attention, "topk", op=topk_attention)
    every = [
        _softmax(),
        plain("top-k keep 8", keep=8, aims=aims(TOPK), on_trained=True),
        plain("top-k keep 8 causal", keep=8, causal=True, on_trained=True),
        plain("top-k keep 8 lengths=", keep=8, lengths=lengths_B, sdpa_mask=mask_B1QK),
        plain("top-k keep 8 mask=", keep=8, mask=mask_B1QK, sdpa_mask=mask_B1QK),
        plain("top-k keep 32", keep=32, on_trained=True),
        plain("top-k keep 8 d=128", keep=8, width=128),
        plain(f"top-k keep 8 dropout {DROPOUT}", keep=8, dropout=DROPOUT),
        _selected(keep=8),
        _attention("entmax", "entmax-1.5", op=entmax_attention, aims=aims(SPARSE), on_trained=True),
        _attention("entmax", "entmax-1.5 causal", op=entmax_attention, causal=True),
        _attention(
            "sparsemax", "sparsemax", op=sparsemax_attention, aims=aims(SPARSE), on_trained=True
        ),
        _statistics(aims(STATISTICS)),
        _guidance(shape, device, aims(GUIDANCE)),
    ]
    return [case for case in every if not only or case.part in only]


def statistics_of(rows: object) -> Outputs:
    """Entropy, which gets a gradient, then the others; heads are the second axis."""
    names = ("entropy", "lse", "sum_squares", "peak")
    return tuple(getattr(rows, name) for name in names)


def guided_half(heads: int, device: torch.device) -> GuidedHeads:
    """The first half of the heads, to look at the next, the previous and the first token."""
    patterns = (NEXT, PREVIOUS, FIRST)
    chosen = {head: patterns[head % 3] for head in range(max(1, heads // 2))}
    return guided_heads(chosen, num_heads=heads, device=device)


def _aims(table: Aims, *, length: int) -> tuple[float | None, float | None]:
    return table.get(length, (None, None))


def _lengths(shape: Shape, device: torch.device) -> Tensor:
    """From half to all of the keys are real."""
    if shape.batch == 1:
        return torch.tensor([3 * shape.length // 4], device=device)
    return torch.linspace(shape.length // 2, shape.length, shape.batch, device=device).long()


def _padding_mask(shape: Shape, lengths_B: Tensor) -> Tensor:
    """The same keys, as Hugging Face's models say it: a mask that is stored once for all queries.

    With `lengths` kernels leave out tiles of padding; with a mask they have to look at each.
    """
    real_BK = torch.arange(shape.length, device=lengths_B.device) < lengths_B[:, None]
    return real_BK[:, None, None].expand(-1, 1, shape.length, -1)


def _softmax() -> Case:
    return Case(
        "softmax",
        "softmax",
        Question(
            lambda head, q, k, v: (softmax_attention(q, k, v, impl="reference").out,),
            pull=_softmax_pull,
        ),
        lambda q, k, v: (sdpa(q, k, v),),
        None,
    )


def _softmax_pull(q: Tensor, k: Tensor, values: Tensor) -> Tensor:
    """A weight of softmax grows as fast as it is large."""
    return softmax_attention(q, k, values, impl="reference").out


def _attention(
    part: str,
    name: str,
    *,
    op: Callable[..., Attended],
    keep: int | None = None,
    causal: bool = False,
    lengths: Tensor | None = None,
    mask: Tensor | None = None,
    sdpa_mask: Tensor | None = None,
    dropout: float = 0.0,
    aims: tuple[float | None, float | None] = (None, None),
    on_trained: bool = False,
    width: int | None = None,
) -> Case:
    call = partial(op, causal=causal, lengths=lengths, mask=mask)
    growth = GROWTH[part]
    if keep is not None:
        call = partial(call, keep=keep)

    def define(head: int, q: Tensor, k: Tensor, v: Tensor) -> Outputs:
        return (call(q, k, v, impl="reference").out,)

    def pull(q: Tensor, k: Tensor, values: Tensor) -> Tensor:
        weights = call(q, k, values, impl="reference").weights
        return torch.where(weights > 0, weights**growth, 0) @ values

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Outputs:
        return (call(q, k, v, dropout=dropout, impl="triton").out,)

    return Case(
        part,
        name,
        Question(
            define,
            keep=keep,
            jumps=part == "sparsemax",
            causal=causal,
            lengths=lengths,
            mask=mask,
            pull=pull,
        ),
        _yardstick(causal, sdpa_mask, dropout),
        attend,
        aims,
        dropout=dropout,
        on_trained=on_trained,
        width=width,
    )


def _yardstick(causal: bool, mask: Tensor | None, dropout: float) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Outputs:
        return (sdpa(q, k, v, attn_mask=mask, is_causal=causal, dropout_p=dropout),)

    return attend


def _selected(*, keep: int) -> Case:
    """Keys and weights are returned; judged is what attention to them gives, and the weights."""

    def define(head: int, q: Tensor, k: Tensor, v: Tensor) -> Outputs:
        return attended_to(topk_selected(q, k, keep=keep, impl="reference"), v)

    return Case(
        "topk",
        f"topk_selected keep {keep}",
        Question(define, leaves=0, through=0, keep=keep, seen=attended_to),
        _yardstick(causal=False, mask=None, dropout=0.0),
        lambda q, k, v: topk_selected(q, k, keep=keep, impl="triton"),
        on_trained=False,
    )


def attended_to(selected: Outputs, v: Tensor) -> Outputs:
    """What attention to these keys gives, and their weights; a vacant place has none."""
    keys_BHQR, weights_BHQR = selected
    values_BHQE = weights_BHQR.new_zeros(*keys_BHQR.shape[:3], v.shape[3])
    for keys_BHQ, weights_BHQ in zip(keys_BHQR.unbind(-1), weights_BHQR.unbind(-1), strict=True):
        at = keys_BHQ.clamp(min=0).long()[..., None].expand_as(values_BHQE)
        values_BHQE += weights_BHQ[..., None] * v.gather(2, at)
    return values_BHQE, weights_BHQR


def _statistics(aims: tuple[float | None, float | None]) -> Case:
    def define(head: int, q: Tensor, k: Tensor, v: Tensor) -> Outputs:
        return statistics_of(row_sweep(Scores(q, k), impl="reference"))

    def sweep(q: Tensor, k: Tensor, v: Tensor) -> Outputs:
        return statistics_of(row_sweep(Scores(q, k), impl="triton"))

    return Case(
        "statistics",
        "statistics, entropy's gradient",
        Question(define, leaves=2),
        lambda q, k, v: (sdpa(q, k, v),),
        sweep,
        aims,
    )


def _guidance(shape: Shape, device: torch.device, aims: tuple[float | None, float | None]) -> Case:
    """SDPA goes on as it is, and the loss is computed beside it."""
    guided = guided_half(shape.heads, device)

    def define(head: int, q: Tensor, k: Tensor, v: Tensor) -> Outputs:
        alone = guided_heads(
            {0: guided.patterns[guided.heads.index(head)]}, num_heads=1, device=device
        )
        out = softmax_attention(q, k, v, impl="reference").out
        return out, guidance_loss(q, k, alone, impl="reference")[None, :, None]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Outputs:
        loss_N = guidance_loss(q, k, guided, impl="triton")
        return sdpa(q, k, v), loss_N[None, :, None]

    return Case(
        "guidance",
        "guidance on half the heads",
        Question(define, through=2, pull=_softmax_pull),
        lambda q, k, v: (sdpa(q, k, v),),
        attend,
        aims,
        added=True,
    )
