"""The text of a pre-training in its run: the tokenizer, and the numbers of all pieces."""

from pathlib import Path
from typing import NamedTuple

from headwise.config import from_json
from headwise.recording import Run
from headwise.training.checkpoint import CHECKPOINT
from headwise.training.progress import clock
from headwise_papers.data.masking import EncodedText, encode_documents
from headwise_papers.data.pretraining import PretrainingTexts, read_pretraining, read_text_file
from headwise_papers.data.subword import ByteLevelCodec, train_byte_level
from headwise_papers.recipes.pretraining_settings import PretrainingConfig

__all__ = ["PretrainingText", "read_texts", "same_text", "text_in"]

TOKENIZER, TEXT, CHECKSUM = "tokenizer.json", "text.safetensors", "text.json"
LARGE = {"debian-docs-en": 52_000}  # pieces of texts that have words enough
SMALL = 8_000
# settings that decide what the text is
SAME = ("corpus", "file", "vocab_size", "train_documents", "valid_documents")


class PretrainingText(NamedTuple):
    """A text in pieces."""

    pieces: ByteLevelCodec
    train: EncodedText
    valid: EncodedText
    checksum: str = ""  # of its documents; "" of runs from before there were any


def read_texts(settings: PretrainingConfig, folder: Path) -> PretrainingText | None:
    """The text in pieces, learnt and numbered now or lent; None where the run in a folder has it.

    What cannot be read, or is not what a run in the folder began with, is refused here, before
    there is a folder.
    """
    if (folder / TEXT).is_file() or (folder / "figures.json").is_file():
        return None
    text = _lent(settings, folder) if settings.text_of else _numbered(settings)
    if (folder / CHECKPOINT).is_file() and _differ(began := _checksum(Run.open(folder)), text):
        raise ValueError(
            f"{folder} holds a training on another text, of checksum {began[:16]} where this one "
            f"has {text.checksum[:16]}; bring that text back, or choose another folder."
        )
    return text


def text_in(run: Run, settings: PretrainingConfig, text: PretrainingText | None) -> PretrainingText:
    """The text of a run, which is kept there the first time.

    Args:
        run: gets `tokenizer.json`, `text.json` and, unless another run has it, `text.safetensors`.
        settings: of the journey.
        text: what `read_texts` gave.
    """
    if text is None:
        return _load(Run.open(settings.text_of) if settings.text_of else run)
    text.pieces.save(run.path(TOKENIZER))
    run.write_json(CHECKSUM, {"sha256": text.checksum})
    if not settings.text_of:
        run.save_tensors(TEXT, text.train.tensors("train") | text.valid.tensors("valid"))
    return text


def same_text(settings: PretrainingConfig, other: Run) -> bool:
    """Whether another run has the text and the tokenizer that these settings ask for."""
    return other.has(TEXT) and other.has(TOKENIZER) and _other_text(settings, other) is None


def _numbered(settings: PretrainingConfig) -> PretrainingText:
    """Learn the pieces and number the text."""
    texts = _documents(settings)
    size = settings.vocab_size or LARGE.get(settings.corpus, SMALL)
    lines = (line for document in texts.train for line in document)
    with clock(f"learning {size:,} tokens"):
        pieces = train_byte_level(lines, size=size, style=settings.marks)
    with clock("numbering the text"):
        train, valid = (encode_documents(part, pieces) for part in (texts.train, texts.valid))
    return PretrainingText(pieces, train, valid, texts.checksum())


def _documents(settings: PretrainingConfig) -> PretrainingTexts:
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


def _lent(settings: PretrainingConfig, folder: Path) -> PretrainingText:
    """The text of another run. A file must be as that run read it, when a run on it begins."""
    other = Run.open(settings.text_of)
    _check_same(settings, other)
    text = _load(other)
    begins = not (folder / CHECKPOINT).is_file()
    own = begins and settings.corpus == "file" and Path(settings.file).is_file()
    if own and _differ(_documents(settings).checksum(), text):
        raise ValueError(
            f"{settings.file} is not the text it was when {other.folder} read it; text_of is for "
            "runs on the same text, so leave it out."
        )
    return text


def _load(source: Run) -> PretrainingText:
    tensors = source.load_tensors(TEXT)
    train, valid = (EncodedText.of(tensors, part) for part in ("train", "valid"))
    pieces = ByteLevelCodec.load(source.path(TOKENIZER))
    return PretrainingText(pieces, train, valid, _checksum(source))


def _checksum(run: Run) -> str:
    return str(run.read_json(CHECKSUM, {"sha256": str})["sha256"]) if run.has(CHECKSUM) else ""


def _differ(checksum: str, text: PretrainingText) -> bool:
    return bool(checksum and text.checksum) and checksum != text.checksum


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
