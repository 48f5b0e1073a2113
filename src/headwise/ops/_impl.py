"""Choosing between an operation's implementations, in one place and out loud."""

from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar, cast, get_args

import torch

P = ParamSpec("P")
R = TypeVar("R")

Number = float | int  # beartype, unlike pyright, does not take an int for a float
Impl = Literal["auto", "reference", "torch", "triton"]
Chosen = Literal["reference", "torch", "triton"]


def choose(impl: Impl, *, triton_obstacle: str | None, torch_obstacle: str | None = None) -> Chosen:
    """Pick an implementation.

    An obstacle says why that implementation cannot run this call, or is None. "auto" quietly
    avoids obstacles (Triton first, then PyTorch's fused or blocked path, then the reference);
    an explicit choice never does.
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


def outside_compilation(call: Callable[P, R]) -> Callable[P, R]:
    """Never part of a compiled graph: loops that depend on data would be compiled at every turn."""
    return cast(Callable[P, R], torch.compiler.disable(call))
