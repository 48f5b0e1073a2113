"""Choice of the implementation of an op."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal, ParamSpec, TypeVar, cast, get_args

import torch
from torch import Tensor
from torch.nn import Parameter

P = ParamSpec("P")
R = TypeVar("R")

Number = float | int  # beartype, unlike pyright, does not take an int for a float
Impl = Literal["auto", "reference", "torch", "triton"]
Chosen = Literal["reference", "torch", "triton"]
HAS_TRITON = find_spec("triton") is not None  # found once: a compiled call cannot search
NOT_INTERPRETED = torch.bfloat16  # Triton's interpreter multiplies the bit patterns of its numbers


def choose(impl: Impl, *, triton_obstacle: str | None, torch_obstacle: str | None = None) -> Chosen:
    """Choose an implementation.

    An obstacle says why that implementation cannot run this call, or is None. "auto" takes the
    first one without an obstacle: Triton, then PyTorch's fused or blocked path, then the reference.
    An explicit choice never falls back.
    """
    if impl not in get_args(Impl):
        raise ValueError(f"impl must be one of {', '.join(get_args(Impl))}, got {impl!r}.")
    obstacles: dict[Chosen, str | None] = {
        "triton": triton_obstacle,
        "torch": torch_obstacle,
        "reference": None,
    }
    if impl == "auto":
        return next(name for name, obstacle in obstacles.items() if obstacle is None)
    if obstacles[impl]:
        raise ValueError(f"impl={impl!r} cannot run this call: {obstacles[impl]}. Use 'auto'.")
    return impl


def kernel_obstacle(tensor: Tensor, impl: Impl) -> str | None:
    """Return why no Triton kernel can run on a tensor, or None.

    With TRITON_INTERPRET=1 kernels run on a CPU, for tests, if impl="triton".
    """
    interpreting = os.environ.get("TRITON_INTERPRET") == "1"
    if not HAS_TRITON:
        return "Triton is not installed"
    if tensor.device.type != "cuda" and not (interpreting and impl == "triton"):
        return f"it needs a CUDA device, and the tensors are on {tensor.device.type}"
    if tensor.dtype == torch.float64:
        return "its kernels compute in float32, and the tensors are float64"
    if interpreting and tensor.dtype == NOT_INTERPRETED:
        return "Triton's interpreter cannot multiply bfloat16; give it float16 or float32"
    return None


def readable(*tensors: Tensor) -> bool:
    """Return whether code may depend on the numbers that tensors hold.

    It may not on a GPU, where the host would wait for them; nor in a graph, which is run with other
    numbers too; nor under torch.func and with fake tensors, which may hold none.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # pyright: ignore
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore
        return False
    return all(type(x) in (Tensor, Parameter) and x.device.type == "cpu" for x in tensors)


def outside_compilation(call: Callable[P, R]) -> Callable[P, R]:
    """Exclude a function from torch.compile, which would recompile loops that depend on data."""
    return cast(Callable[P, R], torch.compiler.disable(call))
