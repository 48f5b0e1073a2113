# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""The point-wise part of an LSTM step as two Triton kernels, one launch a step each way.

A program handles BLOCK of the B x D units of one seed. Buffers are contiguous, so that a step of
them needs no copy: (S, T, B, 4D) gates, (S, U, B, D) states with U = T + 1, (S, T, B) real steps.
Everything is computed in float32, whatever is stored.

The functions of `triton.language` written in Triton itself (sigmoid, zeros) are not used: they are
only interpreted if TRITON_INTERPRET was set before Triton was first imported by anybody. Kernels
are no_type_check because a wrapper that checks types would hide this module's names from Triton.
"""

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512  # units a program, fewer where a seed has fewer


def forward(
    gates_STBG: Tensor,
    hidden_SUBD: Tensor,
    cell_SUBD: Tensor,
    real_STB: Tensor | None,
    t: int,
) -> None:
    """Activate the gates of step t in place and write state t + 1. See `stacked.Cell`."""
    seeds, steps, batch, _ = gates_STBG.shape
    width = hidden_SUBD.shape[-1]
    block = min(BLOCK, triton.next_power_of_2(batch * width))
    _forward_kernel[(triton.cdiv(batch * width, block), seeds)](
        gates_STBG, hidden_SUBD, cell_SUBD, real_STB, t, steps, batch, width, BLOCK=block
    )


def backward(
    gates_STBG: Tensor,
    cell_SUBD: Tensor,
    real_STB: Tensor | None,
    dhidden_STBD: Tensor,
    dh_SBD: Tensor,
    dc_SBD: Tensor,
    dgates_STBG: Tensor,
    t: int,
) -> None:
    """Propagate gradients from state t + 1 to the gates of step t and to state t."""
    seeds, steps, batch, width = dhidden_STBD.shape
    block = min(BLOCK, triton.next_power_of_2(batch * width))
    _backward_kernel[(triton.cdiv(batch * width, block), seeds)](
        gates_STBG,
        cell_SUBD,
        real_STB,
        dhidden_STBD,
        dh_SBD,
        dc_SBD,
        dgates_STBG,
        t,
        steps,
        batch,
        width,
        BLOCK=block,
    )


@triton.jit
@no_type_check
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
@no_type_check
def _tanh(x):
    """Compute tanh to a few units in the last place, also near 0 where the quotient cancels."""
    square = x * x
    series = 62.0 / 2835.0
    series = series * square - 17.0 / 315.0
    series = series * square + 2.0 / 15.0
    series = series * square - 1.0 / 3.0
    near = x + x * square * series
    shrunk = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - shrunk) / (1.0 + shrunk)
    far = tl.where(x < 0, -far, far)
    return tl.where(square < 0.0625, near, far)


@triton.jit(do_not_specialize=["t"])
@no_type_check
def _forward_kernel(gates, hidden, cell, real, t, steps, batch, width, BLOCK: tl.constexpr):
    unit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # item * width + place in its state
    seed = tl.program_id(1).to(tl.int64)
    inside = unit < batch * width
    item = unit // width
    before = (seed * (steps + 1) + t) * batch * width + unit
    after = before + batch * width
    i_at = gates + (seed * steps + t) * batch * width * 4 + item * width * 3 + unit
    f_at = i_at + width
    g_at = f_at + width
    o_at = g_at + width

    i = _sigmoid(tl.load(i_at, mask=inside, other=0.0).to(tl.float32))
    f = _sigmoid(tl.load(f_at, mask=inside, other=0.0).to(tl.float32))
    g = _tanh(tl.load(g_at, mask=inside, other=0.0).to(tl.float32))
    o = _sigmoid(tl.load(o_at, mask=inside, other=0.0).to(tl.float32))
    tl.store(i_at, i, mask=inside)
    tl.store(f_at, f, mask=inside)
    tl.store(g_at, g, mask=inside)
    tl.store(o_at, o, mask=inside)

    c_before = tl.load(cell + before, mask=inside, other=0.0)
    c = f * c_before + i * g
    h = o * _tanh(c)
    if real is not None:
        is_real = tl.load(real + (seed * steps + t) * batch + item, mask=inside, other=0) != 0
        h_before = tl.load(hidden + before, mask=inside, other=0.0).to(tl.float32)
        c = tl.where(is_real, c, c_before)
        h = tl.where(is_real, h, h_before)
    tl.store(cell + after, c, mask=inside)
    tl.store(hidden + after, h, mask=inside)


@triton.jit(do_not_specialize=["t"])
@no_type_check
def _backward_kernel(
    gates, cell, real, dhidden, dh, dc, dgates, t, steps, batch, width, BLOCK: tl.constexpr
):
    unit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # item * width + place in its state
    seed = tl.program_id(1).to(tl.int64)
    inside = unit < batch * width
    item = unit // width
    here = seed * batch * width + unit
    now = (seed * steps + t) * batch * width + unit
    before = (seed * (steps + 1) + t) * batch * width + unit
    i_at = (seed * steps + t) * batch * width * 4 + item * width * 3 + unit
    f_at = i_at + width
    g_at = f_at + width
    o_at = g_at + width

    i = tl.load(gates + i_at, mask=inside, other=0.0).to(tl.float32)
    f = tl.load(gates + f_at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gates + g_at, mask=inside, other=0.0).to(tl.float32)
    o = tl.load(gates + o_at, mask=inside, other=0.0).to(tl.float32)
    c_before = tl.load(cell + before, mask=inside, other=0.0)
    tanh_c = _tanh(tl.load(cell + before + batch * width, mask=inside, other=0.0))
    into_h = tl.load(dh + here, mask=inside, other=0.0).to(tl.float32)
    into_h += tl.load(dhidden + now, mask=inside, other=0.0).to(tl.float32)
    kept = tl.load(dc + here, mask=inside, other=0.0)

    into_c = kept + into_h * o * (1.0 - tanh_c * tanh_c)
    into_i = into_c * g * i * (1.0 - i)
    into_f = into_c * c_before * f * (1.0 - f)
    into_g = into_c * i * (1.0 - g * g)
    into_o = into_h * tanh_c * o * (1.0 - o)
    into_c = into_c * f
    if real is not None:
        is_real = tl.load(real + (seed * steps + t) * batch + item, mask=inside, other=0) != 0
        into_i = tl.where(is_real, into_i, 0.0)
        into_f = tl.where(is_real, into_f, 0.0)
        into_g = tl.where(is_real, into_g, 0.0)
        into_o = tl.where(is_real, into_o, 0.0)
        into_c = tl.where(is_real, into_c, kept)
        tl.store(dh + here, tl.where(is_real, 0.0, into_h), mask=inside)
    tl.store(dgates + i_at, into_i, mask=inside)
    tl.store(dgates + f_at, into_f, mask=inside)
    tl.store(dgates + g_at, into_g, mask=inside)
    tl.store(dgates + o_at, into_o, mask=inside)
    tl.store(dc + here, into_c, mask=inside)
