"""When to end a training: no model has got better for some time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from headwise_papers.models.rnn_stack import Seq2SeqStack
from headwise_papers.ops.relevance import Looked


@dataclass
class Patience:
    """Watches the accuracy of the normal seeds; training is over when none of them gets better.

    Looking goes through it, so nothing is looked at twice. As a recorder it keeps what it knows in
    the checkpoints; it must come after the one that looks.
    """

    look: Callable[[Seq2SeqStack], Iterator[Looked]]
    normal: int  # seeds that count, the first ones
    most: int  # evaluations without a better seed
    name: str = "patience"
    _best: Int[Tensor, " S"] = field(init=False, repr=False)  # words right; every look has as many
    _since: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self._best = torch.full((self.normal,), -1)

    def read(self, stack: Seq2SeqStack) -> Iterator[Looked]:
        """Look, and count what is right."""
        right_S = torch.zeros(self.normal, dtype=torch.long)
        for looked in self.look(stack):
            right_S += looked.right[: self.normal].sum(1).cpu()
            yield looked
        better = bool((right_S > self._best).any())
        self._since = 0 if better else self._since + 1
        self._best = torch.maximum(self._best, right_S)

    def over(self, step: int) -> bool:
        """Whether to end training."""
        return self._since >= self.most

    def __call__(self, step: int, model: object) -> None:
        """Nothing: `read` has seen it."""

    def tensors(self) -> dict[str, Tensor]:
        """What is known."""
        return {"best": self._best, "since": torch.tensor(self._since)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on after what `tensors` gave earlier."""
        self._best, self._since = tensors["best"], int(tensors["since"])
