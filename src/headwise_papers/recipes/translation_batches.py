"""Sentence pairs as batches of ids, and the loss of a translator on some of them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.text.batching import Epochs
from headwise_papers.data.batches import ParallelBatch, parallel_batch
from headwise_papers.data.translation import Lines
from headwise_papers.data.vocabulary import PAD
from headwise_papers.recipes.translator import Translator

__all__ = [
    "Pairs",
    "all_batches",
    "encoded_pairs",
    "pair_batches",
    "validation_loss",
    "width_multiple",
    "with_padding",
]

MULTIPLE = 8  # widths of batches on a GPU, whose matrices like it so
Pairs = list[tuple[list[int], list[int]]]


def width_multiple() -> int:
    """Return the multiple that widths of training batches are rounded up to on this machine."""
    return MULTIPLE if torch.cuda.is_available() else 1


def encoded_pairs(translator: Translator, lines: Lines) -> Pairs:
    """The ids of sentence pairs; those too long for the model are left out."""
    sides = (
        map(c.encode, s) for c, s in zip((translator.source, translator.target), lines, strict=True)
    )
    room = translator.room
    pairs = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= room]
    if not pairs:
        raise ValueError(f"No sentence pair fits max_length={room + 1}; raise it.")
    return pairs


def pair_batches(
    pairs: Pairs, *, tokens: int, multiple: int, most: int | None = None, seed: int
) -> Epochs[ParallelBatch]:
    """Pairs of similar length together, in an order of each epoch's own.

    Args:
        pairs: of ids.
        tokens: in a batch, the longer side of each pair, padding included.
        multiple: of widths.
        most: the width that padding never exceeds, a model's `max_length`.
        seed: of the order.
    """

    def collate(chosen: list[int]) -> ParallelBatch:
        sources, targets = zip(*(pairs[index] for index in chosen), strict=True)
        return parallel_batch(sources, targets, multiple=multiple, most=most)

    # a mark is added to each side
    lengths = [max(len(source), len(target)) + 1 for source, target in pairs]
    tokens = with_padding(tokens, lengths, multiple=multiple)
    return Epochs(lengths, collate, tokens=tokens, multiple=multiple, seed=seed)


def with_padding(tokens: int, lengths: Sequence[int], *, multiple: int) -> int:
    """Return the batch size in tokens, large enough for the longest pair with its padding."""
    longest = max(lengths)
    rounded_up = -(-longest // multiple) * multiple
    return max(tokens, rounded_up) if longest <= tokens else tokens


def all_batches(pairs: Pairs, *, tokens: int) -> Sequence[ParallelBatch]:
    """Every pair once."""
    batches = pair_batches(pairs, tokens=tokens, multiple=1, seed=0)
    return [batches(number) for number in range(len(batches))]


@torch.no_grad()
def validation_loss(model: nn.Module, batches: Sequence[ParallelBatch]) -> float:
    """Nats a target piece, the end mark included, without label smoothing."""
    device = next(model.parameters()).device
    total, count = torch.zeros((), dtype=torch.float64, device=device), 0
    for batch in batches:
        there = ParallelBatch(*(tensor.to(device) for tensor in batch))
        logits_BTV: Tensor = model(there.source, there.source_lengths, there.target_in)
        flat = logits_BTV.flatten(0, 1).float(), there.target_out.flatten()
        total += cross_entropy(*flat, ignore_index=PAD, reduction="sum")
        count += int(batch.target_lengths.sum())
    return total.item() / count
