"""Row statistics and the guidance loss in one compiled graph: on a GPU, or interpreted.

    python tests/ops/compiling.py

Runs in a process of its own, as what checks shapes in tests cannot be compiled.
"""

import os

import torch
from torch import Tensor

from headwise.ops.guidance import NEXT, guidance_loss, guided_heads
from headwise.ops.row_sweep import row_sweep
from headwise.ops.scores import Scores

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported, which is on first use
LENGTHS = torch.tensor([7, 4], device=DEVICE)
GUIDED = guided_heads({1: NEXT}, num_heads=2, device=DEVICE)


def statistics(q: Tensor, k: Tensor) -> Tensor:
    rows = row_sweep(Scores(q, k, lengths=LENGTHS), offset=1, impl="triton")
    assert rows.mass_at is not None
    return (rows.entropy + rows.mass_at).sum()


def guidance(q: Tensor, k: Tensor) -> Tensor:
    options = {"lengths": LENGTHS, "reduction": "mean", "impl": "triton"}
    return guidance_loss(q, k, GUIDED, **options).sum()


def main() -> None:
    q = torch.randn(2, 2, 5, 8, device=DEVICE, requires_grad=True)
    k = torch.randn(2, 1, 7, 8, device=DEVICE, requires_grad=True)
    for loss in (statistics, guidance):
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        got = torch.autograd.grad(compiled(q, k), (q, k))
        torch.testing.assert_close(got, torch.autograd.grad(loss(q, k), (q, k)))


if __name__ == "__main__":
    main()
