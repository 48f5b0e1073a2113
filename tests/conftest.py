"""What every test starts from: the same random numbers, two threads, checking."""

from collections.abc import Callable, Iterator

import jaxtyping
import pytest
import torch
from torch import Tensor

torch.set_num_threads(2)


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
