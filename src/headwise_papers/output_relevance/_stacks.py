"""Models drawn by seed, and looking at a test set with a stack of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from headwise_papers.data.batches import Ragged, parallel_batch
from headwise_papers.data.classification import Labelled
from headwise_papers.models.rnn_sequence import RnnClassifierSequence
from headwise_papers.models.rnn_stack import RnnClassifierStack, Seq2SeqStack
from headwise_papers.ops.relevance import Looked

Model = TypeVar("Model", bound=nn.Module)

Classifiers = RnnClassifierStack | RnnClassifierSequence

LOOKED_POSITIONS = 2**19  # seeds x positions held at once while looking


def device_of(name: str) -> torch.device:
    """A GPU where there is one, for "auto"."""
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda was asked for, but PyTorch sees no GPU; use device=auto.")
    if name != "auto":
        return torch.device(name)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def drawn(make: Callable[[], Model], *, seed: int, device: torch.device) -> Model:
    """A model whose start depends on the seed alone, the same on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().to(device)


def looking_at_texts(
    part: Labelled, *, device: torch.device, seeds: int
) -> Callable[[Classifiers], Iterator[Looked]]:
    """Look at labelled texts in chunks of similar length, shortest first."""
    ragged = Ragged.of(part.texts, device=device)
    labels = torch.tensor(part.labels, device=device)
    chunks = chunks_by_length(ragged.sizes, LOOKED_POSITIONS // seeds)

    def read(stack: Classifiers) -> Iterator[Looked]:
        for chosen in chunks:
            padded = ragged.take(chosen)
            yield stack.look(padded.ids, padded.lengths, labels[chosen.to(device)])

    return read


def looking_at_pairs(
    pairs: Sequence[tuple[list[int], list[int]]], *, device: torch.device, size: int = 64
) -> Callable[[Seq2SeqStack], Iterator[Looked]]:
    """Look at sentence pairs in chunks of similar length, shortest first."""
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
    """Numbers of sequences by rising length, in chunks of at most so many padded positions."""
    chunks: list[list[int]] = [[]]
    for number in sizes.argsort(stable=True).tolist():
        if chunks[-1] and (len(chunks[-1]) + 1) * int(sizes[number]) > positions:
            chunks.append([])
        chunks[-1].append(number)
    return [torch.tensor(chunk) for chunk in chunks]
