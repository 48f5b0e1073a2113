"""Files of a training, written while it goes on."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

__all__ = ["Writer", "copied"]


class Writer:
    """Does one piece of writing after the other on a thread, at most one behind.

    Disks are slow, and what is written is flushed to them. A GPU trains on meanwhile; on a CPU,
    where a thread would take the cores from the training, writing is done at once. A piece that
    failed raises when the next one comes, or at the end.

    Args:
        device: on which the model is trained.
    """

    def __init__(self, device: torch.device) -> None:
        self._thread = ThreadPoolExecutor(1, "writing") if device.type == "cuda" else None
        self._last: Future[None] | None = None

    def __call__(self, write: Callable[[], None]) -> None:
        """Write, some time soon; what is written must not change until then, see `copied`."""
        if self._thread is None:
            write()
            return
        self.wait()
        self._last = self._thread.submit(write)

    def wait(self) -> None:
        """Until all is written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As they are now: those on a GPU on the CPU; those there already are written at once."""
    return {
        name: tensor.detach().to("cpu", copy=True) if tensor.is_cuda else tensor
        for name, tensor in tensors.items()
    }
