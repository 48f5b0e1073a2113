"""The mean of a loss over a whole training, which interruptions leave as it is."""

import torch
from torch import Tensor

__all__ = ["LossSoFar"]


class LossSoFar:
    """Means of a loss that is told batch after batch: of all, and of the last ones.

        average_n = average_(n-1) + (x_n - average_(n-1)) / n
        recent_n  = recent_(n-1) + (x_n - recent_(n-1)) / min(n, window)

    Given to `fit` as `extra_state=so_far.tensors` they stand in its checkpoints, and a training that was
    interrupted goes on as if it was not. Nothing waits for a GPU. Of several processes each means
    its own batches; those of the first are kept.

    >>> so_far = LossSoFar(window=2)
    >>> for loss in (4.0, 2.0, 0.0):
    ...     so_far.add(torch.tensor(loss))
    >>> so_far.average, so_far.recent
    (2.0, 1.5)

    Args:
        window: how many batches `recent` is about.
    """

    def __init__(self, *, window: int) -> None:
        self.window = max(window, 1)
        self._held_3 = torch.zeros(3)  # number of batches, mean of all, mean of the last

    def tensors(self) -> dict[str, Tensor]:
        """What has to be kept to go on; it may be filled in place."""
        return {"loss_so_far": self._held_3}

    @torch.no_grad()
    def add(self, loss: Tensor) -> None:
        """Count the loss of one more batch, a scalar."""
        if self._held_3.device != loss.device:  # the first time, when nothing is recorded yet
            self._held_3 = self._held_3.to(loss.device)
        held_3 = self._held_3
        number = held_3[0] + 1
        share_2 = torch.stack([number, number.clamp(max=self.window)]).reciprocal()
        held_3[1:] += (loss.float() - held_3[1:]) * share_2
        held_3[0] = number

    @property
    def average(self) -> float:
        """Of all batches so far."""
        return self._held_3[1].item()

    @property
    def recent(self) -> float:
        """Of about the last `window` batches, the newest weighing most."""
        return self._held_3[2].item()
