"""Kernels that the fuzzer's cases would compile on a GPU: launches are recorded, not made."""

from collections import Counter, defaultdict
from collections.abc import Hashable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops import fuzz_checks, fuzz_inputs, fuzz_sweeps
from tests.ops.fuzz_cases import CHECKS
from tests.ops.fuzz_variants import MOST_VARIANTS, VARIANTS, variant_of

interpreter = pytest.importorskip("triton.runtime.interpreter", reason="Triton is not installed")
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled where there is a GPU"
)
CASES = 4  # of a variant


def compiled_for(kernel: Any, name: str, given: Any) -> Hashable:
    """Return what Triton specialises for in an argument."""
    if isinstance(given, Tensor):
        return str(given.dtype), given.data_ptr() % 16 == 0
    if isinstance(given, tuple):
        return tuple(compiled_for(kernel, name, one) for one in given)
    if name not in kernel.arg_names or kernel.fn.__annotations__.get(name):
        return given  # a constant, or how to compile
    if isinstance(given, float) or name in kernel.kwargs["do_not_specialize"]:
        return "any"
    return given if given is None or given == 1 else ("int", given % 16 == 0)


@pytest.fixture
def launches(monkeypatch) -> set[tuple[str, Hashable]]:
    """Record requested kernels, and what would be compiled for them."""
    noted = set()

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **given: Any) -> None:
        given |= dict(zip(self.arg_names, args, strict=False))
        key = tuple(sorted((name, compiled_for(self, name, x)) for name, x in given.items()))
        noted.add((f"{self.fn.__module__}.{self.fn.__name__}", key))

    monkeypatch.setattr(interpreter.InterpretedFunction, "run", note)
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        make = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, make=make, **b: make(*a, **b).zero_())
    for module in (fuzz_checks, fuzz_sweeps):
        monkeypatch.setattr(module, "poisoned_memory", nullcontext)
    return noted


@pytest.fixture
def many_keys(monkeypatch) -> None:
    """Use key counts as on a GPU but few queries, because definitions are computed."""
    draw = fuzz_inputs._draw_sizes

    def sizes(*given: Any, small: bool) -> fuzz_inputs.Sizes:
        drawn = draw(*given, small=False)
        return drawn._replace(batch=1, n_queries=min(drawn.n_queries, 3))

    monkeypatch.setattr(fuzz_inputs, "_draw_sizes", sizes)


@interpreted
@pytest.mark.parametrize(
    "op",
    [
        pytest.param(op, marks=() if op in ("topk", "entmax") else pytest.mark.slow)
        for op in VARIANTS
    ],
)
def test_kernels_are_compiled_for_variants_and_not_for_sizes(launches, many_keys, op):
    n_variants, every = len(VARIANTS[op]), defaultdict(set)
    for number, variant in enumerate(VARIANTS[op]):
        launches.clear()
        for seed in range(number, CASES * n_variants, n_variants):
            assert variant_of(op, seed)[1] == variant
            CHECKS[op](fuzz_inputs.draw_case(op, seed, "cpu"))
        of_variant = Counter(kernel for kernel, _ in launches)
        assert of_variant and max(of_variant.values()) <= 2, variant
        for kernel, constants in launches:
            every[kernel].add((variant.dtype, constants))
    assert max(map(len, every.values())) <= MOST_VARIANTS
