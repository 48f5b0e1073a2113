"""Kernels compiled for an H200 on a machine that has none: what they need, or why they fail.

    python tests/ops/hopper.py

Launches are made as always, from CPU tensors, but stop after compiling. Prints a line a kernel: its
name, constants and first call, registers a thread, bytes spilled to memory by a thread, shared
memory. The interpreter, which other tests use, takes more than the compiler does. Runs in a process
of its own, in which TRITON_INTERPRET was not set when Triton was imported.
"""

import os
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction
from triton.runtime.driver import driver

import headwise.ops
from headwise.ops import _impl, entmax_attention, sparsemax_attention, topk_attention
from headwise.ops.guidance import FIRST, NEXT, Pattern, guidance_loss, guided_heads
from headwise.ops.row_sweep import row_sweep
from headwise.ops.scores import Scores
from headwise.ops.topk import topk_selected

PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
TARGET = GPUTarget("cuda", 90, 32)


class NoDevice:
    """Answers that Triton needs from a driver before a launch."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass
class Report:
    """Report of one line per kernel, printed by threads while other kernels are compiled."""

    pool: ThreadPoolExecutor
    call: str = ""  # that asks for the next kernels
    kernels: dict[int, Future[None]] = field(default_factory=dict)

    def add(self, kernel: Any, name: str, constants: dict[str, Any]) -> None:
        """Report on a kernel, unless it is known."""
        if id(kernel) not in self.kernels:
            about = f"{name} {constants} of {self.call}"
            self.kernels[id(kernel)] = self.pool.submit(_tell, about, kernel)


def _tell(about: str, kernel: Any) -> None:
    """Print registers and spilled bytes, as found by NVIDIA's assembler."""
    with TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(kernel.asm["ptx"])
        command = [str(PTXAS), "-v", "--gpu-name=sm_90a", str(source), "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.findall(r"Used (\d+) registers", said)[0]
    spilled = re.findall(r"(\d+) bytes spill stores", said)[0]
    needs = f"registers {registers} spilled {spilled} shared {kernel.metadata.shared}\n"
    print(about, needs, end="", flush=True)


def compile_instead_of_launching(report: Report) -> None:
    """Make every launch compile its kernel only, and report what it needs."""
    for path in sorted(Path(headwise.ops.__file__).parent.glob("*/triton.py")):
        import_module(f"headwise.ops.{path.parent.name}.triton")
    os.environ["TRITON_INTERPRET"] = "1"  # only now: kernels may be asked for on a CPU
    _impl.NOT_INTERPRETED = None  # nothing is interpreted
    driver.set_active(NoDevice())
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **given: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **given)
        constants = {name: x for name, x in given.items() if name.isupper()}
        report.add(kernel, f"{self.__module__} {self.__name__}", constants)
        return kernel

    JITFunction.run = compile_only


def backward(loss: Tensor) -> None:
    loss.sum().backward()


def statistics(q: Tensor, k: Tensor, **options: Any) -> None:
    """Compute all statistics, with a mass on keys and without."""
    keys = torch.ones(2, k.shape[2], dtype=torch.bool)
    aims: tuple[dict[str, Any], ...] = ({}, {"keys": keys, "offset": -1})
    for given in aims:
        rows = row_sweep(Scores(q, k, **options), **given, impl="triton")
        backward(rows.lse + rows.sum_squares)
        backward(row_sweep(Scores(q, k, **options), **given, impl="triton").entropy)


def guidance(q: Tensor, k: Tensor, **options: Any) -> None:
    """Compute the guidance loss, with sets of keys and without."""
    key_sets = torch.ones(1, 2, k.shape[2], dtype=torch.bool)
    for pattern, sets in ((FIRST, None), (Pattern(key_set=0), key_sets)):
        guided = guided_heads({1: NEXT, 2: pattern}, num_heads=4)
        backward(guidance_loss(q, k, guided, key_sets=sets, impl="triton", **options))


def top_k(q: Tensor, k: Tensor, **options: Any) -> None:
    backward(topk_attention(q, k, k, impl="triton", **options).out)


def selected(q: Tensor, k: Tensor, **options: Any) -> None:
    topk_selected(q, k, impl="triton", **options)


def entmax(q: Tensor, k: Tensor, **options: Any) -> None:
    backward(entmax_attention(q, k, k, impl="triton", **options).out)


def sparsemax(q: Tensor, k: Tensor, **options: Any) -> None:
    backward(sparsemax_attention(q, k, k, impl="triton", **options).out)


