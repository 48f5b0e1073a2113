"""Which kernels a call of each op spends its time in, forward and backward, by torch's profiler.

    python -m benchmarks.kernel_times                  # half a minute on a GPU
    python -m benchmarks.kernel_times topk 2048 4096   # one op, some lengths

16,384 tokens, 16 heads of width 64, bfloat16, q, k and v from N(0, 1), keep 8. A profiler slows the
host, not the device: its kernels' times are right, and what lies between them is not shown.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from benchmarks import SEED, Parser
from headwise.ops import entmax_attention, sparsemax_attention, topk_attention
from headwise.ops.guidance import FIRST, NEXT, guidance_loss, guided_heads
from headwise.ops.row_sweep import row_sweep
from headwise.ops.scores import Scores

OPS = ("sdpa", "topk", "entmax", "sparsemax", "guidance", "statistics")
TOKENS, HEADS, WIDTH = 16384, 16, 64
CALLS = 10
SHOWN = 10  # kernels of an op
SHORTEST = 1.0  # microseconds a call of what is shown


def ops(leaves: list[Tensor], dout: Tensor) -> dict[str, Callable[[], object]]:
    """A forward and a backward pass of each of OPS."""
    q, k, v = leaves
    heads = {head: NEXT if head % 2 else FIRST for head in range(HEADS // 2)}
    guided = guided_heads(heads, num_heads=HEADS).to(q.device)

    def attend(out: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(out(), leaves, dout)

    def of_scores(loss: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(loss().sum(), leaves[:2])

    return {
        "sdpa": attend(lambda: scaled_dot_product_attention(q, k, v)),
        "topk": attend(lambda: topk_attention(q, k, v, impl="triton").out),
        "entmax": attend(lambda: entmax_attention(q, k, v, impl="triton").out),
        "sparsemax": attend(lambda: sparsemax_attention(q, k, v, impl="triton").out),
        "guidance": of_scores(lambda: guidance_loss(q, k, guided, impl="triton")),
        "statistics": of_scores(lambda: row_sweep(Scores(q, k), impl="triton").entropy),
    }


def kernels(call: Callable[[], object]) -> dict[str, float]:
    """Microseconds of a call by kernel, the longest first."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    times = {row.key: row.self_device_time_total / CALLS for row in seen.key_averages()}
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def asked(
    prog: str, names: Sequence[str], lengths: list[int], arguments: Sequence[str] | None
) -> Namespace:
    """The op, or None for all of these names, and the lengths of a command that needs a GPU."""
    parser = Parser(prog=prog)
    parser.add_argument("op", nargs="?", help=f"{', '.join(names)} (all)")
    parser.add_argument("lengths", nargs="*", type=int, default=lengths)
    given = parser.parse_args(arguments)
    if given.op not in (None, *names):
        parser.error(f"there is no op {given.op!r}; choose from {', '.join(names)}.")
    if strange := [n for n in given.lengths if not 1 <= n <= TOKENS]:
        parser.error(f"lengths must be from 1 to {TOKENS:,}, got {strange[0]:,}.")
    if not torch.cuda.is_available():
        parser.error("there is no GPU; kernels are timed on one.")
    return given


def drawn(length: int) -> tuple[list[Tensor], Tensor]:
    """q, k and v that want gradients, and the gradient of an output; the same in every process."""
    torch.manual_seed(SEED)
    shape = TOKENS // length, HEADS, length, WIDTH
    *qkv, dout = torch.randn(4, *shape, device="cuda", dtype=torch.bfloat16)
    return [x.clone().requires_grad_() for x in qkv], dout


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line an op and length, and one a kernel."""
    given = asked("python -m benchmarks.kernel_times", OPS, [512, 2048, 4096, 16384], arguments)
    for length in given.lengths:
        for name, call in ops(*drawn(length)).items():
            if given.op in (None, name):
                times = kernels(call)
                print(f"{name} {length:,} keys: {sum(times.values()) / 1000:.3f} ms")
                for kernel, microseconds in list(times.items())[:SHOWN]:
                    if microseconds >= SHORTEST:
                        print(f"  {microseconds:7.0f} us  {kernel[:60]}")


if __name__ == "__main__":
    main()
