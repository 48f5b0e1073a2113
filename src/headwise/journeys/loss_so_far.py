"""The mean of a loss over a whole training, which interruptions leave as it is."""

from types import TracebackType

import torch
from torch import Tensor, nn

__all__ = ["LossSoFar"]

BUFFER = "loss_so_far"  # number of batches, mean of all, mean of about the last `window`


class LossSoFar:
    """Means of a loss that is told batch after batch: of all, and of the last ones.

        average_n = average_(n-1) + (x_n - average_(n-1)) / n
        recent_n  = recent_(n-1) + (x_n - recent_(n-1)) / min(n, window)

    Inside a `with` block they are a buffer of the model, so that they stand in checkpoints, and a
    training that was interrupted goes on as if it was not. Nothing waits for a GPU. Of several
    processes each means its own batches.

    >>> model = nn.Linear(1, 1)
    >>> with LossSoFar(model, window=2) as so_far:
    ...     for loss in (4.0, 2.0, 0.0):
    ...         so_far.add(torch.tensor(loss))
    ...     print(so_far.average, so_far.recent)
    2.0 1.5

    Args:
        model: that is trained.
        window: how many batches `recent` is about.
    """

    def __init__(self, model: nn.Module, *, window: int) -> None:
        self.model, self.window = model, max(window, 1)

    def __enter__(self) -> "LossSoFar":
        self.model.register_buffer(BUFFER, torch.zeros(3))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        delattr(self.model, BUFFER)

    @torch.no_grad()
    def add(self, loss: Tensor) -> None:
        """Count the loss of one more batch, a scalar."""
        held_3 = self.model.get_buffer(BUFFER)
        number = held_3[0] + 1
        share_2 = torch.stack([number, number.clamp(max=self.window)]).reciprocal()
        held_3[1:] += (loss.float() - held_3[1:]) * share_2
        held_3[0] = number

    @property
    def average(self) -> float:
        """Of all batches so far."""
        return self.model.get_buffer(BUFFER)[1].item()

    @property
    def recent(self) -> float:
        """Of about the last `window` batches, the newest weighing most."""
        return self.model.get_buffer(BUFFER)[2].item()
