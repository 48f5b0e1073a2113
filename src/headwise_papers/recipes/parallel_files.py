"""A parallel corpus of one's own: two text files a part, line by line translations."""

from collections.abc import Sequence
from pathlib import Path

from headwise_papers.data.translation import Lines, ParallelTexts

__all__ = ["read_parallel_files"]


def read_parallel_files(
    *, train: Sequence[str], valid: Sequence[str], test: Sequence[str]
) -> ParallelTexts:
    """Read the files of each part; pairs with an empty side are left out.

    Args:
        train: the file of sources and the file of their translations, with as many lines.
        valid: the same for validation.
        test: the same for the test.
    """
    parts = {"train": train, "valid": valid, "test": test}
    for name, files in parts.items():
        if len(files) != 2:
            raise ValueError(
                f"{name} takes two files, of the source and of the target, got {len(files)}; "
                f"give --{name} twice."
            )
    read = {name: _pairs([Path(file) for file in files]) for name, files in parts.items()}
    return ParallelTexts("files", read["train"], read["valid"], read["test"])


def _pairs(files: Sequence[Path]) -> Lines:
    first, second = (_lines(path) for path in files)
    if len(first) != len(second):
        raise ValueError(
            f"{files[0]} has {len(first)} lines, but {files[1]} has {len(second)}; line by line "
            "they must be translations of each other."
        )
    pairs = [pair for pair in zip(first, second, strict=True) if all(map(str.strip, pair))]
    if not pairs:
        raise ValueError(f"{files[0]} and {files[1]} hold no pair of sentences.")
    return Lines([source for source, _ in pairs], [target for _, target in pairs])


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(f"There is no text file {path}; check the path.")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path} is not UTF-8 ({problem}); convert it first.") from None
    # at line feeds only: other marks that end lines may stand inside a sentence
    lines = text.split("\n")
    return [line.rstrip("\r") for line in (lines if lines[-1] else lines[:-1])]
