"""A memory meter: the extra memory that one long attention call takes.

    python tests/ops/memory.py softmax 16384 statistics

Prints one JSON object. Runs in a process of its own, because the meter only goes up.
"""

import json
import resource
import sys
import time

import torch
from torch import Tensor

from headwise.ops import Attended, softmax_attention, sparsemax_attention, topk_attention

OPS = {"softmax": softmax_attention, "topk": topk_attention, "sparsemax": sparsemax_attention}


def peak_mb() -> float:
    """The most memory this process ever held (Linux counts kilobytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def statistics(attended: Attended) -> None:
    """Every statistic there is; `weights` is not one of them."""
    n_keys = attended.scores.shape[3]
    with torch.no_grad():
        _ = attended.lse, attended.peak, attended.peak_key, attended.entropy, attended.sum_squares
        _ = attended.mass(offset=-1), attended.mass(keys=torch.arange(n_keys)[None] % 2 == 0)


def gradients(attended: Attended) -> None:
    """The gradient of a few statistics, not all."""
    (attended.peak + attended.entropy + attended.mass(offset=-1)).sum().backward()


def output(attended: Attended) -> None:
    """Forward and backward of the op itself."""
    attended.out.sum().backward()


USES = {use.__name__: use for use in (statistics, gradients, output)}


def main(op: str, length: int, use: str) -> None:
    torch.set_num_threads(1)  # threads waiting for each other are slow on a busy machine
    q, k, v = (torch.randn(1, 8, length, 64) for _ in range(3))

    def run(*tensors: Tensor) -> None:
        USES[use](OPS[op](*(x.requires_grad_(use != "statistics") for x in tensors)))

    run(*(x[:, :, :64].clone() for x in (q, k, v)))
    before, start = peak_mb(), time.perf_counter()
    run(q, k, v)
    extra, seconds = peak_mb() - before, time.perf_counter() - start
    print(json.dumps({"extra_mb": extra, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
