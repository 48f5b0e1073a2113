"""Subjects of inspections: translators and classifiers of `headwise_papers.models`."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from headwise.config import to_json
from headwise.recording import Run
from headwise.workflows.inspect import (
    MAX_TOKENS,
    NO_WORD,
    Linked,
    Output,
    Prepared,
    Sentence,
    check_finite,
    check_special,
    without,
    word_numbers,
)
from headwise.workflows.inspect.sentence import Span
from headwise_papers.data.batches import pad, parallel_batch
from headwise_papers.data.marian import marian_folder
from headwise_papers.data.vocabulary import BOS, EOS, SPECIALS, UNK, Vocabulary
from headwise_papers.models import Transformer, greedy
from headwise_papers.models.classifier import TransformerClassifier
from headwise_papers.models.rnn import RnnClassifier, Seq2Seq
from headwise_papers.recipes.translator import Codec, Translator, WordCodec

_Own = Transformer | Seq2Seq | TransformerClassifier | RnnClassifier


@dataclass(frozen=True)
class Cut:
    """A sentence in tokens."""

    ids: list[int]
    words: list[int]  # the word of each token
    names: list[str]  # of the tokens
    texts: Sequence[str]  # words
    cut: bool = False  # whether there was more text


@dataclass(frozen=True, eq=False)
class TranslatorSubject:
    """A translator, a Transformer or LSTMs with attention, which translates greedily.

    The begin token of a translation counts as its first word: there the first word is predicted.
    Where sentences come with translations it reads these, and the word of a decoder position is the
    one that is predicted there.
    """

    model: Transformer | Seq2Seq
    source: Codec
    target: Codec
    special: frozenset[str] = frozenset()  # more tokens that are not to count as words
    knows_words: bool = True
    reads_references: bool = True
    mask_id: int | None = None

    def __post_init__(self) -> None:
        check_special(self.special, {*_all_names(self.source), *_all_names(self.target)})

    @staticmethod
    def of(translator: Translator, *, special: Sequence[str] = ()) -> "TranslatorSubject":
        """Make the subject of a translator."""
        parts = translator.model, translator.source, translator.target
        return TranslatorSubject(*parts, frozenset(special))

    @staticmethod
    def of_codecs(
        model: Transformer | Seq2Seq, codecs: object, special: frozenset[str]
    ) -> "TranslatorSubject":
        """Make the subject of a model and the codecs of source and target, a pair."""
        if isinstance(codecs, tuple) and len(codecs) == 2:
            source, target = codecs
            if isinstance(source, Codec) and isinstance(target, Codec):
                return TranslatorSubject(model, source, target, special)
        raise ValueError(
            f"{type(model).__name__} translates: give the codecs of source and target as the "
            "tokenizer, a pair of WordCodec or SubwordCodec of headwise_papers.recipes.translator. "
            "A run is inspected by headwise.workflows.inspect.inspect_folder."
        )

    @property
    def description(self) -> bytes:
        return _described(self.model, self.source, self.target)

    @property
    def max_tokens(self) -> int:
        if isinstance(self.model, Transformer):
            return self.model.config.max_length - 1  # the end token
        return MAX_TOKENS

    def prepare(self, sentences: Sequence[Sentence]) -> Prepared:
        cuts = [cut_up(self.source, sentence) for sentence in sentences]
        sources = [cut.ids[: self.max_tokens] for cut in cuts]
        linked = [sentence.linked for sentence in sentences if sentence.linked is not None]
        targets, unfinished = self._read(linked) if linked else self._made(sources)
        device = next(self.model.parameters()).device
        batch = [x.to(device) for x in parallel_batch(sources, [cut.ids for cut in targets])]
        source, lengths, target = batch[0], batch[1], batch[2]
        tokens = [
            {
                "encoder": [*read.names[: self.max_tokens], "<eos>"],
                "decoder": ["<bos>", *wrote.names],
            }
            for read, wrote in zip(cuts, targets, strict=True)
        ]
        numbers = {
            "encoder": [[*cut.words[: self.max_tokens], NO_WORD] for cut in cuts],
            "decoder": [
                [*cut.words, NO_WORD] if linked else [0, *(number + 1 for number in cut.words)]
                for cut in targets
            ],
        }
        widths = {"encoder": source.shape[1], "decoder": target.shape[1]}
        return Prepared(
            inputs={"source": source, "source_lengths": lengths, "target": target},
            words={
                stack: word_numbers(
                    without(rows, [row[stack] for row in tokens], self.special),
                    width=widths[stack],
                    device=device,
                )
                for stack, rows in numbers.items()
            },
            texts={
                "encoder": [cut.texts for cut in cuts],
                "decoder": [["<bos>", *cut.texts] for cut in targets],
            },
            tokens=tokens,
            truncated=sum(cut.cut or len(cut.ids) > self.max_tokens for cut in cuts),
            unfinished=unfinished,
        )

    def forward(self, inputs: Mapping[str, Tensor]) -> Output:
        return Output(
            self.model(inputs["source"], inputs["source_lengths"], inputs["target"]), "next"
        )

    def attend(self, inputs: Mapping[str, Tensor]) -> None:
        self.forward(inputs)

    def _read(self, linked: Sequence[Linked]) -> tuple[list[Cut], int]:
        cuts = [cut_up(self.target, each.sentence) for each in linked]
        most = self.max_tokens
        return [Cut(c.ids[:most], c.words[:most], c.names[:most], c.texts) for c in cuts], 0

    def _made(self, sources: Sequence[list[int]]) -> tuple[list[Cut], int]:
        made, unfinished = self._translated(sources)
        return [joined_up(self.target, ids) for ids in made], unfinished

    @torch.no_grad()
    def _translated(self, sources: Sequence[list[int]]) -> tuple[list[list[int]], int]:
        """Return translations, and how many of them were not finished."""
        device = next(self.model.parameters()).device
        padded = pad([[*ids, EOS] for ids in sources])
        # each sentence has its own limit, whatever else is in the batch
        limits = [min(2 * length + 8, self.max_tokens) for length in padded.lengths.tolist()]
        ids, lengths = padded.ids.to(device), padded.lengths.to(device)
        found = greedy(self.model, ids, lengths, bos=BOS, eos=EOS, max_length=max(limits))
        pairs = list(zip(found, limits, strict=True))
        cut = sum(not one.ended or len(one.ids) > limit for one, limit in pairs)
        return [one.ids[:limit] for one, limit in pairs], cut


@dataclass(frozen=True, eq=False)
class ClassifierSubject:
    """A classifier of sentences, a Transformer or a BiLSTM with attention, and its codec."""

    model: TransformerClassifier | RnnClassifier
    words: WordCodec
    special: frozenset[str] = frozenset()  # tokens that are not to count as words
    knows_words: bool = True
    reads_references: bool = False
    mask_id: int | None = None

    def __post_init__(self) -> None:
        check_special(self.special, _all_names(self.words))

    @staticmethod
    def of_vocabulary(
        model: TransformerClassifier | RnnClassifier, words: object, special: frozenset[str]
    ) -> "ClassifierSubject":
        """Make the subject of a model and its Vocabulary."""
        if not isinstance(words, Vocabulary):
            raise ValueError(
                f"{type(model).__name__} reads words: give its Vocabulary as the tokenizer, got "
                f"{type(words).__name__}."
            )
        return ClassifierSubject(model, WordCodec(words), special)

    @property
    def description(self) -> bytes:
        return _described(self.model, self.words)

    @property
    def max_tokens(self) -> int:
        if isinstance(self.model, TransformerClassifier):
            return self.model.config.max_length
        return MAX_TOKENS

    def prepare(self, sentences: Sequence[Sentence]) -> Prepared:
        cuts = [cut_up(self.words, sentence) for sentence in sentences]
        device = next(self.model.parameters()).device
        padded = pad([cut.ids[: self.max_tokens] for cut in cuts])
        names = [cut.names[: self.max_tokens] for cut in cuts]
        numbers = without([cut.words[: self.max_tokens] for cut in cuts], names, self.special)
        return Prepared(
            inputs={"tokens": padded.ids.to(device), "lengths": padded.lengths.to(device)},
            words={"encoder": word_numbers(numbers, width=padded.ids.shape[1], device=device)},
            texts={"encoder": [cut.texts for cut in cuts]},
            tokens=[{"encoder": row} for row in names],
            truncated=sum(cut.cut or len(cut.ids) > self.max_tokens for cut in cuts),
        )

    def forward(self, inputs: Mapping[str, Tensor]) -> Output:
        return Output(self.model(inputs["tokens"], inputs["lengths"]), "class")

    def attend(self, inputs: Mapping[str, Tensor]) -> None:
        self.forward(inputs)


def open_translation(
    folder: Path, *, special: Sequence[str], device: torch.device
) -> TranslatorSubject:
    """Open a run of `headwise train translation` or `headwise demo` for an inspection."""
    return _opened(Translator.load(Run.open(folder)), special, device)


def open_marian(folder: Path, *, special: Sequence[str], device: torch.device) -> TranslatorSubject:
    """Open a translator of Marian for an inspection."""
    files = marian_folder(folder)
    assert files is not None, "it was asked before"
    return _opened(Translator.of_marian(files), special, device)


def _opened(
    translator: Translator, special: Sequence[str], device: torch.device
) -> TranslatorSubject:
    check_finite(translator.model)
    translator.model.to(device)
    return TranslatorSubject.of(translator, special=special)


def _all_names(codec: Codec) -> set[str]:
    """Return the names of all tokens of a codec, special ones included."""
    numbers = range(len(SPECIALS), len(codec))
    return {*SPECIALS, *codec.names(numbers)}


def _described(model: _Own, *codecs: Codec) -> bytes:
    """Return the settings of a model and the tokens of its codecs."""
    content = [type(model).__name__, to_json(model.config)]
    known = [codec.names(range(len(SPECIALS), len(codec))) for codec in codecs]
    return json.dumps([*content, known], sort_keys=True).encode()


def cut_up(codec: Codec, sentence: Sentence) -> Cut:
    """Tokenize a sentence with a codec, whose tokens never reach over a space.

    A codec in words takes the words of a treebank as they are, and not as they were written.
    """
    if isinstance(codec, WordCodec):
        sentence = sentence.spaced()
    ids: list[int] = []
    names: list[str] = []
    spans: list[Span] = []
    for found in re.finditer(r"\S+", sentence.text):
        token = found.group()
        part = codec.encode(token)
        ids += part
        names += codec.tokens(token)
        spans += _spread(codec, part, found.span())
    if not ids:
        raise ValueError(f"No token is known for {sentence.text[:40]!r}; leave such lines out.")
    return Cut(ids, sentence.words_of(spans), names, sentence.words, sentence.cut)


def joined_up(codec: Codec, ids: list[int]) -> Cut:
    """Find the words of generated ids."""
    # a model may generate special tokens, which a codec does not show
    names = [next(iter(codec.names([number])), SPECIALS[number % len(SPECIALS)]) for number in ids]
    shown = [SPECIALS[UNK].strip("<>") if name == SPECIALS[UNK] else name for name in names]
    if isinstance(codec, WordCodec):
        return Cut(ids, list(range(len(ids))), names, shown)
    pieces = [name.replace("▁", " ") for name in shown]
    ends = list(accumulate(map(len, pieces)))
    sentence = Sentence.of_text("".join(pieces))
    if not sentence.words:  # nothing but spaces
        return Cut(ids, list(range(len(ids))), names, names)
    spans = list(zip([0, *ends], ends, strict=False))
    return Cut(ids, sentence.words_of(spans), names, sentence.words)


def _spread(codec: Codec, ids: Sequence[int], span: Span) -> list[Span]:
    """Return the spans of a string's tokens; an unknown token takes what the others leave."""
    start, end = span
    lengths = [len(name.replace("▁", "")) for name in codec.names(ids)]
    unknown = [place for place, number in enumerate(ids) if number == UNK]
    for place in unknown:
        lengths[place] = 0
    for place in unknown[:1]:
        lengths[place] = max(end - start - sum(lengths), 0)
    ends = [min(start + length, end) for length in accumulate(lengths)]
    return [(min(a, end - 1), b) for a, b in zip([start, *ends], ends, strict=False)]
