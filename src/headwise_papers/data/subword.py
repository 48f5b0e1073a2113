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

from headwise_papers.data.source import write_whole
from headwise_papers.data.vocabulary import BOS, EOS, PAD, SPECIALS, UNK

__all__ = [
    "BERT_SPECIALS",
    "MAX_VOCABULARY",
    "MIN_VOCABULARY",
    "ROBERTA_SPECIALS",
    "ByteLevelCodec",
    "CodecPair",
    "Kind",
    "SpecialTokenStyle",
    "SubwordModel",
    "train_byte_level",
    "train_subwords",
]

Kind = Literal["unigram", "bpe"]
JOINT, OF_SOURCE, OF_TARGET = "pieces.model", "source_pieces.model", "target_pieces.model"


@dataclass(frozen=True)
class SubwordModel:
    """SentencePiece model: text to token ids and back; 0 to 3 are the special tokens."""

    model: bytes  # SentencePiece's own format, a protocol buffer
    shift: ClassVar[int] = 0  # added to SentencePiece's ids

    def __post_init__(self) -> None:
        first = [
            self._processor.id_to_piece(number) for number in range(min(len(self), len(SPECIALS)))
        ]
        if first != list(SPECIALS):
            raise ValueError(
                f"A subword model starts with {', '.join(SPECIALS)}, but this one with "
                f"{', '.join(first) or 'nothing'}; train it with "
                "headwise_papers.data.subword.train_subwords."
            )

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        # not as a list of one, for which threads would be started
        return cast("list[int]", self._processor.encode(text, out_type=int))

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of many texts."""
        return cast("list[list[int]]", self._processor.encode(list(texts), out_type=int))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text up to the first EOS, without PAD and BOS; unknown tokens are `<unk>`."""
        kept: list[int] = []
        for number in ids:
            if number == EOS:
                break
            self._check(number)
            if number not in (PAD, BOS):
                kept.append(int(number) - self.shift)
        return str(self._processor.decode(kept))

    def piece(self, number: int) -> str:
        """Return how a token is written; "▁" stands for a space before it."""
        self._check(number)
        return str(self._processor.id_to_piece(number))

    def save(self, path: Path) -> None:
        """Write the model, for example to `run.path("pieces.model")`."""
        write_whole(path, self.model)

    @classmethod
    def load(cls, path: Path) -> "SubwordModel":
        """Read what `save` wrote."""
        if not path.is_file():
            raise ValueError(f"There is no subword model {path}; it may not be trained yet.")
        try:
            return cls(path.read_bytes())
        except ValueError as problem:
            raise ValueError(f"{path} cannot be used: {problem}") from None

    def _check(self, number: int) -> None:
        if not 0 <= number < len(self):
            raise ValueError(f"Ids run from 0 to {len(self) - 1} here, got {number}.")

    @cached_property
    def _processor(self) -> Any:
        # lazy: only subword models need SentencePiece
        from sentencepiece import SentencePieceProcessor

        try:
            return SentencePieceProcessor(model_proto=self.model)
        except RuntimeError as problem:
            raise ValueError(
                f"{len(self.model)} bytes are no SentencePiece model ({problem}); train it again."
            ) from None


@dataclass(frozen=True)
class CodecPair:
    """Codecs of source and target, which may be the same."""

    source: SubwordModel
    target: SubwordModel

    @property
    def joint(self) -> bool:
        """Whether both languages share one codec."""
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
    def load(cls, folder: Path) -> "CodecPair":
        """Read what `save` wrote."""
        if (folder / OF_SOURCE).is_file():
            return cls(SubwordModel.load(folder / OF_SOURCE), SubwordModel.load(folder / OF_TARGET))
        pieces = SubwordModel.load(folder / JOINT)
        return cls(pieces, pieces)


def train_subwords(
    lines: Iterable[str], *, size: int = 8000, kind: Kind = "unigram"
) -> SubwordModel:
    """Train a SentencePiece model on text, with all its characters.

    Args:
        lines: sentences, of both languages where they share a vocabulary.
        size: of the vocabulary, special tokens included; a small text gets fewer tokens.
        kind: "unigram", which keeps the tokens that make the text likely (Kudo, 2018), or "bpe",
            which joins the commonest neighbours (Sennrich et al., 2016).
    """
    from sentencepiece import SentencePieceTrainer

    given = [line for line in lines if line.strip()]
    if not given:
        raise ValueError("A vocabulary is learnt from text, but there is none; give some lines.")
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
            f"No {size} tokens can be learnt from these {len(given)} lines ({problem}); "
            "change the size."
        ) from None
    return SubwordModel(written.getvalue())


SpecialTokenStyle = Literal["roberta", "bert"]
# the first tokens, by id
ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MIN_VOCABULARY = 256 + len(ROBERTA_SPECIALS)  # every byte and every special token
MAX_VOCABULARY = 10_000_000  # the library aborts where its tables do not fit into memory
BATCH = 4096  # lines encoded together


