"""The loops over time, forward and backward, and a cell in plain PyTorch.

A step forward is one batched product and one call of the cell, and so is a step backward; the
gradient of the weights is one product after the loop. Nothing waits for the device, so that both
passes can be captured in a CUDA graph. Remembered between the passes: the activated gates and the
states.

Axes: G = 4D the gates i f g o; U = T + 1 the states, the one before the first step included.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.ops._impl import outside_compilation

aten = torch.ops.aten
sigmoid_backward = aten.sigmoid_backward.grad_input
tanh_backward = aten.tanh_backward


class Cell(NamedTuple):
    """The point-wise part of a step t, both ways. Buffers come whole, and contiguous.

    forward(gates_STBG, hidden_SUBD, cell_SUBD, real_STB, t):
        activates the gates of step t in place and writes state t + 1.
    backward(gates_STBG, cell_SUBD, real_STB, dhidden_STBD, dh_SBD, dc_SBD, dgates_STBG, t):
        takes dh and dc at state t + 1, without what comes from the output of step t, dhidden.
        Writes dgates of step t; leaves in dc the gradient at state t, and in dh, where there is
        a real_STB, what passes by the gates: everything on held steps, 0 on real ones.
    """

    forward: Callable[[Tensor, Tensor, Tensor, Tensor | None, int], None]
    backward: Callable[[Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor, int], None]


@outside_compilation
def lstm(
    gates_STBG: Tensor,
    weight_SGD: Tensor,
    h_SBD: Tensor,
    c_SBD: Tensor,
    real_STB: Tensor | None,
    *,
    cell: Cell,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states of all steps, last hidden and cell state. Differentiable once."""
    out: tuple[Tensor, Tensor, Tensor] = _Lstm.apply(  # pyright: ignore[reportAssignmentType]
        gates_STBG, weight_SGD, h_SBD, c_SBD, real_STB, cell
    )
    return out


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        gates_STBG: Tensor,
        weight_SGD: Tensor,
        h_SBD: Tensor,
        c_SBD: Tensor,
        real_STB: Tensor | None,
        cell: Cell,
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps = gates_STBG.shape[1]
        weight_SGD = weight_SGD.contiguous()
        gates_STBG = gates_STBG.clone(memory_format=torch.contiguous_format)
        hidden_SUBD = _states(h_SBD, steps, h_SBD.dtype)
        # sums over many steps, hence not in half precision
        cell_SUBD = _states(c_SBD, steps, torch.promote_types(c_SBD.dtype, torch.float32))
        for t in range(steps):
            gates_STBG[:, t].baddbmm_(hidden_SUBD[:, t], weight_SGD.mT)
            cell.forward(gates_STBG, hidden_SUBD, cell_SUBD, real_STB, t)
        ctx.save_for_backward(gates_STBG, weight_SGD, hidden_SUBD, cell_SUBD, real_STB)
        ctx.cell = cell
        # copies, so that keeping a last state does not keep all of them in memory
        last_h_SBD, last_c_SBD = hidden_SUBD[:, -1].clone(), cell_SUBD[:, -1].clone()
        return hidden_SUBD[:, 1:], last_h_SBD, last_c_SBD.to(c_SBD.dtype)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dhidden_STBD: Tensor, dh_SBD: Tensor, dc_SBD: Tensor
    ) -> tuple[Tensor | None, ...]:
        gates_STBG, weight_SGD, hidden_SUBD, cell_SUBD, real_STB = ctx.saved_tensors
        dhidden_STBD = dhidden_STBD.contiguous()
        dgates_STBG = torch.empty_like(gates_STBG)
        dh_SBD = dh_SBD.clone(memory_format=torch.contiguous_format)
        wide_dc_SBD = dc_SBD.to(cell_SUBD.dtype, copy=True, memory_format=torch.contiguous_format)
        for t in reversed(range(gates_STBG.shape[1])):
            ctx.cell.backward(
                gates_STBG, cell_SUBD, real_STB, dhidden_STBD, dh_SBD, wide_dc_SBD, dgates_STBG, t
            )
            dh_SBD.baddbmm_(dgates_STBG[:, t], weight_SGD, beta=0 if real_STB is None else 1)
        dweight_SGD = None
        if ctx.needs_input_grad[1]:
            # as if all steps of all items were one batch
            before_SXD = hidden_SUBD[:, :-1].flatten(1, 2)
            dweight_SGD = torch.bmm(dgates_STBG.flatten(1, 2).mT, before_SXD)
        return dgates_STBG, dweight_SGD, dh_SBD, wide_dc_SBD.to(dh_SBD.dtype), None, None