def learned(q: Tensor, k: Tensor, **options: Any) -> None:
    """Attend by entmax with one alpha per head that has a gradient."""
    alpha = torch.full((q.shape[1],), 1.5, requires_grad=True)
    backward(entmax_attention(q, k, k, alpha=alpha, impl="triton", **options).out)


class Calls(NamedTuple):
    """Ops that are called with every number of keys and all of these options."""

    ops: tuple[Callable[..., None], ...]
    n_keys: tuple[int, ...]
    options: tuple[dict[str, Any], ...]
    kinds: tuple[tuple[torch.dtype, int], ...]  # and with each dtype and width


bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
HALF = ((bf16, 64), (bf16, 128))
LESS_USUAL = ((fp16, 48), (fp32, 64), (fp32, 128))
SEEN: tuple[dict[str, Any], ...] = ({}, {"causal": True}, {"mask": "queries"})
PADDED: tuple[dict[str, Any], ...] = ({"mask": "keys"}, {"mask": "keys", "causal": True})
DROPPED: tuple[dict[str, Any], ...] = ({"dropout": 0.1}, {"dropout": 0.1, "mask": "queries"})
# Not all of everything: a kernel is compiled for a tile, by numbers of keys, and for each option.
CALLS = (
    # Rows in a tile, swept (by one kernel, if heads are narrow), and gathered.
    Calls((top_k,), (70, 300, 1100), SEEN, HALF),
    Calls((top_k,), (70, 300, 1100), ({}, {"mask": "queries"}), LESS_USUAL),
    Calls((top_k,), (30, 300), ({"keep": 64, "ties": "first"},), ((fp32, 64),)),
    Calls((top_k,), (300,), (
        {"keep": 32}, {"keep": 64}, {"keep": 64, "causal": True},
        {"keep": 64, "mask": "queries", "ties": "first"}, *DROPPED,
    ), HALF),
    Calls((top_k,), (300,), ({"ties": "first"}, {"keep": 16, "mask": "keys"}), HALF[:1]),
    Calls((top_k,), (1100,), (
        {"keep": 16, "dropout": 0.1}, {"keep": 16, "mask": "queries", "ties": "first"}, DROPPED[1],
    ), HALF),
    Calls((selected,), (300,), ({"keep": 16}, {"keep": 64}, {"keep": 64, "mask": "queries"}), HALF),
    # Resident keys, and in float32 streaming ones; then tiles for more keys.
    Calls((entmax, sparsemax, learned), (70,), SEEN, ((bf16, 64),)),
    Calls((entmax, sparsemax, learned), (70,), ({}, {"mask": "queries"}), LESS_USUAL),
    Calls((entmax,), (200, 300), SEEN, ((bf16, 64),)),
    Calls((sparsemax,), (300,), SEEN, HALF[:1]),
    Calls((sparsemax,), (1100,), SEEN, HALF[1:]),
    Calls((entmax,), (70, 200, 300, 1100), SEEN, ((bf16, 128),)),
    Calls((entmax, learned), (200, 300, 1100), DROPPED, HALF),
    Calls((statistics, guidance), (70,), SEEN, ((bf16, 64),)),
    Calls((statistics, guidance), (70,), PADDED, HALF),
    Calls((top_k,), (300, 1100), PADDED, HALF),
    Calls((statistics, guidance), (70,), ({}, {"mask": "queries"}), ((bf16, 128), *LESS_USUAL)),
)  # fmt: skip


def _mask(kind: str | None, n_keys: int) -> Tensor | None:
    """Return a mask that depends on queries, or on keys only."""
    shapes = {"queries": (65, n_keys), "keys": (n_keys,)}
    return None if kind is None else torch.ones(shapes[kind], dtype=torch.bool)


def main() -> None:
    with ThreadPoolExecutor(2) as pool:
        report = Report(pool)
        compile_instead_of_launching(report)
        for calls in CALLS:
            for (dtype, width), n_keys in product(calls.kinds, calls.n_keys):
                q = torch.randn(2, 4, 65, width, dtype=dtype, requires_grad=True)
                k = torch.randn(2, 2, n_keys, width, dtype=dtype, requires_grad=True)
                for options, op in product(calls.options, calls.ops):
                    report.call = f"{op.__name__} {dtype} {n_keys} keys {options}"
                    op(q, k, **options | {"mask": _mask(options.get("mask"), n_keys)})
    for assembled in report.kernels.values():
        assembled.result()  # raises what was raised there


if __name__ == "__main__":
    main()
