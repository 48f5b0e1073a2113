"""Stacks whose heads are guided: each model is drawn to where it should look."""

from collections.abc import Callable

from torch import Tensor

from headwise.guidance import Guidance
from headwise_papers.models.rnn_stack import Seq2SeqStack

Batch = tuple[Tensor, ...]


class GuidedStack:
    """A stack with the guidance of its heads in its loss, as `train_stack` wants it.

    Args:
        stack: the models.
        guidance: of this stack.
    """

    def __init__(self, stack: Seq2SeqStack, guidance: Guidance) -> None:
        self.stack, self.guidance = stack, guidance
        self.weights = stack.weights

    @property
    def seeds(self) -> int:
        """How many models there are."""
        return self.stack.seeds

    def loss(self, *batch: Tensor) -> Tensor:
        """Each model's cross-entropy, (S,), with the gradient of its guidance loss too.

        The models are one batch to the guidance, whose loss is the mean over them. It is added to
        the loss of each, so that their sum has every model's own guidance loss in it once.
        """
        own_S = self.stack.loss(*batch)
        guiding = self.guidance.loss()
        return own_S + (guiding - guiding.detach())  # losses stay comparable with unguided ones


def telling(guidance: Guidance, batches: Callable[[int], Batch]) -> Callable[[int], Batch]:
    """The same batches; guidance is told which update each is for, as alpha falls."""

    def batch(update: int) -> Batch:
        guidance.at_step(update)
        return batches(update)

    return batch
