"""Kernels compiled for an H200 on a machine that has none: what they need, or why they fail.

    python tests/ops/hopper.py

Launches are made as always, from CPU tensors, but stop after compiling. Prints a line a kernel: its
name, registers a thread, bytes spilled to memory by a thread, shared memory. The interpreter, which
other tests use, takes more than the compiler does. Runs in a process of its own, in which
TRITON_INTERPRET was not set when Triton was imported.
"""

import os
import re
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction
from triton.runtime.driver import driver

import headwise.ops
from headwise.ops import entmax_attention, topk_attention
from headwise.ops.guidance import FIRST, NEXT, Pattern, guidance_loss, guided_heads
from headwise.ops.row_sweep import row_sweep
from headwise.ops.scores import Scores

PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
TARGET = GPUTarget("cuda", 90, 32)


class NoDevice:
    """What Triton asks of a driver before it launches anything."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_instead_of_launching() -> None:
    """From here on, launching a kernel only compiles it, and says what it needs."""
    for path in sorted(Path(headwise.ops.__file__).parent.glob("*/triton.py")):
        import_module(f"headwise.ops.{path.parent.name}.triton")
    os.environ["TRITON_INTERPRET"] = "1"  # only now: kernels may be asked for on a CPU
    driver.set_active(NoDevice())
    run, seen = JITFunction.run, set[int]()

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **given: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **given)
        if id(kernel) not in seen:
            seen.add(id(kernel))
            constants = {name: x for name, x in given.items() if name.isupper()}
            print(self.__module__, self.__name__, constants, needs(kernel), flush=True)
        return kernel

    JITFunction.run = compile_only


def needs(kernel: Any) -> str:
    """Registers and spilled bytes, by NVIDIA's assembler."""
    with TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(kernel.asm["ptx"])
        command = [str(PTXAS), "-v", "--gpu-name=sm_90a", str(source), "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.findall(r"Used (\d+) registers", said)[0]
    spilled = re.findall(r"(\d+) bytes spill stores", said)[0]
    return f"registers {registers} spilled {spilled} shared {kernel.metadata.shared}"


def backward(loss: Tensor) -> None:
    loss.sum().backward()


def statistics(q: Tensor, k: Tensor, **options: Any) -> None:
    """All of them, with a mass on keys and without."""
    keys = torch.ones(2, k.shape[2], dtype=torch.bool)
    for given in ({}, {"keys": keys, "offset": -1}):
        rows = row_sweep(Scores(q, k, **options), **given, impl="triton")
        backward(rows.lse + rows.sum_squares)
        backward(row_sweep(Scores(q, k, **options), **given, impl="triton").entropy)


def guidance(q: Tensor, k: Tensor, **options: Any) -> None:
    """With sets of keys and without."""
    key_sets = torch.ones(1, 2, k.shape[2], dtype=torch.bool)
    for pattern, sets in ((FIRST, None), (Pattern(key_set=0), key_sets)):
        guided = guided_heads({1: NEXT, 2: pattern}, num_heads=4)
        backward(guidance_loss(q, k, guided, key_sets=sets, impl="triton", **options))


def top_k(q: Tensor, k: Tensor, **options: Any) -> None:
    """Short rows and long ones."""
    kernels = import_module("headwise.ops.topk.triton")
    usual = kernels.GATHER_KEYS
    for kernels.GATHER_KEYS in (1, 10**9):
        backward(topk_attention(q, k, k, impl="triton", **options).out)
    kernels.GATHER_KEYS = usual


def entmax(q: Tensor, k: Tensor, **options: Any) -> None:
    """Resident keys and, of 32-bit numbers, streaming ones."""
    for alpha in (1.25, 1.5, 2.0):
        backward(entmax_attention(q, k, k, alpha=alpha, impl="triton", **options).out)


USES: list[Callable[..., None]] = [statistics, guidance, top_k, entmax]


def main() -> None:
    compile_instead_of_launching()
    mask = torch.ones(65, 70, dtype=torch.bool)
    kinds = ((torch.bfloat16, 64), (torch.float16, 48), (torch.float32, 64), (torch.float32, 128))
    for dtype, width in kinds:
        q = torch.randn(2, 4, 65, width, dtype=dtype, requires_grad=True)
        k = torch.randn(2, 2, 70, width, dtype=dtype, requires_grad=True)
        for options in ({}, {"causal": True}, {"mask": mask}):
            for use in USES:
                use(q, k, **options)


if __name__ == "__main__":
    main()
