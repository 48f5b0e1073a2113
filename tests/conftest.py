"""What every test starts from: the same random numbers, one thread, checking."""

import gc
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor

# Tensors here are so small that a second thread only costs, in commands that tests start as well.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
# Some virtual machines announce AMX and do not say how large its tiles are; products in bfloat16
# then die of an illegal instruction. torch reads this at the first of them.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported: kernels run on the CPU

# While jaxtyping's hook imports a module of headwise, Python looks for the compiled files of every
# module under names of the hook and compiles what it does not find; what is here already it skips.
for heavy in ("torch._dynamo", "transformers.modeling_utils", "matplotlib.pyplot", "triton"):
    with suppress(ImportError):
        importlib.import_module(heavy)


def _round_products_once() -> None:
    """Let Triton's interpreter add products in float64 and round once.

    NumPy's float32 products depend on the processor and on the shape of a tile, so that equal keys
    get unequal scores on some machines.
    """
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain = InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        if a.data.dtype != "float32" or d.data.dtype != "float32":
            return plain(self, a, b, d, *options)
        product = a.data.astype("float64") @ b.data.astype("float64")
        return TensorHandle(product.astype("float32") + d.data, d.dtype.scalar)

    InterpreterBuilder.create_dot = create_dot


if os.environ.get("TRITON_INTERPRET") == "1":
    with suppress(ImportError):
        _round_products_once()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What collection imports stays, so no time is spent on looking for garbage among it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show tables whose cells tests recorded, whichever process ran them."""
    tables: dict[str, dict[str, dict[str, str]]] = {}
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)]
    cells = [value for report in reports for key, value in report.user_properties if key == "cell"]
    for title, row, column, text in cells:
        tables.setdefault(title, {}).setdefault(row, {})[column] = text
    for title, rows in tables.items():
        columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
        terminalreporter.section(title)
        wide = max(map(len, rows)) + 1
        terminalreporter.line(" " * wide + "".join(f"{column:>14}" for column in columns))
        for row, texts in rows.items():
            line = "".join(f"{texts.get(column, '-'):>14}" for column in columns)
            terminalreporter.line(f"{row:{wide}}{line}")


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Every test draws the same numbers, whichever tests ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """No shape checking by jaxtyping: what users meet, and the messages they see, are our own."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN, so that reading what was never written shows."""

    def poison(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: object, **options: object) -> Tensor:
            fresh = make(*args, **options)
            return fresh.fill_(torch.nan) if fresh.is_floating_point() else fresh

        return made

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poison(getattr(owner, name)))


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished demo with tiny settings; read it, do not write to it."""
    from tests.papers.recipes.small_demo import SMALL, quietly

    folder = tmp_path_factory.mktemp("demo") / "run"
    quietly(SMALL, folder)
    return folder


@pytest.fixture(scope="session")
def small_translation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small translator in pieces, trained; read it, do not write to it."""
    from tests.papers.recipes.small_translation import quietly, small_config

    folder = tmp_path_factory.mktemp("translation")
    quietly(small_config(folder), folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Where real corpora lie, if the machine has them."""
    named = os.environ.get("HEADWISE_DATA")
    if not named:
        pytest.skip("HEADWISE_DATA names no folder of corpora")
    return Path(named)