@dataclass(frozen=True)
class ByteLevelCodec:
    """Tokenizer of the library `tokenizers`: text to token ids and back.

    Its first five tokens are special: `begin` and `end` of an input, `pad`, `unknown` and `mask`.
    Text is never encoded as one of them: "</s>" in a text is split like any other word. A word has
    a space before it wherever it stands, so that it is the same token at the beginning of a text.
    """

    definition: str  # the contents of tokenizer.json

    def __post_init__(self) -> None:
        first = tuple(self.piece(number) for number in range(len(ROBERTA_SPECIALS)))
        if first not in (ROBERTA_SPECIALS, BERT_SPECIALS):
            raise ValueError(
                f"A byte-level vocabulary begins with {', '.join(ROBERTA_SPECIALS)} or BERT's "
                f"tokens, but this one with {', '.join(first)}; train it with "
                "headwise_papers.data.subword.train_byte_level."
            )

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    @property
    def style(self) -> SpecialTokenStyle:
        """Family whose special tokens these are."""
        return "roberta" if self.piece(0) == ROBERTA_SPECIALS[0] else "bert"

    @property
    def begin(self) -> int:
        """Id of `<s>` or `[CLS]`, first of all."""
        return 0 if self.style == "roberta" else 2

    @property
    def pad(self) -> int:
        """Id of padding."""
        return 1 if self.style == "roberta" else 0

    @property
    def end(self) -> int:
        """Id of `</s>` or `[SEP]`: after a text, and between two."""
        return 2 if self.style == "roberta" else 3

    @property
    def unknown(self) -> int:
        """Id of unknown text, which never occurs; the families have such a token."""
        return 3 if self.style == "roberta" else 1

    @property
    def mask(self) -> int:
        """Id of the mask."""
        return 4

    @property
    def marks(self) -> int:
        """Number of special tokens, which have the lowest ids."""
        return len(ROBERTA_SPECIALS)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        return next(self.encode_all([text]))

    def encode_all(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Yield the token ids of many texts, encoded in batches on all cores."""
        for start in range(0, len(texts), BATCH):
            chosen = list(texts[start : start + BATCH])
            for found in self.tokenizer.encode_batch_fast(chosen, add_special_tokens=False):
                yield cast("list[int]", found.ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of some tokens, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def piece(self, number: int) -> str:
        """Return how a token is written; "Ġ" stands for a space before it."""
        found = self.tokenizer.id_to_token(number)
        if found is None:
            raise ValueError(f"Ids run from 0 to {len(self) - 1} here, got {number}.")
        return str(found)

    def written_as(self, text: str) -> tuple[int, ...]:
        """Return the ids of the tokens that are this text, with a space before it or without.

        For example those of full stops, for a head that is guided to them.
        """
        found = (self.tokenizer.token_to_id(f"{before}{text}") for before in ("", "Ġ"))
        return tuple(number for number in found if number is not None)

    def save(self, path: Path) -> None:
        """Write the tokenizer, for example to `run.path("tokenizer.json")`."""
        write_whole(path, self.definition.encode())

    @staticmethod
    def load(path: Path) -> "ByteLevelCodec":
        """Read what `save` wrote."""
        if not path.is_file():
            raise ValueError(f"There is no tokenizer {path}; it may not be trained yet.")
        try:
            return ByteLevelCodec(path.read_text(encoding="utf-8"))
        except ValueError as problem:  # of UTF-8, of JSON, or of other tokens
            raise ValueError(f"{path} cannot be read: {problem}") from None

    def hugging_face(self, *, max_length: int | None = None) -> Any:
        """Return it as a tokenizer of transformers, which adds special tokens and knows words.

        As its users expect, a special token in a text is one there, unless `split_special_tokens`.

        Args:
            max_length: positions of its model, special tokens included, by which
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
        """The `tokenizers.Tokenizer`, which knows words and their offsets in a text."""
        from tokenizers import Tokenizer  # lazy: only byte-level codecs need it

        try:
            found: Any = Tokenizer.from_buffer(self.definition.encode())
        except ValueError as problem:  # what the library raises for JSON it cannot read
            raise ValueError(
                f"{len(self.definition)} characters are no tokenizer ({problem}); train it again."
            ) from None
        found.encode_special_tokens = True  # what a text says is text
        return found


def train_byte_level(
    lines: Iterable[str], *, size: int = 52_000, style: SpecialTokenStyle = "roberta"
) -> ByteLevelCodec:
    """Train byte-level BPE: join the commonest neighbours again and again, beginning with bytes.

    Args:
        lines: the text.
        size: of the vocabulary, special tokens included; a small text gets fewer tokens.
        style: of special tokens: RoBERTa's `<s>` … or BERT's `[CLS]` …; two texts stand as
            `<s> A </s></s> B </s>` or `[CLS] A [SEP] B [SEP]`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    marks = {"roberta": ROBERTA_SPECIALS, "bert": BERT_SPECIALS}.get(style)
    if marks is None:
        raise ValueError(f"style must be 'roberta' or 'bert', got {style!r}.")
    if size < MIN_VOCABULARY:
        raise ValueError(
            f"size must be {MIN_VOCABULARY} or more, for each byte and each special token, got "
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
    return ByteLevelCodec(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False))


def _template(style: SpecialTokenStyle) -> Any:
    """Return where special tokens stand around one text and two."""
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
