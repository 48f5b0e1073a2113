"""The text of a pre-training in its run: the tokenizer, and the numbers of all pieces."""

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from headwise.config import from_json
from headwise.data.byte_pieces import BytePieces, train_byte_pieces
from headwise.data.packing import EncodedText, encode_documents
from headwise.data.pretraining import PretrainingTexts, read_pretraining, read_text_file
from headwise.journeys.pretraining_settings import PretrainingConfig
from headwise.recording import Run

__all__ = ["PretrainingText", "read_texts", "same_text", "text_in"]

TOKENIZER, TEXT = "tokenizer.json", "text.safetensors"
LARGE = {"debian-docs-en": 52_000}  # pieces of texts that have words enough
SMALL = 8_000
# settings that decide what the text is
SAME = ("corpus", "file", "vocab", "train_documents", "valid_documents")


class PretrainingText(NamedTuple):
    """A text in pieces."""

    pieces: BytePieces
    train: EncodedText
    valid: EncodedText


def read_texts(settings: PretrainingConfig, folder: Path) -> PretrainingTexts | None:
    """The documents, or None where the run in a folder, or the one it takes it from, has the text.

    What cannot be read is refused here, before there is a folder.
    """
    if (folder / TEXT).is_file() or (folder / "figures.json").is_file():
        return None
    if settings.text_of:
        _check_same(settings, Run.open(settings.text_of))
        return None
    if settings.corpus == "file":
        texts = read_text_file(Path(settings.file))
    else:
        texts = read_pretraining(settings.corpus)
    return PretrainingTexts(
        texts.name,
        texts.train[: settings.train_documents or None],
        texts.valid[: settings.valid_documents or None],
        [],
    )


def text_in(
    run: Run, settings: PretrainingConfig, texts: PretrainingTexts | None
) -> PretrainingText:
    """The text of a run; the first time the tokenizer is learnt and all is numbered, and kept.

    Args:
        run: gets `tokenizer.json` and, unless another run has it, `text.safetensors`.
        settings: of the journey.
        texts: what `read_texts` gave.
    """
    source = Run.open(settings.text_of) if settings.text_of else run
    if texts is not None and not run.has(TEXT):
        _write(run, settings, texts)
    pieces = BytePieces.load(source.path(TOKENIZER))
    if source is not run:
        pieces.save(run.path(TOKENIZER))
    tensors = source.load_tensors(TEXT)
    return PretrainingText(
        pieces, EncodedText.of(tensors, "train"), EncodedText.of(tensors, "valid")
    )


def same_text(settings: PretrainingConfig, other: Run) -> bool:
    """Whether another run has the text and the tokenizer that these settings ask for."""
    return other.has(TEXT) and other.has(TOKENIZER) and _other_text(settings, other) is None


def _write(run: Run, settings: PretrainingConfig, texts: PretrainingTexts) -> None:
    size = settings.vocab or LARGE.get(settings.corpus, SMALL)
    lines = (line for document in texts.train for line in document)
    pieces = train_byte_pieces(lines, size=size, style=settings.marks)
    pieces.save(run.path(TOKENIZER))
    parts = {"train": texts.train, "valid": texts.valid}
    encoded = {part: encode_documents(documents, pieces) for part, documents in parts.items()}
    tensors: dict[str, Tensor] = {}
    for part, text in encoded.items():
        tensors |= text.tensors(part)
    run.save_tensors(TEXT, tensors)


def _check_same(settings: PretrainingConfig, other: Run) -> None:
    """Refuse the text of a run that was made of something else."""
    if not other.has(TEXT) or not other.has(TOKENIZER):
        raise ValueError(
            f"{other.folder} holds no text in pieces; text_of names a run of `headwise train mlm` "
            "or `electra` that has begun, and that did not take its text from elsewhere."
        )
    if name := _other_text(settings, other):
        there, this = from_json(PretrainingConfig, other.config()), getattr(settings, name)
        raise ValueError(
            f"{other.folder} has {name}={getattr(there, name)!r}, but this run {name}={this!r}; "
            "text_of is for runs on the same text."
        )


def _other_text(settings: PretrainingConfig, other: Run) -> str | None:
    """The first setting by which the text of another run is another one."""
    there = from_json(PretrainingConfig, other.config())
    differ = (name for name in (*SAME, "marks") if getattr(there, name) != getattr(settings, name))
    return next(differ, None)
