"""Texts, pairs and tagged words as the pieces that a model reads, and batches of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.text.batching import Epochs
from headwise.text.words import characters_for, first_words
from headwise_papers.data.batches import pad
from headwise_papers.data.tasks import Example, TaggedSentence

__all__ = [
    "IGNORED",
    "Batch",
    "Pieces",
    "Row",
    "batch_of",
    "batches",
    "read_example",
    "read_sentence",
]

IGNORED = -100  # the label of a position that does not count
MULTIPLE = 8  # of widths of batches: few shapes, which a GPU can record and likes
Batch = Mapping[str, Tensor]


class Row(NamedTuple):
    """One example as a model reads it, marks included."""

    ids: list[int]
    types: list[int]  # 1 in the second text of a pair, where the tokenizer says so
    firsts: list[int]  # the position of the first piece of each word; -1: cut off, or no piece
    cut: bool  # whether it did not fit


@dataclass(frozen=True, eq=False)
class Pieces:
    """A tokenizer with its marks, cutting texts to a length; of a pair the longer text is cut."""

    definition: str  # the contents of tokenizer.json
    pad: int  # the number of the padding
    length: int  # pieces, marks included

    def read(self, examples: Sequence[Example] | Sequence[TaggedSentence]) -> list[Row]:
        """Rows for texts, pairs or tagged sentences."""
        tokenizer, longest = self._tokenizer(), characters_for(self.length)
        # as a word inside a text, which over bytes has a space before it
        space = " " if "ByteLevel" in repr(tokenizer.pre_tokenizer) else ""
        inputs: list[Any] = []
        for example in examples:
            if isinstance(example, TaggedSentence):
                words = example.words[:longest]
                inputs.append([f"{space}{first_words(word, longest)}" for word in words])
            else:
                text = first_words(example.text, longest)
                second = example.second and first_words(example.second, longest)
                inputs.append(text if second is None else (text, second))
        tagged = bool(examples) and isinstance(examples[0], TaggedSentence)
        found = tokenizer.encode_batch(inputs, is_pretokenized=tagged)
        counts = [len(x.words) if isinstance(x, TaggedSentence) else 0 for x in examples]
        return [_row(one, words) for one, words in zip(found, counts, strict=True)]

    def hugging_face(self, *, types: bool) -> Any:
        """The same as a tokenizer of transformers, which tells types of tokens if asked to."""
        from tokenizers import Tokenizer  # lazy: takes a moment
        from transformers import PreTrainedTokenizerFast  # lazy: takes seconds

        tokenizer: Any = Tokenizer.from_str(self.definition)
        inputs = ["input_ids", *["token_type_ids"] * types, "attention_mask"]
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token=tokenizer.id_to_token(self.pad),
            model_input_names=inputs,
        )

    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer  # lazy: takes a moment

        tokenizer: Any = Tokenizer.from_str(self.definition)
        tokenizer.encode_special_tokens = True  # what a text says is text, also "</s>"
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.length)
        return tokenizer


def read_example(text: str, second: str | None = None) -> Example:
    """A text or a pair without a known class."""
    return Example(0, text, second)


def read_sentence(words: Sequence[str]) -> TaggedSentence:
    """Words without known tags."""
    return TaggedSentence(tuple(words), ("O",) * len(words))


def batches(
    pieces: Pieces, rows: Sequence[Row], labels: Sequence[Sequence[int]], *, size: int, seed: int
) -> Epochs[Batch]:
    """Endless batches of rows with their labels, similar lengths together.

    Args:
        pieces: that made the rows.
        rows: examples.
        labels: of each its class, or a class for each word.
        size: rows in a batch.
        seed: of the order.
    """

    def chosen(places: list[int]) -> Batch:
        return batch_of(pieces, [rows[at] for at in places], [labels[at] for at in places])

    return Epochs([len(row.ids) for row in rows], chosen, size=size, seed=seed)


def batch_of(pieces: Pieces, rows: Sequence[Row], labels: Sequence[Sequence[int]]) -> Batch:
    """One batch: `ids`, `lengths`, `types` and `labels`, in the order of the rows."""
    padded = pad([row.ids for row in rows], value=pieces.pad, multiple=MULTIPLE)
    types = pad([row.types for row in rows], multiple=MULTIPLE)
    width = min(padded.ids.shape[1], pieces.length)  # a model has no room for more
    wanted = [_labels(row, own, width) for row, own in zip(rows, labels, strict=True)]
    return {
        "ids": padded.ids[:, :width],
        "lengths": padded.lengths,
        "types": types.ids[:, :width],
        "labels": torch.tensor(wanted),
    }


def _labels(row: Row, labels: Sequence[int], width: int) -> list[int] | int:
    """The class of a row; or of each position, where a word's first piece has that of the word."""
    if not row.firsts:
        return labels[0]
    positions = [IGNORED] * width
    for place, label in zip(row.firsts, labels, strict=True):
        if place >= 0:
            positions[place] = label
    return positions


def _row(encoding: Any, words: int) -> Row:
    firsts = [-1] * words
    for position, word in enumerate(encoding.word_ids if words else ()):
        if word is not None and firsts[word] < 0:
            firsts[word] = position
    return Row(encoding.ids, encoding.type_ids, firsts, bool(encoding.overflowing))
