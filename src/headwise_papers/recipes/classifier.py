"""Classifiers of texts, pairs and words: models with their tokenizer, in a run folder."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from headwise.config import to_json
from headwise.recording import Run, check_checksums, write_checksums
from headwise.text import Epochs, characters_for, first_words
from headwise.workflows.inspect import opened, quiet_transformers
from headwise_papers.data.batches import pad
from headwise_papers.data.subword import ByteLevelCodec
from headwise_papers.data.tasks import Example, TaggedSentence
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.models.encoder_heads import SequenceClassifier, TokenClassifier

Batch = Mapping[str, Tensor]
Reads = Literal["text", "pair", "either", "words"]

IGNORED = -100  # label of a position that does not count
MULTIPLE = 8  # of widths of batches: few shapes, which a GPU can record
PREDICTED_TOGETHER = 64  # rows
HUGGING_FACE = "hugging-face"  # folder of such a model, in that of the run
ABOUT = {"classes": [str], "reads": str, "pad": int, "length": int}  # shape of classifier.json


class Row(NamedTuple):
    """One tokenized example, special tokens included."""

    ids: list[int]
    types: list[int]  # token types: 1 in the second text of a pair, where the tokenizer has types
    firsts: list[int]  # position of the first token of each word; -1: cut off, or no token
    cut: bool  # whether it was truncated


@dataclass(frozen=True, eq=False)
class TruncatingTokenizer:
    """A tokenizer that truncates texts to a length; of a pair it truncates the longer text."""

    definition: str  # contents of tokenizer.json
    pad: int  # id of the padding
    length: int  # maximum tokens, special tokens included

    def read(self, examples: Sequence[Example] | Sequence[TaggedSentence]) -> list[Row]:
        """Tokenize texts, pairs or tagged sentences."""
        tokenizer, longest = self._tokenizer(), characters_for(self.length)
        # a byte-level tokenizer expects a space before a word inside a text
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
        """Make a tokenizer of transformers, with token types if asked for."""
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
        tokenizer.encode_special_tokens = True  # "</s>" in a text is text
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.length)
        return tokenizer


def read_example(text: str, second: str | None = None) -> Example:
    """Make an example of a text or a pair without a known class."""
    return Example(0, text, second)


def read_sentence(words: Sequence[str]) -> TaggedSentence:
    """Make a sentence of words without known tags."""
    return TaggedSentence(tuple(words), ("O",) * len(words))


def batches(
    pieces: TruncatingTokenizer,
    rows: Sequence[Row],
    labels: Sequence[Sequence[int]],
    *,
    size: int,
    seed: int,
) -> Epochs[Batch]:
    """Make endless batches of rows of similar length with their labels.

    Args:
        pieces: tokenizer of the rows.
        rows: examples.
        labels: the class of each row, or a class for each word.
        size: rows of a batch.
        seed: of the order.
    """

    def chosen(places: list[int]) -> Batch:
        return batch_of(pieces, [rows[at] for at in places], [labels[at] for at in places])

    return Epochs([len(row.ids) for row in rows], chosen, size=size, seed=seed)


def batch_of(
    pieces: TruncatingTokenizer, rows: Sequence[Row], labels: Sequence[Sequence[int]]
) -> Batch:
    """Make one batch: `ids`, `lengths`, `types` and `labels`, in the order of the rows."""
    padded = pad([row.ids for row in rows], value=pieces.pad, multiple=MULTIPLE)
    types = pad([row.types for row in rows], multiple=MULTIPLE)
    width = min(padded.ids.shape[1], pieces.length)  # the model's maximum length
    wanted = [_labels(row, own, width) for row, own in zip(rows, labels, strict=True)]
    return {
        "ids": padded.ids[:, :width],
        "lengths": padded.lengths,
        "types": types.ids[:, :width],
        "labels": torch.tensor(wanted),
    }


def _labels(row: Row, labels: Sequence[int], width: int) -> list[int] | int:
    """Return the class of a row, or of each position: a word's first token has its class."""
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


def class_scores(model: nn.Module, batch: Batch) -> Tensor:
    """Compute the scores of the classes of each row or position.

    Args:
        model: one of `headwise_papers.models` or of Hugging Face; may be wrapped.
        batch: from `batches`.
    """
    ids, lengths, types = batch["ids"], batch["lengths"], batch["types"]
    inner: Any = getattr(model, "module", model)
    settings = inner.encoder.config if _is_ours(inner) else inner.config
    if _is_ours(inner):
        paired = types if settings.token_types > 1 else None
        return model(ids, lengths=lengths, token_types=paired)
    real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    inputs = {"input_ids": ids, "attention_mask": real.long()}
    if _tells_pairs(settings):
        inputs["token_type_ids"] = types
    return model(**inputs).logits


def _is_ours(model: nn.Module) -> bool:
    return isinstance(model, SequenceClassifier | TokenClassifier)


