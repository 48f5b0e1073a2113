"""A model that says classes of texts, or tags of words, with all it needs to read them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.config import to_json
from headwise.recording import Run
from headwise.recording.checksums import check_checksums, write_checksums
from headwise.workflows.inspect.opening import opened, quiet_transformers
from headwise_papers.data.subword import ByteLevelCodec
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.models.encoder_heads import SequenceClassifier, TokenClassifier
from headwise_papers.recipes.tuning.reading import (
    Batch,
    Pieces,
    Row,
    batch_of,
    read_example,
    read_sentence,
)

__all__ = ["Classifier", "Reads", "class_scores"]

Reads = Literal["text", "pair", "either", "words"]

HUGGING_FACE = "hugging-face"  # the folder of such a model, in that of the run
ABOUT = {"classes": [str], "reads": str, "pad": int, "length": int}  # shape of classifier.json
AT_ONCE = 64  # rows judged together


def class_scores(model: nn.Module, batch: Batch) -> Tensor:
    """Scores of the classes of each row or of each position, by one of ours or of Hugging Face's.

    Args:
        model: may be wrapped for several processes.
        batch: as `batches` makes it.
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
    """A fine-tuned model.

    >>> from headwise_papers.data.subword import train_byte_level
    >>> pieces = train_byte_level(["good film", "bad film"], size=270)
    >>> model = SequenceClassifier(Encoder(EncoderConfig.tiny(len(pieces))), 2)
    >>> read = Pieces(pieces.definition, pieces.pad, length=32)
    >>> len(Classifier(model, read, ("bad", "good")).classify(["a film", "a book"]))
    2
    """

    model: Any  # ours, or a PreTrainedModel
    pieces: Pieces
    classes: tuple[str, ...]
    reads: Reads = "either"  # what it was trained on; a model that tags words is for "words"

    def __post_init__(self) -> None:
        if (self.reads == "words") != _tags(self.model):
            raise ValueError(
                f"{type(self.model).__name__} does not go with reads={self.reads!r}: a model that "
                "tags reads words, and no other does."
            )

    def classify(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> list[str]:
        """The class of each text, or of each pair.

        Args:
            texts: to be classified.
            seconds: the second texts, for a model of pairs.
        """
        self._check(texts, seconds)
        pairs = zip(texts, [None] * len(texts) if seconds is None else seconds, strict=True)
        rows = self.pieces.read([read_example(text, second) for text, second in pairs])
        return [self.classes[found[0]] for found in self.predict(rows)]

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """The tag of each word of some sentences."""
        if self.reads != "words":
            raise ValueError("This model says the class of a text; ask it with classify.")
        if any(isinstance(words, str) for words in sentences):
            raise ValueError("Sentences were wanted as lists of words, got text; split it first.")
        rows = self.pieces.read([read_sentence(words) for words in sentences if words])
        found = iter(self.predict(rows))
        return [
            [self.classes[number] for number in next(found)] if words else [] for words in sentences
        ]

    def _check(self, texts: Sequence[str], seconds: Sequence[str] | None) -> None:
        if self.reads == "words":
            raise ValueError("This model says the tag of each word; ask it with tag.")
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
        """Numbers of classes: one a row, or one a word; a word that was cut off gets class 0.

        The model is used in the mode it is in, on the device it is on.
        """
        device = next(self.model.parameters()).device
        found = [[0] * max(1, len(row.firsts)) for row in rows]
        order = sorted(range(len(rows)), key=lambda place: len(rows[place].ids))
        for start in range(0, len(order), AT_ONCE):
            chosen = order[start : start + AT_ONCE]
            batch = batch_of(self.pieces, [rows[at] for at in chosen], [found[at] for at in chosen])
            there = {name: tensor.to(device) for name, tensor in batch.items()}
            best = class_scores(self.model, there).argmax(-1).tolist()
            for at, numbers in zip(chosen, best, strict=True):
                found[at] = _of_words(rows[at], numbers) if rows[at].firsts else [numbers]
        return found

    def tokenizer(self) -> Any:
        """How it reads, as a tokenizer of transformers; what a text says is text, as in training.

        Marks other than padding have no names there where Hugging Face made the tokenizer.
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
        """Keep it in a run, from which `load` makes it again."""
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
        """The one that a run keeps, on the CPU and in evaluation mode."""
        if not run.has("classifier.json"):
            raise ValueError(f"{run.folder} keeps no classifier; it may not be finished.")
        about = run.read_json("classifier.json", ABOUT)
        definition = run.read_text("tokenizer.json")
        pieces = Pieces(definition, about["pad"], about["length"])
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
    """Whether a model of Hugging Face has types of tokens, for the two texts of a pair."""
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