def _states(first_SBD: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Allocate the states before and after every step, with the first one filled in."""
    seeds, batch, width = first_SBD.shape
    states_SUBD = first_SBD.new_empty(seeds, steps + 1, batch, width, dtype=dtype)
    states_SUBD[:, 0] = first_SBD
    return states_SUBD


def _cell_forward(
    gates_STBG: Tensor, hidden_SUBD: Tensor, cell_SUBD: Tensor, real_STB: Tensor | None, t: int
) -> None:
    i_SBD, f_SBD, g_SBD, o_SBD = gates_STBG[:, t].chunk(4, dim=-1)
    gates_STBG[:, t, :, : 2 * g_SBD.shape[-1]].sigmoid_()  # i and f
    g_SBD.tanh_()
    o_SBD.sigmoid_()
    c_before_SBD, c_SBD = cell_SUBD[:, t], cell_SUBD[:, t + 1]
    h_before_SBD, h_SBD = hidden_SUBD[:, t], hidden_SUBD[:, t + 1]
    torch.mul(f_SBD, c_before_SBD, out=c_SBD).addcmul_(i_SBD, g_SBD)
    torch.tanh(c_SBD, out=h_SBD).mul_(o_SBD)
    if real_STB is not None:
        real_SB1 = real_STB[:, t, :, None]
        torch.where(real_SB1, c_SBD, c_before_SBD, out=c_SBD)
        torch.where(real_SB1, h_SBD, h_before_SBD, out=h_SBD)


def _cell_backward(
    gates_STBG: Tensor,
    cell_SUBD: Tensor,
    real_STB: Tensor | None,
    dhidden_STBD: Tensor,
    dh_SBD: Tensor,
    dc_SBD: Tensor,
    dgates_STBG: Tensor,
    t: int,
) -> None:
    i_SBD, f_SBD, g_SBD, o_SBD = gates_STBG[:, t].chunk(4, dim=-1)
    di_SBD, df_SBD, dg_SBD, do_SBD = dgates_STBG[:, t].chunk(4, dim=-1)
    dh_SBD.add_(dhidden_STBD[:, t])
    tanh_c_SBD = cell_SUBD[:, t + 1].tanh()
    into_c_SBD = tanh_backward(dh_SBD * o_SBD, tanh_c_SBD).add_(dc_SBD)
    _through_sigmoid(dh_SBD, tanh_c_SBD, o_SBD, out=do_SBD)
    _through_sigmoid(into_c_SBD, g_SBD, i_SBD, out=di_SBD)
    _through_sigmoid(into_c_SBD, cell_SUBD[:, t], f_SBD, out=df_SBD)
    tanh_backward.grad_input(torch.mul(into_c_SBD, i_SBD, out=dg_SBD), g_SBD, grad_input=dg_SBD)
    if real_STB is None:
        torch.mul(into_c_SBD, f_SBD, out=dc_SBD)
        return
    real_SB1 = real_STB[:, t, :, None]
    torch.where(real_SB1, into_c_SBD.mul_(f_SBD), dc_SBD, out=dc_SBD)
    dgates_STBG[:, t].masked_fill_(~real_SB1, 0)
    dh_SBD.masked_fill_(real_SB1, 0)


def _through_sigmoid(grad: Tensor, factor: Tensor, sigmoid: Tensor, *, out: Tensor) -> None:
    """Write the gradient of factor * sigmoid(x) with respect to x into `out`."""
    sigmoid_backward(torch.mul(grad, factor, out=out), sigmoid, grad_input=out)


PLAIN_CELL = Cell(_cell_forward, _cell_backward)
