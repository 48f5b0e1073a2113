"""What fine-tuning starts from: a pre-training run, a Hugging Face model, or random weights."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from headwise.recording import Run
from headwise.workflows.inspect.hugging_face import HuggingFaceSubject
from headwise.workflows.inspect.opening import load_model, load_tokenizer, opened
from headwise_papers.data.subword import ByteLevelCodec, train_byte_level
from headwise_papers.data.tasks import TaggedTask, TextTask
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.models.encoder_heads import (
    MaskedLMWithNextSentence,
    SequenceClassifier,
    TokenClassifier,
)
from headwise_papers.recipes.pretraining import load_pretrained
from headwise_papers.recipes.pretraining_tasks import PretrainingModel
from headwise_papers.recipes.pretraining_text import TOKENIZER
from headwise_papers.recipes.tuning.reading import Pieces

__all__ = ["NO_MODEL", "Start", "Task", "from_folder", "from_nothing"]

NO_MODEL = "none"
Task = TextTask | TaggedTask


@dataclass(frozen=True, eq=False)
class Start:
    """How a training begins; each begins anew."""

    pieces: Pieces
    build: Callable[[], nn.Module]  # with a new head, whose weights are drawn when called
    replayable: bool = False  # whether CUDA graphs can be made of its steps


def from_nothing(
    task: Task, *, shape: Callable[[int], EncoderConfig], vocab: int, length: int
) -> Start:
    """Random weights, and pieces over bytes learnt from the task's training texts.

    These are those of the published training part, without labels, in cross-validation too: there
    all folds share one tokenizer, which knows texts that some folds are judged by.

    Args:
        task: its `train` part is read, and its number of classes.
        shape: of the encoder, from the number of pieces.
        vocab: pieces at most.
        length: pieces of a text at most.
    """
    pieces = train_byte_level(_texts(task), size=vocab)
    return _ours(Encoder(shape(len(pieces))), pieces, task, length=length, fresh=True)


def from_folder(folder: Path, task: Task, *, length: int, fresh: bool) -> Start:
    """A pre-training run of Headwise, or a model that Hugging Face saved.

    Of a BERT that learnt to tell next sentences its pooling is taken too.

    Args:
        folder: of either.
        task: its classes are those of the new head.
        length: pieces of a text at most; what the model has room for, if that is less.
        fresh: keep the shape and the tokenizer alone, and draw all weights anew.
    """
    if not folder.is_dir():
        raise ValueError(
            f"There is no model folder {folder}. Give a run of `headwise train mlm`, the folder of "
            f"a saved Hugging Face model, or {NO_MODEL!r} for random weights."
        )
    if (folder / "environment.json").exists():
        run = Run.open(folder)
        model, pieces = _shape_of(run) if fresh and _finished(run) else load_pretrained(run)
        return _ours(model, pieces, task, length=length, fresh=fresh)
    if (folder / "config.json").exists():
        return _hugging_face(folder, task, length=length, fresh=fresh)
    raise ValueError(f"{folder} holds neither a headwise run nor a Hugging Face model.")


def _finished(run: Run) -> bool:
    return run.kind == "pretraining" and run.has("figures.json")


def _shape_of(run: Run) -> tuple[Encoder, ByteLevelCodec]:
    """Of a finished pre-training whose weights are not asked for, and need not be there."""
    shape = run.read_settings("model.json", EncoderConfig)
    return Encoder(shape), ByteLevelCodec.load(run.path(TOKENIZER))


def _texts(task: Task) -> Iterable[str]:
    if isinstance(task, TaggedTask):
        return (" ".join(sentence.words) for sentence in task.train)
    return (text for example in task.train for text in example[1:] if text)


def _ours(
    model: PretrainingModel | Encoder,
    pieces: ByteLevelCodec,
    task: Task,
    *,
    length: int,
    fresh: bool,
) -> Start:
    encoder = model if isinstance(model, Encoder) else model.encoder
    shape, weights = encoder.config, {} if fresh else encoder.state_dict()
    pool: dict[str, Tensor] = {}
    if isinstance(model, MaskedLMWithNextSentence) and not fresh:
        pool = model.pool.state_dict()

    def build() -> nn.Module:
        new = Encoder(shape)
        if weights:
            new.load_state_dict(weights)
        if isinstance(task, TaggedTask):
            return TokenClassifier(new, len(task.classes))
        classifier = SequenceClassifier(new, len(task.classes))
        if pool:
            classifier.pool.load_state_dict(pool)
        return classifier

    room = min(length, shape.max_length)
    return Start(Pieces(pieces.definition, pieces.pad, room), build, replayable=True)


def _hugging_face(folder: Path, task: Task, *, length: int, fresh: bool) -> Start:
    tokenizer = load_tokenizer(folder)
    if not getattr(tokenizer, "is_fast", False) or tokenizer.pad_token_id is None:
        raise ValueError(
            f"{folder} needs a fast tokenizer with a padding token; save such a one there."
        )

    def build() -> nn.Module:
        return _loaded(folder, task, fresh=fresh)

    # loaded once now: what is wrong with its weights is said before there is a folder
    room = HuggingFaceSubject(build(), tokenizer).max_tokens
    definition = str(tokenizer.backend_tokenizer.to_str())
    return Start(Pieces(definition, tokenizer.pad_token_id, min(length, room)), build)


def _loaded(folder: Path, task: Task, *, fresh: bool) -> Any:
    """The model with a head for the task's classes; only the head may be new."""
    import transformers

    tagged = isinstance(task, TaggedTask)
    name = "AutoModelForTokenClassification" if tagged else "AutoModelForSequenceClassification"
    kind: Any = getattr(transformers, name)
    names = dict(enumerate(task.classes))
    head: Any = {"id2label": names, "label2id": {n: at for at, n in names.items()}}
    if not fresh:
        return load_model(folder, kind, new_head=head).float()  # saved in half, maybe
    with opened(folder):
        shape = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **head
        )
        return kind.from_config(shape, trust_remote_code=False)
