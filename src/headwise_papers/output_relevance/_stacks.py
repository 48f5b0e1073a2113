"""Models initialised by seed, and readers that run a stack of models over a test set."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from headwise_papers.data.batches import Ragged, parallel_batch
from headwise_papers.data.classification import Labelled
from headwise_papers.models.rnn_stack import (
    RnnClassifierSequence,
    RnnClassifierStack,
    Seq2SeqStack,
)
from headwise_papers.ops.relevance import Looked

Model = TypeVar("Model", bound=nn.Module)

Classifiers = RnnClassifierStack | RnnClassifierSequence

MAX_POSITIONS = 2**19  # seeds x padded positions of one forward pass


def device_of(name: str = "auto") -> torch.device:
    """Return a device by name; "auto" is a GPU where there is one."""
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(automatic if name == "auto" else name)


def drawn(make: Callable[[], Model], *, seed: int, device: torch.device) -> Model:
    """Make a model whose initial weights depend on the seed alone, the same on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().to(device)


def read_texts(
    part: Labelled, *, device: torch.device, seeds: int
) -> Callable[[Classifiers], Iterator[Looked]]:
    """Return a reader of labelled texts, in chunks of similar length, shortest first."""
    ragged = Ragged.of(part.texts, device=device)
    labels = torch.tensor(part.labels, device=device)
    chunks = chunks_by_length(ragged.sizes, MAX_POSITIONS // seeds)

    def read(stack: Classifiers) -> Iterator[Looked]:
        for chosen in chunks:
            padded = ragged.take(chosen)
            yield stack.look(padded.ids, padded.lengths, labels[chosen.to(device)])

    return read


def read_pairs(
    pairs: Sequence[tuple[list[int], list[int]]], *, device: torch.device, size: int = 64
) -> Callable[[Seq2SeqStack], Iterator[Looked]]:
    """Return a reader of sentence pairs, in chunks of similar length, shortest first."""
    ordered = sorted(pairs, key=lambda pair: (len(pair[0]), len(pair[1])))
    chunks = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    batches = [
        tuple(x.to(device) for x in parallel_batch(*map(list, zip(*chunk, strict=True))))
        for chunk in chunks
    ]

    def read(stack: Seq2SeqStack) -> Iterator[Looked]:
        was_training = stack.training
        stack.eval()
        for source, source_lengths, target_in, target_out, target_lengths in batches:
            yield stack.look(source, source_lengths, target_in, target_out, target_lengths)
        stack.train(was_training)

    return read


def chunks_by_length(sizes: Tensor, positions: int) -> list[Tensor]:
    """Return indices of sequences by length, in chunks of at most so many padded positions."""
    chunks: list[list[int]] = [[]]
    for number in sizes.argsort(stable=True).tolist():
        if chunks[-1] and (len(chunks[-1]) + 1) * int(sizes[number]) > positions:
            chunks.append([])
        chunks[-1].append(number)
    return [torch.tensor(chunk) for chunk in chunks]
