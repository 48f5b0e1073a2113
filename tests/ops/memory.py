"""A memory meter: the extra memory that one long attention call takes.

    python tests/ops/memory.py softmax 16384 statistics

Prints one JSON object. Runs in a process of its own, in which nothing else takes memory.
"""

import json
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from headwise.ops import (
    Attended,
    entmax_attention,
    softmax_attention,
    sparsemax_attention,
    topk_attention,
)
from headwise.ops.guidance import FIRST, NEXT, PREVIOUS, Pattern, guidance_rows, guided_heads

OPS = {
    "softmax": softmax_attention,
    "topk": topk_attention,
    "sparsemax": sparsemax_attention,
    "entmax": entmax_attention,
}


def memory_mb(field: str) -> float:
    """Read VmRSS, the memory of this process, or VmHWM, its peak since `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024  # Linux counts kilobytes


def reset_peak() -> None:
    """Reset the peak; if that is not permitted, earlier peaks count as well."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def statistics(attended: Attended) -> None:
    """Read every statistic; `weights` is none."""
    n_keys = attended.scores.shape[3]
    with torch.no_grad():
        _ = attended.peak, attended.peak_key, attended.entropy, attended.sum_squares
        _ = attended.lse if attended.exponential else None
        _ = attended.mass(offset=-1), attended.mass(keys=torch.arange(n_keys)[None] % 2 == 0)


def gradients(attended: Attended) -> None:
    """Compute the gradient of a few statistics."""
    (attended.peak + attended.entropy + attended.mass(offset=-1)).sum().backward()


def output(attended: Attended) -> None:
    """Run the op forward and backward."""
    attended.out.sum().backward()


def guidance(attended: Attended) -> None:
    """Compute the guidance loss of half the heads, and its gradient."""
    guided = guided_heads({0: NEXT, 1: PREVIOUS, 2: FIRST, 3: Pattern(key_set=0)}, num_heads=8)
    key_sets = torch.arange(attended.scores.shape[3])[None, None] % 5 == 0
    guidance_rows(attended.scores, guided, key_sets=key_sets, impl="torch").loss.sum().backward()


USES = {use.__name__: use for use in (statistics, gradients, output, guidance)}


def main(op: str, length: int, use: str) -> None:
    torch.set_num_threads(1)  # threads waiting for each other are slow on a busy machine
    q, k, v = (torch.randn(1, 8, length, 64) for _ in range(3))

    def run(*tensors: Tensor) -> None:
        USES[use](OPS[op](*(x.requires_grad_(use != "statistics") for x in tensors)))

    run(*(x[:, :, :64].clone() for x in (q, k, v)))
    reset_peak()
    before, start = memory_mb("VmRSS"), time.perf_counter()
    run(q, k, v)
    extra, seconds = memory_mb("VmHWM") - before, time.perf_counter() - start
    print(json.dumps({"extra_mb": extra, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
