# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""The gradient on q and k of anything whose gradient on the scores is a row-wise form in weights H:

    dS_ij = factor gain_i H_ij (plain_i + square_i H_ij + log_i log H_ij + peak_i [j = peak_key_i]
                                + at_i [j = target_i] + on_i [j in the set])

All statistics of softmax rows and the guidance loss are of this form. One sweep over the keys for
dq, one over the queries for dk, for which the first leaves the terms `joined` with the gain. Each
program writes its own rows, so the result never varies. Heads that share keys are summed inside the
program.

Gradients lie in memory as q and k do, and are written whole, zeros for heads that nobody asked: a
host that adds its own gradients and undoes its transposition then moves nothing else.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from headwise.ops.row_sweep.aiming import (
    Aims,
    Calls,
    alike,
    calls_of,
    settings,
)
from headwise.ops.row_sweep.gradient_kernels import TERMS, to_keys, to_queries


class Terms(NamedTuple):
    """What the form needs of each row, (B, N, Q) float32; log, peak and peak_key go together."""

    top: Tensor  # the product q k of the largest score
    log_sum: Tensor  # log2 of the sum of exp(score - largest); +inf of rows that see nothing
    plain: Tensor
    square: Tensor | None  # 1 unless given
    at: Tensor
    on: Tensor
    log: Tensor | None = None
    peak: Tensor | None = None
    peak_key: Tensor | None = None
    gain: Tensor | None = None  # may be expanded
    factor: float = 1.0  # of all rows


def score_gradients(
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    mask: Tensor | None,
    lengths: Tensor | None,
    scale: float,
    first: int,
    causal: bool,
    aims: Aims,
    terms: Terms,
) -> tuple[list[Tensor], list[Tensor]]:
    """dq and dk of each call. See the formula above."""
    both = _gradient_op(q, k, mask, lengths, scale, first, causal, *aims, *terms)
    return both[: len(q)], both[len(q) :]


@torch.library.custom_op("headwise::row_sweep_gradient", mutates_args=())
def _gradient_op(
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    mask: Tensor | None,
    lengths: Tensor | None,
    scale: float,
    first: int,
    causal: bool,
    plan: Tensor | None,
    numbers: Tensor | None,
    offset: int,
    key_sets: Tensor | None,
    top: Tensor,
    log_sum: Tensor,
    plain: Tensor,
    square: Tensor | None,
    at: Tensor,
    on: Tensor,
    log: Tensor | None,
    peak: Tensor | None,
    peak_key: Tensor | None,
    gain: Tensor | None,
    factor: float,
) -> list[Tensor]:
    calls = calls_of(q, k, mask, lengths, scale, first, causal)
    terms = Terms(top, log_sum, plain, square, at, on, log, peak, peak_key, gain, factor)
    dq, dk = _new_like(q), _new_like(k)
    _launch(calls, Aims(plan, numbers, offset, key_sets), terms, dq, dk)
    return [*dq, *dk]


@_gradient_op.register_fake
def _(q, k, *others):
    return [*_new_like(q), *_new_like(k)]


def _new_like(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """As they lie in memory; of tensors with gaps or repetitions, in the order of their axes."""
    return tuple(_with_rows_like(x) for x in alike(tensors))


def _with_rows_like(x: Tensor) -> Tensor:
    new = torch.empty_like(x)
    return new if new.stride(-1) == 1 else x.new_empty(x.shape)


def _launch(
    calls: Calls, aims: Aims, terms: Terms, dq: tuple[Tensor, ...], dk: tuple[Tensor, ...]
) -> None:
    batch, heads, n_queries, _ = dq[0].shape
    groups, n_keys = dk[0].shape[1:3]
    given = calls.arguments() | aims.arguments(heads) | {"numbers": aims.numbers}
    given["factor"] = terms.factor * calls.first.scale
    given["joined"] = terms.plain.new_empty(*terms.plain.shape[:2], TERMS.value, n_queries)
    by_rows = _contiguous(terms) | _strides("gain", terms.gain)
    by_queries, by_keys = settings(calls, "queries"), settings(calls, "keys")
    with torch.cuda.device_of(dq[0]):
        n_blocks = triton.cdiv(n_queries, by_queries["ROWS"])
        if n_blocks * batch:
            asked = by_rows | {"dq": dq, "n_blocks": n_blocks} | _strides("dq", dq[0])
            to_queries[(batch * len(dq) * heads * n_blocks,)](**given, **by_queries, **asked)
        n_blocks = triton.cdiv(n_keys, by_keys["KEYS"])
        if n_blocks * batch:
            asked = {"dk": dk, "n_blocks": n_blocks, "SHAPED": terms.log is not None}
            asked |= _strides("dk", dk[0])
            to_keys[(batch * len(dk) * groups * n_blocks,)](**given, **by_keys, **asked)


def _strides(name: str, tensor: Tensor | None) -> dict[str, int]:
    """Those of its first three axes, as arguments of a kernel; zeros of none."""
    strides = (0, 0, 0) if tensor is None else tensor.stride()[:3]
    return dict(zip((f"{name}_batch", f"{name}_head", f"{name}_row"), strides, strict=True))


def _contiguous(terms: Terms) -> dict[str, Tensor | None]:
    """The rows as arguments of a kernel; the gain as it is, since it has strides of its own."""
    given = {name: term for name, term in terms._asdict().items() if name != "factor"}
    rows = {name: x.contiguous() for name, x in given.items() if x is not None and name != "gain"}
    return given | rows
