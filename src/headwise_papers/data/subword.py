"""Subword tokens: SentencePiece models of one or two languages, and byte-level BPE.

Byte-level BPE (Radford et al., 2019) knows no unknown text, whatever its letters.
"""

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from headwise.text.source import write_whole
from headwise_papers.data.vocabulary import BOS, EOS, PAD, SPECIALS, UNK

__all__ = [
    "BERT_MARKS",
    "FEWEST_PIECES",
    "MOST_PIECES",
    "ROBERTA_MARKS",
    "BytePieces",
    "Kind",
    "MarkStyle",
    "PiecePair",
    "Pieces",
    "train_byte_pieces",
    "train_pieces",
]

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


MarkStyle = Literal["roberta", "bert"]
# the first pieces, by number
ROBERTA_MARKS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BERT_MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FEWEST_PIECES = 256 + len(ROBERTA_MARKS)  # there is one for every byte and every mark
MOST_PIECES = 10_000_000  # the library aborts where its tables do not fit into memory
BATCH = 4096  # lines encoded together


@dataclass(frozen=True)
class BytePieces:
    """A tokenizer of the library `tokenizers`: text to numbers of pieces and back.

    Its first five pieces are marks: `begin` and `end` of what a model reads, `pad`, `unknown` and
    `mask`. No text holds them: where one says "</s>", it is cut into pieces like any other word. A
    word has a space before it wherever it stands, so that it is the same piece at the beginning of
    a text.
    """

    definition: str  # the contents of tokenizer.json

    def __post_init__(self) -> None:
        first = tuple(self.piece(number) for number in range(len(ROBERTA_MARKS)))
        if first not in (ROBERTA_MARKS, BERT_MARKS):
            raise ValueError(
                f"Pieces over bytes begin with {', '.join(ROBERTA_MARKS)} or those of BERT, but "
                f"these with {', '.join(first)}; train them with "
                "headwise_papers.data.subword.train_byte_pieces."
            )

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    @property
    def style(self) -> MarkStyle:
        """Whose marks these are."""
        return "roberta" if self.piece(0) == ROBERTA_MARKS[0] else "bert"

    @property
    def begin(self) -> int:
        """`<s>` or `[CLS]`, first of all."""
        return 0 if self.style == "roberta" else 2

    @property
    def pad(self) -> int:
        """Padding."""
        return 1 if self.style == "roberta" else 0

    @property
    def end(self) -> int:
        """`</s>` or `[SEP]`: after a text, and between two."""
        return 2 if self.style == "roberta" else 3

    @property
    def unknown(self) -> int:
        """Of no use, as nothing is unknown; the families have such a mark."""
        return 3 if self.style == "roberta" else 1

    @property
    def mask(self) -> int:
        """What hides a piece."""
        return 4

    @property
    def marks(self) -> int:
        """How many of the first pieces are marks."""
        return len(ROBERTA_MARKS)

    def encode(self, text: str) -> list[int]:
        """The numbers of the pieces of a text. No mark is added."""
        return next(self.encode_all([text]))

    def encode_all(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """The same for many texts, in batches, on all cores."""
        for start in range(0, len(texts), BATCH):
            chosen = list(texts[start : start + BATCH])
            for found in self.tokenizer.encode_batch_fast(chosen, add_special_tokens=False):
                yield cast("list[int]", found.ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some pieces, without marks."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def piece(self, number: int) -> str:
        """How a piece is written; "Ġ" stands for a space before it."""
        found = self.tokenizer.id_to_token(number)
        if found is None:
            raise ValueError(f"Ids run from 0 to {len(self) - 1} here, got {number}.")
        return str(found)

    def written_as(self, text: str) -> tuple[int, ...]:
        """The pieces that are this text and nothing more, with a space before it or without.

        Full stops, for example, for a head that is to look at them.
        """
        found = (self.tokenizer.token_to_id(f"{before}{text}") for before in ("", "Ġ"))
        return tuple(number for number in found if number is not None)

    def save(self, path: Path) -> None:
        """Write the tokenizer, for example to `run.path("tokenizer.json")`."""
        write_whole(path, self.definition.encode())

    @staticmethod
    def load(path: Path) -> "BytePieces":
        """Read what `save` wrote."""
        if not path.is_file():
            raise ValueError(f"There is no tokenizer {path}; it may not be trained yet.")
        try:
            return BytePieces(path.read_text(encoding="utf-8"))
        except ValueError as problem:  # of UTF-8, of JSON, or of other pieces
            raise ValueError(f"{path} cannot be read: {problem}") from None

    def hugging_face(self, *, max_length: int | None = None) -> Any:
        """The same as a tokenizer of transformers, which adds marks and knows words by place.

        As its users expect, a mark that a text says is one there, unless `split_special_tokens`.

        Args:
            max_length: pieces, marks included, that its model has positions for, by which
                `truncation=True` cuts; None cuts nothing.
        """
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast  # lazy: takes seconds

        begin, pad, end, unknown, mask = (
            self.piece(number)
            for number in (self.begin, self.pad, self.end, self.unknown, self.mask)
        )
        names = {"bos_token": begin, "eos_token": end, "unk_token": unknown, "pad_token": pad}
        marks = {"cls_token": begin, "sep_token": end, "mask_token": mask}
        inputs = ["input_ids", *["token_type_ids"] * (self.style == "bert"), "attention_mask"]
        room = {} if max_length is None else {"model_max_length": max_length}
        definition = json.loads(self.definition)
        for token in definition["added_tokens"]:
            token["lstrip"] = token["content"] == mask  # the space too, as masks have in training
        same = Tokenizer.from_str(json.dumps(definition))
        return PreTrainedTokenizerFast(
            tokenizer_object=same, model_input_names=inputs, **names, **marks, **room
        )

    @cached_property
    def tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer` itself, which knows words and their places in a text."""
        from tokenizers import Tokenizer  # lazy: only texts in pieces over bytes need it

        try:
            found: Any = Tokenizer.from_buffer(self.definition.encode())
        except ValueError as problem:  # what the library raises for JSON it cannot read
            raise ValueError(
                f"{len(self.definition)} characters are no tokenizer ({problem}); train it again."
            ) from None
        found.encode_special_tokens = True  # what a text says is text
        return found


def train_byte_pieces(
    lines: Iterable[str], *, size: int = 52_000, style: MarkStyle = "roberta"
) -> BytePieces:
    """Learn pieces by joining the commonest neighbours again and again, beginning with bytes.

    Args:
        lines: the text.
        size: how many, marks included; a text too small for that gets fewer.
        style: whose marks: RoBERTa's `<s>` … or BERT's `[CLS]` …; two texts stand as
            `<s> A </s></s> B </s>` or `[CLS] A [SEP] B [SEP]`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    marks = {"roberta": ROBERTA_MARKS, "bert": BERT_MARKS}.get(style)
    if marks is None:
        raise ValueError(f"style must be 'roberta' or 'bert', got {style!r}.")
    if size < FEWEST_PIECES:
        raise ValueError(
            f"size must be {FEWEST_PIECES} or more, a piece for each byte and each mark, got "
            f"{size}."
        )
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        special_tokens=list(marks),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.post_processor = _template(style)
    # written anew, because the library leaves spaces and order to itself
    return BytePieces(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False))


def _template(style: MarkStyle) -> Any:
    """How marks are put around one text and two."""
    from tokenizers.processors import TemplateProcessing

    if style == "roberta":
        return TemplateProcessing(
            single="<s> $A </s>",
            pair="<s> $A </s> </s> $B </s>",
            special_tokens=[("<s>", 0), ("</s>", 2)],
        )
    return TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
