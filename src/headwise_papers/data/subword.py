"""Pieces of words, learnt from text by SentencePiece, shared by two languages or not."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from headwise.text.source import write_whole
from headwise_papers.data.vocabulary import BOS, EOS, PAD, SPECIALS, UNK

__all__ = ["Kind", "PiecePair", "Pieces", "train_pieces"]

Kind = Literal["unigram", "bpe"]
JOINT, OF_SOURCE, OF_TARGET = "pieces.model", "source_pieces.model", "target_pieces.model"


@dataclass(frozen=True)
class Pieces:
    """A SentencePiece model: text to numbers of pieces and back; 0 to 3 are the four marks."""

    model: bytes  # SentencePiece's own format, a protocol buffer
    shift: ClassVar[int] = 0  # what ids are larger by than SentencePiece's

    def __post_init__(self) -> None:
        first = [
            self._processor.id_to_piece(number) for number in range(min(len(self), len(SPECIALS)))
        ]
        if first != list(SPECIALS):
            raise ValueError(
                f"A model of pieces starts with {', '.join(SPECIALS)}, but this one with "
                f"{', '.join(first) or 'nothing'}; train it with "
                "headwise_papers.data.subword.train_pieces."
            )

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, text: str) -> list[int]:
        """The numbers of the pieces of a text. No mark is added."""
        # not as a list of one, for which threads would be started
        return cast("list[int]", self._processor.encode(text, out_type=int))

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The same for many texts."""
        return cast("list[list[int]]", self._processor.encode(list(texts), out_type=int))

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first EOS. PAD and BOS are dropped; unknown pieces are `<unk>`."""
        kept: list[int] = []
        for number in ids:
            if number == EOS:
                break
            self._check(number)
            if number not in (PAD, BOS):
                kept.append(int(number) - self.shift)
        return str(self._processor.decode(kept))

    def piece(self, number: int) -> str:
        """How a piece is written; "▁" stands for a space before it."""
        self._check(number)
        return str(self._processor.id_to_piece(number))

    def save(self, path: Path) -> None:
        """Write the model, for example to `run.path("pieces.model")`."""
        write_whole(path, self.model)

    @classmethod
    def load(cls, path: Path) -> "Pieces":
        """Read what `save` wrote."""
        if not path.is_file():
            raise ValueError(f"There is no model of pieces {path}; it may not be trained yet.")
        try:
            return cls(path.read_bytes())
        except ValueError as problem:
            raise ValueError(f"{path} cannot be used: {problem}") from None

    def _check(self, number: int) -> None:
        if not 0 <= number < len(self):
            raise ValueError(f"Ids run from 0 to {len(self) - 1} here, got {number}.")

    @cached_property
    def _processor(self) -> Any:
        # lazy: only texts in pieces need SentencePiece
        from sentencepiece import SentencePieceProcessor

        try:
            return SentencePieceProcessor(model_proto=self.model)
        except RuntimeError as problem:
            raise ValueError(
                f"{len(self.model)} bytes are no SentencePiece model ({problem}); train it again."
            ) from None


@dataclass(frozen=True)
class PiecePair:
    """The pieces of the source and of the target, which may be the same."""

    source: Pieces
    target: Pieces

    @property
    def joint(self) -> bool:
        """Whether both languages share their pieces."""
        return self.source == self.target

    def save(self, folder: Path) -> None:
        """Write `pieces.model`, or `source_pieces.model` and `target_pieces.model`.

        Args:
            folder: of a run, for example `run.folder`.
        """
        if self.joint:
            self.target.save(folder / JOINT)
        else:
            self.source.save(folder / OF_SOURCE)
            self.target.save(folder / OF_TARGET)

    @classmethod
    def load(cls, folder: Path) -> "PiecePair":
        """Read what `save` wrote."""
        if (folder / OF_SOURCE).is_file():
            return cls(Pieces.load(folder / OF_SOURCE), Pieces.load(folder / OF_TARGET))
        pieces = Pieces.load(folder / JOINT)
        return cls(pieces, pieces)


def train_pieces(lines: Iterable[str], *, size: int = 8000, kind: Kind = "unigram") -> Pieces:
    """Learn pieces from text by SentencePiece, with all characters of the text.

    Args:
        lines: sentences, of both languages where they are to share the pieces.
        size: how many, marks included; a text too small for that gets fewer.
        kind: "unigram", which keeps the pieces that make the text likely (Kudo, 2018), or "bpe",
            which joins the commonest neighbours (Sennrich et al., 2016). Both make a `Pieces`.
    """
    from sentencepiece import SentencePieceTrainer

    given = [line for line in lines if line.strip()]
    if not given:
        raise ValueError("Pieces are learnt from text, but there is none; give some lines.")
    if kind not in ("unigram", "bpe"):
        raise ValueError(f"kind must be 'unigram' or 'bpe', got {kind!r}.")
    if size < len(SPECIALS) + 1:
        raise ValueError(f"size must be {len(SPECIALS) + 1} or more, got {size}.")
    written = io.BytesIO()
    names = dict(zip(("pad_piece", "bos_piece", "eos_piece", "unk_piece"), SPECIALS, strict=True))
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(given),
            model_writer=written,
            vocab_size=size,
            model_type=kind,
            hard_vocab_limit=False,
            character_coverage=1.0,
            max_sentence_length=1 << 16,
            num_threads=1,  # sums over threads come in their order, so one gives one model
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            unk_surface="<unk>",
            minloglevel=2,
            **names,
        )
    except RuntimeError as problem:
        raise ValueError(
            f"No {size} pieces can be learnt from these {len(given)} lines ({problem}); "
            "change the size."
        ) from None
    return Pieces(written.getvalue())
