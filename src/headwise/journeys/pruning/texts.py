"""Text files to prune with: sentences, labelled sentences, or pairs of translations."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headwise.data.corpus import read_lines
from headwise.data.translation import Lines

__all__ = ["Labelled", "first", "read_labelled", "read_pairs", "read_sentences"]


class Labelled(NamedTuple):
    """Sentences and the class of each."""

    texts: list[str]
    labels: list[int]


def read_sentences(files: Sequence[str]) -> list[str]:
    """The lines of one file."""
    return list(read_lines(Path(_only(files))))


def read_labelled(files: Sequence[str], classes: dict[str, int]) -> Labelled:
    """Lines `label TAB text`; labels are numbers or names of the model's classes.

    Args:
        files: one.
        classes: {name: number} of the model.
    """
    path, found = _only(files), Labelled([], [])
    numbers = {str(number): number for number in classes.values()}
    for line in read_lines(Path(path)):
        label, tab, text = line.partition("\t")
        number = classes.get(label, numbers.get(label))
        if not tab or number is None:
            raise ValueError(
                f"{path} must hold a label, a TAB and a text in each line, where labels are "
                f"{', '.join(classes)} or {', '.join(numbers)}; got {line[:40]!r}."
            )
        found.texts.append(text.replace("\t", " "))
        found.labels.append(number)
    return found


def read_pairs(files: Sequence[str]) -> Lines:
    """Sentences and their translations: two files, line by line, or one with a TAB between."""
    if len(files) == 2:
        both = [list(read_lines(Path(path))) for path in files]
        if len(both[0]) != len(both[1]):
            raise ValueError(
                f"{files[0]} has {len(both[0])} lines with text, but {files[1]} has "
                f"{len(both[1])}; line by line they must be translations of each other."
            )
        return Lines(both[0], both[1])
    path = _only(files)
    pairs = [line.split("\t") for line in read_lines(Path(path))]
    if wrong := next((pair for pair in pairs if len(pair) < 2), None):
        raise ValueError(
            f"{path} must hold a sentence, a TAB and its translation in each line; got "
            f"{wrong[0][:40]!r}. Two files are given one after the other."
        )
    return Lines([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def first(lines: Lines, count: int) -> Lines:
    """Some pairs, the first ones; 0 takes all."""
    return Lines(lines.source[:count], lines.target[:count]) if count else lines


def _only(files: Sequence[str]) -> str:
    if len(files) != 1:
        raise ValueError(f"One file was wanted here, got {len(files)}: {', '.join(files)}.")
    return files[0]
