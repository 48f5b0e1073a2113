"""Translate what comes in, as it comes: typed at a terminal, or by thousands of lines."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from headwise.recording import Run
from headwise_papers.data.marian import marian_folder
from headwise_papers.recipes.translator import Translator

__all__ = ["arriving_lines", "open_translator", "translate_stream"]

CHUNK = 1 << 20  # the most bytes that are waited for and translated together


@runtime_checkable
class Stream(Protocol):
    """Bytes as they arrive, as `sys.stdin.buffer` gives them."""

    def read1(self, size: int, /) -> bytes:
        """What is there, up to a size; waits only where nothing is."""
        ...


def open_translator(folder: Path) -> Translator:
    """Open the translator of a finished run or of Marian, on a GPU where there is one."""
    files = marian_folder(folder)
    translator = Translator.of_marian(files) if files else Translator.load(Run.open(folder))
    translator.model.to("cuda" if torch.cuda.is_available() else "cpu")
    return translator


def translate_stream(
    translator: Translator,
    stream: Stream,
    write: Callable[[str], object],
    *,
    beams: int = 4,
    length_penalty: float = 0.6,
    batch: int = 64,
) -> int:
    """Translate line by line, in order; empty lines stay empty. Says how many lines were cut.

    Lines that arrive together are translated together, those of similar length in one batch; one
    that arrives alone is answered at once.

    Args:
        translator: from `open_translator`.
        stream: lines in UTF-8.
        write: gets the translations of the lines that arrived, each with its line end.
        beams: hypotheses followed at the same time.
        length_penalty: more favours longer translations.
        batch: sentences translated together.
    """
    cut = 0
    for lines in arriving_lines(stream):
        cut += sum(len(translator.source.encode(line)) > translator.room for line in lines)
        found = translator.translate(lines, beams=beams, length_penalty=length_penalty, batch=batch)
        write("".join(f"{line}\n" for line in found))
    return cut


def arriving_lines(stream: Stream) -> Iterator[list[str]]:
    """The lines of a stream, those together that arrive together.

    >>> import io
    >>> list(arriving_lines(io.BytesIO(b"a dog\\n\\nthe cat")))
    [['a dog', ''], ['the cat']]
    """
    rest, done = b"", 0
    while arrived := stream.read1(CHUNK):
        *whole, rest = (rest + arrived).split(b"\n")
        if whole:
            yield [_text(line, done + number) for number, line in enumerate(whole, start=1)]
            done += len(whole)
    if rest:
        yield [_text(rest, done + 1)]


def _text(line: bytes, number: int) -> str:
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as problem:
        raise ValueError(f"Line {number} is not UTF-8 ({problem}); convert it first.") from None
