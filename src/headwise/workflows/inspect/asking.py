"""What a model predicts, asked word by word: the rows and positions that importance starts from.

A translator and a language model are asked for the next word at every step; a model of hidden words
for a word that is hidden, one at a time; a classifier for its class.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.workflows.inspect.subject import Output, Predicts, Prepared, Subject

__all__ = ["Asked", "ask"]

WHOLE = 0  # the position that stands for the whole text


@dataclass(frozen=True, eq=False)
class Asked:
    """Rows of inputs, and which of their positions are asked for a prediction.

    Args:
        inputs: each with an axis of rows in front.
        item: (N,), the sentence of each row, by its place in the batch.
        at: (M, 2) of (row, position); the position is 0 where the answer is of the whole text.
        steps: how many predictions each sentence of the batch has in all, asked or not.
    """

    inputs: Mapping[str, Tensor]
    item: Tensor
    at: Tensor
    steps: Sequence[int]

    def parts(self, rows: int) -> Iterator["Asked"]:
        """The same in groups of so many rows, but for those without a question."""
        for start in range(0, len(self.item), rows):
            here_M = (self.at[:, 0] >= start) & (self.at[:, 0] < start + rows)
            if bool(here_M.any()):
                at_M2 = self.at[here_M] - self.at.new_tensor([start, 0])
                inputs = {name: x[start : start + rows] for name, x in self.inputs.items()}
                yield Asked(inputs, self.item[start : start + rows], at_M2, self.steps)

    def values(self, output: Output) -> Tensor:
        """What the model says where it is asked, (M, V)."""
        row_M, position_M = self.at.unbind(dim=1)
        values = output.values
        return values[row_M] if values.dim() == 2 else values[row_M, position_M]

    def taken(self, rows: Tensor) -> tuple["Asked", Tensor]:
        """Some rows, which may repeat, with their questions; and which ones of here those are."""
        place_K, question_K = (rows[:, None] == self.at[:, 0]).nonzero().unbind(dim=1)
        at_K2 = torch.stack([place_K, self.at[question_K, 1]], dim=1)
        inputs = {name: tensor[rows] for name, tensor in self.inputs.items()}
        return Asked(inputs, self.item[rows], at_K2, self.steps), question_K


def ask(
    subject: Subject,
    prepared: Prepared,
    predicts: Predicts,
    *,
    numbers: Sequence[int],
    steps: int | None = None,
    seed: int = 0,
) -> Asked | None:
    """What to ask of a batch; None where it has no word.

    Args:
        subject: whose mask hides words.
        prepared: the batch.
        predicts: what the model's largest score means.
        numbers: of the sentences in their corpus; with the seed they decide which steps are taken.
        steps: of each sentence, at most so many, drawn at random; None takes all.
        seed: of that draw.
    """
    of_BT = prepared.words[prepared.last].of
    places = [row.nonzero()[:, 0].tolist() for row in of_BT.cpu() >= 0]
    if not any(places):
        return None
    if predicts == "class":
        places = [[WHOLE] if row else [] for row in places]
    chosen = [
        _some(row, steps, random.Random(f"{seed} {number}"))
        for row, number in zip(places, numbers, strict=True)
    ]
    pairs = [(item, place) for item, row in enumerate(chosen) for place in row]
    at_M2 = torch.tensor(pairs, device=of_BT.device)
    everyone_N = torch.arange(len(of_BT), device=of_BT.device)
    asked = Asked(prepared.inputs, everyone_N, at_M2, [len(row) for row in places])
    return _masked(asked, subject.mask_id) if predicts == "masked" else asked


def _some(places: list[int], steps: int | None, draw: random.Random) -> list[int]:
    if steps is None or len(places) <= steps:
        return places
    return sorted(draw.sample(places, steps))


def _masked(asked: Asked, mask_id: int | None) -> Asked:
    """A row for each word, which is hidden there."""
    assert mask_id is not None
    row_M, position_M = asked.at.unbind(dim=1)
    own_M = torch.arange(len(row_M), device=row_M.device)
    inputs = {name: tensor[row_M] for name, tensor in asked.inputs.items()}
    inputs["input_ids"][own_M, position_M] = mask_id
    return Asked(inputs, asked.item[row_M], torch.stack([own_M, position_M], dim=1), asked.steps)
