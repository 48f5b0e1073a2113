"""A model that says classes of texts, or tags of words, with all it needs to read them."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.config import from_json, to_json
from headwise.journeys.tuning.reading import (
    Batch,
    Pieces,
    Row,
    batch_of,
    read_example,
    read_sentence,
)
from headwise.models.encoder import Encoder, EncoderConfig
from headwise.models.encoder_heads import SequenceClassifier, TokenClassifier
from headwise.recording import Run

__all__ = ["Classifier", "class_scores", "quiet_transformers"]

HUGGING_FACE = "hugging-face"  # the folder of such a model, in that of the run
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
    if getattr(settings, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = types
    return model(**inputs).logits


def _is_ours(model: nn.Module) -> bool:
    return isinstance(model, SequenceClassifier | TokenClassifier)


@dataclass(frozen=True, eq=False)
class Classifier:
    """A fine-tuned model.

    >>> from headwise.data.byte_pieces import train_byte_pieces
    >>> pieces = train_byte_pieces(["good film", "bad film"], size=270)
    >>> model = SequenceClassifier(Encoder(EncoderConfig.tiny(len(pieces))), 2)
    >>> read = Pieces(pieces.definition, pieces.pad, length=32)
    >>> len(Classifier(model, read, ("bad", "good")).classify(["a film", "a book"]))
    2
    """

    model: Any  # ours, or a PreTrainedModel
    pieces: Pieces
    classes: tuple[str, ...]

    def classify(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> list[str]:
        """The class of each text, or of each pair.

        Args:
            texts: to be classified.
            seconds: the second texts, for a model of pairs.
        """
        pairs = zip(texts, seconds or [None] * len(texts), strict=True)
        rows = self.pieces.read([read_example(text, second) for text, second in pairs])
        return [self.classes[found[0]] for found in self.predict(rows)]

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """The tag of each word of some sentences."""
        rows = self.pieces.read([read_sentence(words) for words in sentences])
        return [[self.classes[number] for number in found] for found in self.predict(rows)]

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
            "tags": isinstance(self.model, TokenClassifier) or _tags(self.model),
            "pad": self.pieces.pad,
            "length": self.pieces.length,
        }
        run.write_json("classifier.json", about)

    def _save_hugging_face(self, folder: Path) -> None:
        if not folder.exists():
            half = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
            with quiet_transformers():
                self.model.save_pretrained(half)
            half.rename(folder)

    @staticmethod
    def load(run: Run) -> "Classifier":
        """The one that a run keeps, on the CPU and in evaluation mode."""
        if not run.has("classifier.json"):
            raise ValueError(f"{run.folder} keeps no classifier; it may not be finished.")
        about = run.read_json("classifier.json")
        definition = run.path("tokenizer.json").read_text(encoding="utf-8")
        pieces = Pieces(definition, about["pad"], about["length"])
        classes = tuple(about["classes"])
        if not run.has("model.safetensors"):
            return Classifier(_hugging_face(run, tags=about["tags"]), pieces, classes)
        encoder = Encoder(from_json(EncoderConfig, run.read_json("model.json")))
        kind = TokenClassifier if about["tags"] else SequenceClassifier
        model = kind(encoder, len(classes))
        model.load_state_dict(run.load_tensors("model.safetensors"))
        return Classifier(model.eval(), pieces, classes)


def _of_words(row: Row, numbers: Sequence[int]) -> list[int]:
    return [numbers[place] if place >= 0 else 0 for place in row.firsts]


def _tags(model: nn.Module) -> bool:
    return type(model).__name__.endswith("ForTokenClassification")


def _hugging_face(run: Run, *, tags: bool) -> Any:
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    kind: Any = AutoModelForTokenClassification if tags else AutoModelForSequenceClassification
    with quiet_transformers():
        model: Any = kind.from_pretrained(
            run.path(HUGGING_FACE), local_files_only=True, use_safetensors=True
        )
    return model.eval()


@contextmanager
def quiet_transformers() -> Generator[None]:
    """Without transformers' own bars, and its report of a new head where that is what is wanted."""
    from transformers.utils import logging

    shown, before = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if shown:
            logging.enable_progress_bar()
