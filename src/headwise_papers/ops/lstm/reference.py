"""The definition every other implementation is tested against. Clear before fast."""

import torch
from torch import Tensor


def lstm(
    gates_STBG: Tensor, weight_SGD: Tensor, h_SBD: Tensor, c_SBD: Tensor, real_STB: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the hidden states of every step, and the last hidden and cell state."""
    hidden: list[Tensor] = []
    for t, gates_SBG in enumerate(gates_STBG.unbind(1)):
        if real_STB is None:
            h_SBD, c_SBD = _step(gates_SBG, weight_SGD, h_SBD, c_SBD)
        else:
            real_SB1 = real_STB[:, t, :, None]
            # padding may hold anything, and 0 times infinity would be a gradient
            h_next_SBD, c_next_SBD = _step(gates_SBG.where(real_SB1, 0), weight_SGD, h_SBD, c_SBD)
            h_SBD = torch.where(real_SB1, h_next_SBD, h_SBD)
            c_SBD = torch.where(real_SB1, c_next_SBD, c_SBD)
        hidden.append(h_SBD)
    return torch.stack(hidden, dim=1), h_SBD, c_SBD


def _step(
    gates_SBG: Tensor, weight_SGD: Tensor, h_SBD: Tensor, c_SBD: Tensor
) -> tuple[Tensor, Tensor]:
    i_SBD, f_SBD, g_SBD, o_SBD = (gates_SBG + h_SBD @ weight_SGD.mT).chunk(4, dim=-1)
    c_SBD = f_SBD.sigmoid() * c_SBD + i_SBD.sigmoid() * g_SBD.tanh()
    return o_SBD.sigmoid() * c_SBD.tanh(), c_SBD