@dataclass(frozen=True, eq=False)
class Classifier:
    """A fine-tuned model with its tokenizer and the names of its classes.

    >>> from headwise_papers.data.subword import train_byte_level
    >>> pieces = train_byte_level(["good film", "bad film"], size=270)
    >>> model = SequenceClassifier(Encoder(EncoderConfig.tiny(len(pieces))), 2)
    >>> read = TruncatingTokenizer(pieces.definition, pieces.pad, length=32)
    >>> len(Classifier(model, read, ("bad", "good")).classify(["a film", "a book"]))
    2
    """

    model: Any  # of headwise_papers.models, or a PreTrainedModel
    pieces: TruncatingTokenizer
    classes: tuple[str, ...]
    reads: Reads = "either"  # inputs it was trained on; a model that tags words reads "words"

    def __post_init__(self) -> None:
        if (self.reads == "words") != _tags(self.model):
            raise ValueError(
                f"{type(self.model).__name__} does not go with reads={self.reads!r}: a model that "
                "tags reads words, and no other does."
            )

    def classify(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> list[str]:
        """Return the class of each text, or of each pair.

        Args:
            texts: to be classified.
            seconds: the second texts, for a model of pairs.
        """
        self._check(texts, seconds)
        pairs = zip(texts, [None] * len(texts) if seconds is None else seconds, strict=True)
        rows = self.pieces.read([read_example(text, second) for text, second in pairs])
        return [self.classes[found[0]] for found in self.predict(rows)]

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Return the tag of each word of some sentences."""
        if self.reads != "words":
            raise ValueError("This model classifies texts; call classify.")
        if any(isinstance(words, str) for words in sentences):
            raise ValueError("Sentences were wanted as lists of words, got text; split it first.")
        rows = self.pieces.read([read_sentence(words) for words in sentences if words])
        found = iter(self.predict(rows))
        return [
            [self.classes[number] for number in next(found)] if words else [] for words in sentences
        ]

    def _check(self, texts: Sequence[str], seconds: Sequence[str] | None) -> None:
        if self.reads == "words":
            raise ValueError("This model tags words; call tag.")
        if isinstance(texts, str) or isinstance(seconds, str):
            raise ValueError("A list of texts was wanted, got one text; give [text].")
        if seconds is None and self.reads == "pair":
            raise ValueError("This model was trained on pairs; give the second texts too.")
        if seconds is not None and self.reads == "text":
            raise ValueError("This model was trained on single texts; leave the second ones out.")
        if seconds is not None and len(seconds) != len(texts):
            raise ValueError(
                f"As many second texts as texts were wanted, got {len(seconds)} and {len(texts)}."
            )

    @torch.no_grad()
    def predict(self, rows: Sequence[Row]) -> list[list[int]]:
        """Return class numbers, one per row or one per word; a truncated word gets class 0.

        The model's mode and device are left as they are.
        """
        device = next(self.model.parameters()).device
        found = [[0] * max(1, len(row.firsts)) for row in rows]
        order = sorted(range(len(rows)), key=lambda place: len(rows[place].ids))
        for start in range(0, len(order), PREDICTED_TOGETHER):
            chosen = order[start : start + PREDICTED_TOGETHER]
            batch = batch_of(self.pieces, [rows[at] for at in chosen], [found[at] for at in chosen])
            there = {name: tensor.to(device) for name, tensor in batch.items()}
            best = class_scores(self.model, there).argmax(-1).tolist()
            for at, numbers in zip(chosen, best, strict=True):
                found[at] = _of_words(rows[at], numbers) if rows[at].firsts else [numbers]
        return found

    def tokenizer(self) -> Any:
        """Return a tokenizer of transformers; special tokens in a text are text, as in training.

        For a Hugging Face model its special tokens other than padding have no names.
        """
        if _is_ours(self.model):
            found = ByteLevelCodec(self.pieces.definition).hugging_face()
        else:
            found = self.pieces.hugging_face(types=_tells_pairs(self.model.config))
        found.model_max_length = self.pieces.length
        found.padding_side = "right"
        found.split_special_tokens = True
        return found

    def save(self, run: Run) -> None:
        """Write everything that `load` needs into a run."""
        if _is_ours(self.model):
            run.write_json("model.json", to_json(self.model.encoder.config))
            run.save_tensors("model.safetensors", self.model.state_dict())
        else:
            self._save_hugging_face(run.path(HUGGING_FACE))
        run.write_text("tokenizer.json", self.pieces.definition)
        about = {
            "classes": self.classes,
            "reads": self.reads,
            "pad": self.pieces.pad,
            "length": self.pieces.length,
        }
        run.write_json("classifier.json", about)

    def _save_hugging_face(self, folder: Path) -> None:
        if not folder.exists():
            half = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
            with quiet_transformers():
                self.model.save_pretrained(half)
            write_checksums(half)
            half.rename(folder)

    @staticmethod
    def load(run: Run) -> "Classifier":
        """Return the classifier of a run, on the CPU and in evaluation mode."""
        if not run.has("classifier.json"):
            raise ValueError(f"{run.folder} keeps no classifier; it may not be finished.")
        about = run.read_json("classifier.json", ABOUT)
        definition = run.read_text("tokenizer.json")
        pieces = TruncatingTokenizer(definition, about["pad"], about["length"])
        classes = tuple(about["classes"])
        reads: Reads = about["reads"]
        if not run.has("model.safetensors"):
            return Classifier(_hugging_face(run, tags=reads == "words"), pieces, classes, reads)
        encoder = Encoder(run.read_settings("model.json", EncoderConfig))
        kind = TokenClassifier if reads == "words" else SequenceClassifier
        model = kind(encoder, len(classes))
        model.load_state_dict(run.load_tensors("model.safetensors"))
        return Classifier(model.eval(), pieces, classes, reads)


def _tells_pairs(settings: Any) -> bool:
    """Tell whether a Hugging Face model has token types for the two texts of a pair."""
    return getattr(settings, "type_vocab_size", 0) > 1


def _of_words(row: Row, numbers: Sequence[int]) -> list[int]:
    return [numbers[place] if place >= 0 else 0 for place in row.firsts]


def _tags(model: nn.Module) -> bool:
    theirs = type(model).__name__.endswith("ForTokenClassification")
    return theirs or isinstance(model, TokenClassifier)


def _hugging_face(run: Run, *, tags: bool) -> Any:
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    kind: Any = AutoModelForTokenClassification if tags else AutoModelForSequenceClassification
    folder = run.path(HUGGING_FACE)
    check_checksums(folder)
    with opened(folder):
        model: Any = kind.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    return model.eval()
