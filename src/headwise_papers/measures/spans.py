"""Spans of tags, and how many of them were found: precision, recall and F1 as seqeval counts them.

A span is found if its type, first and last word are right. Tags need not be well formed: as in
conlleval and in seqeval's default mode, I-PER after O or after another type starts a span too.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Span", "SpanScores", "span_counts", "span_f1", "span_scores", "spans"]


class Span(NamedTuple):
    """Words from `start` to before `end` that are one entity."""

    kind: str
    start: int
    end: int


class SpanScores(NamedTuple):
    """Micro average over the spans of all types, as in seqeval; 0 for 0/0."""

    precision: float
    recall: float
    f1: float


def spans(tags: Sequence[str]) -> list[Span]:
    """List the spans of a sentence in order.

    >>> spans(["B-PER", "I-PER", "O", "I-LOC", "I-ORG", "B-ORG"])[2:]
    [Span(kind='ORG', start=4, end=5), Span(kind='ORG', start=5, end=6)]
    """
    found: list[Span] = []
    for place, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if prefix not in ("B", "I", "O") or (prefix == "O") == bool(kind):
            raise ValueError(f"A tag such as O, B-PER or I-PER was wanted, got {tag!r}.")
        if prefix == "O":
            continue
        last = found[-1] if found else None
        if prefix == "I" and last and last.end == place and last.kind == kind:
            found[-1] = Span(kind, last.start, place + 1)
        else:
            found.append(Span(kind, place, place + 1))
    return found


def span_counts(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> Int[Tensor, "N 3"]:
    """Count the right, the predicted and the gold spans of each sentence.

    >>> span_counts([["B-PER", "O"]], [["B-PER", "B-LOC"]]).tolist()
    [[1, 2, 1]]
    """
    if len(gold) != len(predicted) or not gold:
        raise ValueError(
            f"Tags for each of one sentence or more were wanted, got {len(predicted)} for "
            f"{len(gold)}."
        )
    rows: list[list[int]] = []
    for number, (wanted, got) in enumerate(zip(gold, predicted, strict=True)):
        if len(wanted) != len(got):
            raise ValueError(f"Sentence {number} has {len(wanted)} words, but {len(got)} tags.")
        one, other = set(spans(wanted)), set(spans(got))
        rows.append([len(one & other), len(other), len(one)])
    return torch.tensor(rows)


def span_f1(counts: Int[Tensor, "*X 3"] | Float[Tensor, "*X 3"]) -> Float[Tensor, "*X"]:
    """Return 2 right / (predicted + gold) of summed counts; 0 for 0/0."""
    right, named = counts[..., 0].double(), counts[..., 1:].sum(-1).double()
    return torch.where(named == 0, torch.zeros_like(right), 2 * right / named)


def span_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> SpanScores:
    """Compute precision, recall and F1 of the tags of some sentences.

    >>> span_scores([["B-PER", "O"]], [["B-PER", "B-LOC"]]).precision
    0.5
    """
    counts = span_counts(gold, predicted).sum(0)
    right, named, there = counts.tolist()
    return SpanScores(
        right / named if named else 0.0, right / there if there else 0.0, float(span_f1(counts))
    )
