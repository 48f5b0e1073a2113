"""A memory meter: the extra memory that all statistics of one long attention call take.

    python tests/ops/memory.py softmax 16384

Prints one JSON object. Runs in a process of its own, because the meter only goes up.
"""

import json
import resource
import sys
import time

import torch

from headwise.ops import Attended, softmax_attention, topk_attention

OPS = {"softmax": softmax_attention, "topk": topk_attention}


def peak_mb() -> float:
    """The most memory this process ever held (Linux counts kilobytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def read_all(attended: Attended) -> None:
    """Every statistic there is; `weights` is not one of them."""
    n_keys = attended.scores.shape[3]
    _ = attended.lse, attended.peak, attended.peak_key, attended.entropy, attended.sum_squares
    _ = attended.mass(offset=-1), attended.mass(keys=torch.arange(n_keys)[None] % 2 == 0)


def main(name: str, length: int) -> None:
    torch.set_num_threads(1)  # threads waiting for each other are slow on a busy machine
    q, k, v = (torch.randn(1, 8, length, 64) for _ in range(3))
    warm = slice(0, 64)
    with torch.no_grad():
        read_all(OPS[name](q[:, :, warm], k[:, :, warm], v[:, :, warm]))
        before, start = peak_mb(), time.perf_counter()
        read_all(OPS[name](q, k, v))
    extra, seconds = peak_mb() - before, time.perf_counter() - start
    print(json.dumps({"op": name, "length": length, "extra_mb": extra, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
