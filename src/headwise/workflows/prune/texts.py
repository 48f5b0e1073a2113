"""Text files to prune with: sentences, labelled sentences, or pairs of translations."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headwise.text.corpus import read_lines

__all__ = ["Labelled", "Pairs", "first", "first_labelled"]
__all__ += ["read_labelled", "read_pairs", "read_sentences"]


class Pairs(NamedTuple):
    """Sentences and their translations."""

    source: list[str]
    target: list[str]


class Labelled(NamedTuple):
    """Texts, the class of each, and the second texts of pairs."""

    texts: list[str]
    labels: list[int]
    seconds: list[str | None]

    @property
    def joined(self) -> list[str]:
        """Each as one line."""
        pairs = zip(self.texts, self.seconds, strict=True)
        return [text if second is None else f"{text} {second}" for text, second in pairs]


def read_sentences(files: Sequence[str]) -> list[str]:
    """The lines of one file."""
    return list(read_lines(Path(_only(files))))


def read_labelled(
    files: Sequence[str], classes: dict[str, int], *, reads: str = "text"
) -> Labelled:
    """Lines `label TAB text [TAB text]`; labels are numbers or names of the model's classes.

    Args:
        files: one.
        classes: {name: number} of the model.
        reads: "text", where further TABs are spaces, "pair" or "either".
    """
    path, found = _only(files), Labelled([], [], [])
    numbers = {str(number): number for number in classes.values()}
    for line in read_lines(Path(path)):
        label, *texts = line.split("\t", maxsplit=1 if reads == "text" else 2)
        number = classes.get(label, numbers.get(label))
        if len(texts) < 1 + (reads == "pair") or number is None:
            wanted = "a TAB, a text, a TAB and a text" if reads == "pair" else "a TAB and a text"
            raise ValueError(
                f"{path} must hold a label, {wanted} in each line, where labels are "
                f"{', '.join(classes)} or {', '.join(numbers)}; got {line[:40]!r}."
            )
        text, *second = (text.replace("\t", " ") for text in texts)
        found.texts.append(text)
        found.labels.append(number)
        found.seconds.append(second[0] if second else None)
    return found


def first_labelled(part: Labelled, count: int) -> Labelled:
    """Some of them, the first ones; 0 takes all."""
    texts, labels, seconds = part
    return Labelled(texts[:count], labels[:count], seconds[:count]) if count else part


def read_pairs(files: Sequence[str]) -> Pairs:
    """Sentences and their translations: two files, line by line, or one with a TAB between."""
    if len(files) == 2:
        both = [list(read_lines(Path(path))) for path in files]
        if len(both[0]) != len(both[1]):
            raise ValueError(
                f"{files[0]} has {len(both[0])} lines with text, but {files[1]} has "
                f"{len(both[1])}; line by line they must be translations of each other."
            )
        return Pairs(both[0], both[1])
    path = _only(files)
    pairs = [line.split("\t") for line in read_lines(Path(path))]
    if wrong := next((pair for pair in pairs if len(pair) < 2), None):
        raise ValueError(
            f"{path} must hold a sentence, a TAB and its translation in each line; got "
            f"{wrong[0][:40]!r}. Two files are given one after the other."
        )
    return Pairs([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def first(pairs: Pairs, count: int) -> Pairs:
    """Return the first pairs; 0 takes all."""
    return Pairs(pairs.source[:count], pairs.target[:count]) if count else pairs


def _only(files: Sequence[str]) -> str:
    if len(files) != 1:
        raise ValueError(f"One file was wanted here, got {len(files)}: {', '.join(files)}.")
    return files[0]
