"""S LSTMs at once, one a seed: what `nn.LSTM` computes for one layer, for many weights together.

i, f, g, o = gates_t + W h_{t-1}
c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)
h_t = sigmoid(o) tanh(c_t)
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.ops import Impl
from headwise.ops._impl import choose, kernel_obstacle
from headwise_papers.ops.lstm import reference, stacked

__all__ = ["LstmOut", "lstm"]


class LstmOut(NamedTuple):
    """Outputs of S LSTMs."""

    hidden: Float[Tensor, "S T B D"]  # the hidden state after every step
    h: Float[Tensor, "S B D"]  # the last hidden state
    c: Float[Tensor, "S B D"]  # the last cell state


def lstm(
    gates: Float[Tensor, "S T B G"],
    weight: Float[Tensor, "S G D"],
    *,
    state: tuple[Float[Tensor, "S B D"], Float[Tensor, "S B D"]] | None = None,
    first: Int[Tensor, "S B"] | None = None,
    last: Int[Tensor, "S B"] | None = None,
    impl: Impl = "auto",
) -> LstmOut:
    """Run S LSTMs of D units over T steps of B items each.

    A step t of an item is real if first <= t < last. Other steps keep its state, hidden there is
    the kept state, and their gates have no influence and gradient 0. Of items turned round in time
    the real steps are the last ones, first = T - length: so an LSTM reads backwards.

    Args:
        gates: what the input adds to the four gates of every step, biases included; G = 4 D, in
            the order i f g o: `x @ weight_ih.mT + bias_ih + bias_hh` of an `nn.LSTM`.
        weight: what the previous hidden state adds, the `weight_hh` of an `nn.LSTM`.
        state: the hidden and cell state before the first step; zeros unless given.
        first: each item's first real step; 0 unless given.
        last: the step after its last real one; T unless given.
        impl: "reference" the definition, "torch" PyTorch with a gradient written by hand,
            "triton" the same with fused kernels, or "auto". All but the definition are
            differentiable once.

    With gates of 0 a cell forgets half of its state at every step:

    >>> state = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
    >>> lstm(torch.zeros(1, 3, 1, 4), torch.zeros(1, 4, 1), state=state).c
    tensor([[[0.1250]]])
    """
    _check(gates, weight)
    h_SBD, c_SBD = _state(gates, state)
    real_STB = _real_steps(gates, first, last)
    chosen = choose(impl, triton_obstacle=kernel_obstacle(gates, impl))
    with torch.autocast(gates.device.type, enabled=False), torch.cuda.device_of(gates):
        if chosen == "reference":
            return LstmOut(*reference.lstm(gates, weight, h_SBD, c_SBD, real_STB))
        cell = _triton_cell() if chosen == "triton" else stacked.PLAIN_CELL
        return LstmOut(*stacked.lstm(gates, weight, h_SBD, c_SBD, real_STB, cell=cell))


def _triton_cell() -> stacked.Cell:
    from headwise_papers.ops.lstm import triton  # lazy: importing headwise never imports Triton

    return stacked.Cell(triton.forward, triton.backward)


def _state(gates: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Return the given start state, checked; zeros if none is given."""
    seeds, _, batch, n_gates = gates.shape
    wanted = (seeds, batch, n_gates // 4)
    if state is None:
        zeros_SBD = gates.new_zeros(wanted)
        return zeros_SBD, zeros_SBD
    for name, given in zip(("hidden", "cell"), state, strict=True):
        if given.shape != wanted or given.dtype != gates.dtype:
            raise ValueError(
                f"The {name} state must be (seeds, batch, width) = {wanted} of {gates.dtype}, "
                f"got {tuple(given.shape)} of {given.dtype}."
            )
    return state


def _real_steps(gates: Tensor, first: Tensor | None, last: Tensor | None) -> Tensor | None:
    """Return a contiguous mask (S, T, B) of real steps; None where all are real."""
    if first is None and last is None:
        return None
    step_T1 = torch.arange(gates.shape[1], device=gates.device)[:, None]
    real_STB = torch.ones(gates.shape[:3], dtype=torch.bool, device=gates.device)
    if first is not None:
        _check_bound("first", first, gates)
        real_STB &= step_T1 >= first[:, None]
    if last is not None:
        _check_bound("last", last, gates)
        real_STB &= step_T1 < last[:, None]
    return real_STB


def _check_bound(name: str, bound: Tensor, gates: Tensor) -> None:
    wanted = (gates.shape[0], gates.shape[2])
    if bound.shape != wanted or bound.is_floating_point() or bound.dtype == torch.bool:
        raise ValueError(
            f"{name} must hold one integer an item, (seeds, batch) = {wanted}, "
            f"got {tuple(bound.shape)} of {bound.dtype}."
        )


def _check(gates: Tensor, weight: Tensor) -> None:
    if gates.dim() != 4 or weight.dim() != 3:
        raise ValueError(
            "gates must be (seeds, steps, batch, 4 width) and weight (seeds, 4 width, width), "
            f"got {tuple(gates.shape)} and {tuple(weight.shape)}."
        )
    if 0 in gates.shape:
        raise ValueError(f"gates must not be empty, got {tuple(gates.shape)}.")
    seeds, _, _, n_gates = gates.shape
    if n_gates % 4 or weight.shape != (seeds, n_gates, n_gates // 4):
        raise ValueError(
            "weight must be (seeds, 4 width, width) for gates of (seeds, steps, batch, 4 width), "
            f"got weight {tuple(weight.shape)} and gates {tuple(gates.shape)}."
        )
    if not gates.is_floating_point() or gates.dtype != weight.dtype:
        raise ValueError(
            "gates and weight must share one floating-point dtype, "
            f"got {gates.dtype} and {weight.dtype}."
        )
