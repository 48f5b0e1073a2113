"""Lookup of rows of S tables in parallel, with a gradient that can be captured in a CUDA graph."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["lookup"]

FEW = 256  # rows up to which the gradient is a product with a one-hot matrix, exact and in order


def lookup(table: Float[Tensor, "S V E"], ids: Int[Tensor, "S ..."]) -> Float[Tensor, "S ... E"]:
    """Select row ids[s, ...] of table s.

    >>> lookup(torch.arange(6.0).view(1, 3, 2), torch.tensor([[2, 0]]))
    tensor([[[4., 5.],
             [0., 1.]]])
    """
    if (
        not ids.is_cuda
        and ids.numel()
        and not 0 <= int(ids.min()) <= int(ids.max()) < table.shape[1]
    ):
        raise ValueError(
            f"ids must be from 0 to {table.shape[1] - 1}, got {int(ids.min())} to {int(ids.max())}."
        )  # a GPU would have to be waited for
    return _Lookup.apply(table, ids.flatten(1)).unflatten(1, ids.shape[1:])  # pyright: ignore


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table_SVE: Tensor, ids_SN: Tensor) -> Tensor:
        ctx.save_for_backward(ids_SN)
        ctx.rows = table_SVE.shape[1]
        return table_SVE.flatten(0, 1)[_places(ids_SN, ctx.rows)]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient_SNE,) = gradients
        (ids_SN,) = ctx.saved_tensors
        if ctx.rows <= FEW:
            row_V1 = torch.arange(ctx.rows, device=ids_SN.device)[:, None]
            chosen_SVN = (ids_SN[:, None] == row_V1).to(gradient_SNE.dtype)
            return torch.bmm(chosen_SVN, gradient_SNE), None
        seeds, _, width = gradient_SNE.shape
        total = gradient_SNE.new_zeros(seeds * ctx.rows, width)
        total.index_add_(0, _places(ids_SN, ctx.rows).flatten(), gradient_SNE.flatten(0, 1))
        return total.view(seeds, ctx.rows, width), None


def _places(ids_SN: Tensor, rows: int) -> Tensor:
    """Return row numbers in the tables laid one after the other."""
    return ids_SN + rows * torch.arange(len(ids_SN), device=ids_SN.device)[:, None]
