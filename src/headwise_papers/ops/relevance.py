"""Output relevance, and how far it agrees with attention.

"Understanding Attention Training via Output Relevance": a model attends to the positions l of its
input with scores alpha_l and averages their logits theta_l. The output relevance beta_l says how
strongly position l alone predicts the right output. Two measures compare a row of alpha with a row
of beta: whether the modes match (acc, Eq. 3), and whether the mode of alpha is among the largest
twentieth of beta (hr, Eq. 4).

    S seeds   N rows   K positions of the input (the paper's L)   O outputs   T targets   P bytes

Padding stands at the end of a row, may hold anything, and never counts.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

__all__ = [
    "Looked",
    "expected_floor",
    "highly_ranked",
    "holds",
    "mode_match",
    "output_relevance",
    "output_relevance_of_each",
    "packed",
    "peak_positions",
    "shuffled",
    "top_number",
    "top_positions",
    "unpacked",
]

SHARE = 20  # hr asks whether a position is in the largest 1/20 of its row, the paper's 0.95


class Looked(NamedTuple):
    """Attention and relevance of S models on the same N rows (sentences or target words)."""

    alpha: Float[Tensor, "S N K"]  # attention scores, or anything of the same order
    beta: Float[Tensor, "S N K"]  # output relevance
    lengths: Int[Tensor, " N"]  # real positions of each row
    right: Bool[Tensor, "S N"]  # whether the prediction was right


def output_relevance(theta: Float[Tensor, "*x K O"], target: Int[Tensor, "*x"]) -> Tensor:
    """Measure how strongly each position alone predicts the target (Eq. 2).

    beta_l = theta_{l,target} - log sum_{o != target} exp(theta_{l,o}), the log-odds of the target
    in the softmax of one position's logits; with two outputs their difference.

    Args:
        theta: logits of each position; has a gradient.
        target: the right output of each row, 0 to O - 1.

    Returns:
        (…, K), in theta's dtype.

    >>> theta = torch.tensor([[[2.0, 0.0], [0.0, 3.0]]])
    >>> output_relevance(theta, torch.tensor([1]))
    tensor([[-2.,  3.]])
    """
    _check_target(theta, target, wanted=tuple(theta.shape[:-2]))
    wide = _widened(theta)
    place_XK1 = target[..., None, None].expand(*theta.shape[:-1], 1)
    own_XK = wide.gather(-1, place_XK1)[..., 0]
    # leaving the target out, not subtracting it, is exact where it has nearly all probability
    others_XK = wide.scatter(-1, place_XK1, -torch.inf).logsumexp(-1)
    return (own_XK - others_XK).to(theta.dtype)


def output_relevance_of_each(
    theta: Float[Tensor, "*x K O"], targets: Int[Tensor, "*x T"]
) -> Tensor:
    """Compute `output_relevance` for several targets, without a copy of theta for each.

    Args:
        theta: logits of each position, the same for all targets; has a gradient.
        targets: the right outputs, T of them for each theta.

    Returns:
        (…, T, K), in theta's dtype.

    >>> theta = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    >>> output_relevance_of_each(theta, torch.tensor([1, 0]))
    tensor([[-2.,  3.],
            [ 2., -3.]])
    """
    _check_target(theta, targets, wanted=(*theta.shape[:-2], targets.shape[-1]))
    wide = _widened(theta)
    # only the largest logit can have more than half of the probability; for all others
    # log(1 - p) is exact, for that one the others are summed
    top_XK1 = wide.argmax(-1, keepdim=True)
    rest_X1K = wide.scatter(-1, top_XK1, -torch.inf).logsumexp(-1)[..., None, :]
    all_X1K = wide.logsumexp(-1)[..., None, :]
    place_XKT = targets[..., None, :].expand(*theta.shape[:-1], -1)
    own_XTK = wide.gather(-1, place_XKT).transpose(-1, -2)
    is_top_XTK = (place_XKT == top_XK1).transpose(-1, -2)
    log_p_XTK = (own_XTK - all_X1K).masked_fill(is_top_XTK, -1.0)  # -1: any value with a gradient
    others_XTK = torch.where(is_top_XTK, rest_X1K, all_X1K + torch.log1p(-log_p_XTK.exp()))
    return (own_XTK - others_XTK).to(theta.dtype)


def peak_positions(scores: Float[Tensor, "*x K"], lengths: Int[Tensor, "..."]) -> Tensor:
    """Find the position of the largest entry among the real ones, (…); the first on ties.

    >>> peak_positions(torch.tensor([[1.0, 3.0, 3.0, 9.0]]), torch.tensor([3]))
    tensor([1])
    """
    return scores.masked_fill(~_real(scores, lengths), -torch.inf).argmax(-1)


def top_positions(beta: Float[Tensor, "*x K"], lengths: Int[Tensor, "..."]) -> Tensor:
    """Find the highly ranked positions, where fewer than L/20 real ones are strictly larger.

    Args:
        beta: any measure of positions.
        lengths: real positions L of each row, 1 to K, broadcastable to the rows.

    Returns:
        Booleans, (…, K). Ties at the edge are all in.

    >>> top_positions(torch.tensor([[1.0, 3.0, 3.0, 9.0]]), torch.tensor([3]))
    tensor([[False,  True,  True, False]])
    """
    real_XK = _real(beta, lengths)
    value_XK = beta.masked_fill(~real_XK, -torch.inf)
    number_X = top_number(lengths.to(beta.device).long()).expand(beta.shape[:-1])
    largest_XC = value_XK.topk(-(-beta.shape[-1] // SHARE), dim=-1).values
    edge_X1 = largest_XC.gather(-1, number_X[..., None] - 1)
    return (value_XK >= edge_X1) & real_XK


def top_number(lengths: Int[Tensor, "*x"]) -> Int[Tensor, "*x"]:
    """Return how many positions are highly ranked, ties apart: ceil(L / 20).

    >>> top_number(torch.tensor([1, 20, 21]))
    tensor([1, 1, 2])
    """
    return (lengths + SHARE - 1) // SHARE


def mode_match(
    alpha: Float[Tensor, "*x K"], beta: Float[Tensor, "*y K"], lengths: Int[Tensor, "..."]
) -> Tensor:
    """Tell for each row whether alpha and beta are largest at the same position: acc (Eq. 3).

    Args:
        alpha: attention scores or weights.
        beta: output relevance; its rows are broadcast with alpha's.
        lengths: real positions of each row, 1 to K, broadcastable to the rows.

    >>> alpha, beta = torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([[5.0, 7.0, 9.0]])
    >>> mode_match(alpha, beta, torch.tensor([3])), mode_match(alpha, beta, torch.tensor([2]))
    (tensor([False]), tensor([True]))
    """
    return peak_positions(alpha, lengths) == peak_positions(beta, lengths)


def highly_ranked(
    alpha: Float[Tensor, "*x K"], beta: Float[Tensor, "*y K"], lengths: Int[Tensor, "..."]
) -> Tensor:
    """Tell for each row whether the mode of alpha is in the top twentieth of beta: hr (Eq. 4).

    With c real positions strictly larger in beta than the one alpha is largest at: 20 c < L.
    Arguments as in `mode_match`.

    >>> alpha, beta = torch.eye(40)[:1], torch.arange(40.0)
    >>> [bool(highly_ranked(alpha, beta.roll(n), torch.tensor([40]))) for n in (1, 2, 3)]
    [True, True, False]
    """
    alpha, beta = torch.broadcast_tensors(alpha, beta)
    peak_X1 = peak_positions(alpha, lengths)[..., None]
    larger_XK = (beta > beta.gather(-1, peak_X1)) & _real(beta, lengths)
    return SHARE * larger_XK.sum(-1) < lengths.to(beta.device)


def shuffled(
    beta: Float[Tensor, "*x K"], lengths: Int[Tensor, "..."], generator: torch.Generator
) -> Float[Tensor, "*x K"]:
    """Shuffle the real positions of each row, a random baseline; padding keeps its place."""
    lot_XK = torch.rand(beta.shape, generator=generator, device=generator.device)
    lot_XK = lot_XK.to(beta.device).masked_fill(~_real(beta, lengths), 2)
    return beta.gather(-1, lot_XK.argsort(dim=-1, stable=True))


def expected_floor(lengths: Int[Tensor, "..."]) -> float:
    """Return the mean hr when beta is shuffled: the mean of ceil(L / 20) / L over rows.

    >>> round(expected_floor(torch.tensor([40, 10])), 6)
    0.075
    """
    if bool((lengths < 1).any()):
        raise ValueError(f"Rows must have at least one real position, got {lengths.min().item()}.")
    return (top_number(lengths).double() / lengths).mean().item()


def packed(chosen: Bool[Tensor, "*x K"]) -> UInt8[Tensor, "*x P"]:
    """Pack booleans eight to a byte, the first in the lowest bit.

    >>> packed(torch.tensor([True, False, True]))
    tensor([5], dtype=torch.uint8)
    """
    n_bytes = -(-chosen.shape[-1] // 8)
    bits = torch.nn.functional.pad(chosen, (0, 8 * n_bytes - chosen.shape[-1]))
    shift_8 = torch.arange(8, device=chosen.device, dtype=torch.uint8)
    return (bits.unflatten(-1, (n_bytes, 8)).byte() << shift_8).sum(-1, dtype=torch.uint8)


def unpacked(bytes_: UInt8[Tensor, "*x P"]) -> Bool[Tensor, "*x K"]:
    """Undo `packed`, up to a multiple of eight positions."""
    shift_8 = torch.arange(8, device=bytes_.device, dtype=torch.uint8)
    return ((bytes_[..., None] >> shift_8) & 1).bool().flatten(-2)


def holds(bytes_: UInt8[Tensor, "*x P"], position: Int[Tensor, "*y"]) -> Tensor:
    """Tell whether packed booleans are true at a position of each row; rows are broadcast.

    >>> holds(packed(torch.tensor([[True, False, True]])), torch.tensor([2, 1]))
    tensor([ True, False])
    """
    position = position.long()
    rows = torch.broadcast_shapes(bytes_.shape[:-1], position.shape)
    byte_X1 = (position // 8).expand(rows)[..., None]
    byte_X = bytes_.expand(*rows, -1).gather(-1, byte_X1)[..., 0]
    return ((byte_X >> (position % 8).to(torch.uint8)) & 1).bool()


def _real(scores_XK: Tensor, lengths: Tensor) -> Tensor:
    """Return a mask (…, K) of real positions; raise on bad lengths or NaN scores."""
    n_keys = scores_XK.shape[-1]
    if lengths.dim() > scores_XK.dim() - 1 or any(
        ours not in (1, rows)
        for ours, rows in zip(lengths.shape[::-1], scores_XK.shape[-2::-1], strict=False)
    ):
        raise ValueError(
            f"lengths must have one entry for each row of shape {tuple(scores_XK.shape[:-1])}, "
            f"got shape {tuple(lengths.shape)}."
        )
    if bool(((lengths < 1) | (lengths > n_keys)).any()):
        raise ValueError(
            f"lengths must lie between 1 and the {n_keys} positions of a row, "
            f"got {lengths.min().item()} to {lengths.max().item()}."
        )
    place_K = torch.arange(n_keys, device=scores_XK.device)
    real_XK = place_K < lengths.to(scores_XK.device)[..., None]
    if scores_XK.is_floating_point() and bool((scores_XK.isnan() & real_XK).any()):
        raise ValueError("Some real positions hold NaN, so they have no order; the model diverged?")
    return real_XK


def _widened(theta: Tensor) -> Tensor:
    return theta.to(torch.promote_types(theta.dtype, torch.float32))


def _check_target(theta: Tensor, target: Tensor, *, wanted: tuple[int, ...]) -> None:
    n_outputs = theta.shape[-1]
    if n_outputs < 2:
        raise ValueError(
            f"theta must hold at least two outputs a position, got shape {tuple(theta.shape)}; "
            "for one logit z hand in stack([0 * z, z], dim=-1)."
        )
    if tuple(target.shape) != wanted:
        raise ValueError(
            f"For theta of shape {tuple(theta.shape)} the target must have shape {wanted}, "
            f"got {tuple(target.shape)}."
        )
    if target.is_floating_point() or target.dtype == torch.bool:
        raise ValueError(f"A target must be a number of an output, got {target.dtype}.")
    if bool(((target < 0) | (target >= n_outputs)).any()):
        raise ValueError(
            f"Targets must lie between 0 and {n_outputs - 1}, "
            f"got {target.min().item()} to {target.max().item()}."
        )
