"""A Transformer in one compiled graph, forward and backward, for batches of any shape.

    python tests/models/compiling.py

Runs in a process of its own, as what checks shapes in tests cannot be compiled.
"""

import os
from functools import partial

import torch
from torch import Tensor

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported

from headwise.ops import entmax_attention, topk_attention
from headwise.sites import replace
from headwise_papers.models import Transformer, TransformerConfig, attention

SHAPE = TransformerConfig(9, 9, width=8, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0)
SIZES = ((3, 5, 4), (5, 7, 6))  # rows, source, target


def batch(rows: int, source: int, target: int) -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.randint(1, source + 1, (rows,))
    return torch.randint(9, (rows, source)), lengths, torch.randint(9, (rows, target))


def compare(model: Transformer, sizes: tuple[tuple[int, int, int], ...]) -> None:
    compiled = torch.compile(model, fullgraph=True, dynamic=len(sizes) > 1, backend="eager")
    for size in sizes:
        tensors = batch(*size)
        losses = [run(*tensors).square().sum() for run in (compiled, model)]
        gradients = [
            torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
            for loss in losses
        ]
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def by_kernel(q: Tensor, k: Tensor, v: Tensor, *, impl: str, **options: object) -> object:
    """Entmax attention by Triton's kernels, whatever was asked for."""
    return entmax_attention(q, k, v, impl="triton", **options)


def main() -> None:
    torch.manual_seed(0)
    compare(Transformer(SHAPE), SIZES)
    model = Transformer(SHAPE)
    with replace(model, partial(topk_attention, keep=2, impl="triton"), where="*.cross"):
        compare(model, SIZES[:1])
    # on a CPU the kernels are taken only where they are asked for by name
    attention.entmax_attention = by_kernel
    learned = TransformerConfig(**{**vars(SHAPE), "cross_attention": "entmax:learned"})
    compare(Transformer(learned), SIZES[:1])


if __name__ == "__main__":
    main()
