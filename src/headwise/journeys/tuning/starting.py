"""What fine-tuning starts from: a pre-training run, a Hugging Face model, or random weights."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from headwise.data.byte_pieces import BytePieces, train_byte_pieces
from headwise.data.pair_tasks import TextTask
from headwise.data.tagging import TaggedTask
from headwise.journeys.inspecting.hugging_face_subject import HuggingFaceSubject
from headwise.journeys.pretraining import load_pretrained
from headwise.journeys.tuning.classifier import quiet_transformers
from headwise.journeys.tuning.reading import Pieces
from headwise.models.encoder import Encoder, EncoderConfig
from headwise.models.encoder_heads import SequenceClassifier, TokenClassifier
from headwise.recording import Run

__all__ = ["NO_MODEL", "Start", "Task", "from_folder", "from_nothing"]

NO_MODEL = "none"
Task = TextTask | TaggedTask


@dataclass(frozen=True, eq=False)
class Start:
    """How a training begins; each begins anew."""

    pieces: Pieces
    build: Callable[[], nn.Module]  # with a new head, whose weights are drawn when called


def from_nothing(
    task: Task, *, shape: Callable[[int], EncoderConfig], vocab: int, length: int
) -> Start:
    """Random weights, and pieces over bytes learnt from the task's training texts.

    Args:
        task: its `train` part is read, and its number of classes.
        shape: of the encoder, from the number of pieces.
        vocab: pieces at most.
        length: pieces of a text at most.
    """
    pieces = train_byte_pieces(_texts(task), size=vocab)
    return _ours(Encoder(shape(len(pieces))), pieces, task, length=length, fresh=True)


def from_folder(folder: Path, task: Task, *, length: int, fresh: bool) -> Start:
    """A pre-training run of Headwise, or a model that Hugging Face saved.

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
        model, pieces = load_pretrained(Run.open(folder))
        return _ours(model.encoder, pieces, task, length=length, fresh=fresh)
    if (folder / "config.json").exists():
        return _hugging_face(folder, task, length=length, fresh=fresh)
    raise ValueError(f"{folder} holds neither a headwise run nor a Hugging Face model.")


def _texts(task: Task) -> Iterable[str]:
    if isinstance(task, TaggedTask):
        return (" ".join(sentence.words) for sentence in task.train)
    return (text for example in task.train for text in example[1:] if text)


def _ours(encoder: Encoder, pieces: BytePieces, task: Task, *, length: int, fresh: bool) -> Start:
    shape, weights = encoder.config, {} if fresh else encoder.state_dict()
    head = TokenClassifier if isinstance(task, TaggedTask) else SequenceClassifier

    def build() -> nn.Module:
        new = Encoder(shape)
        if weights:
            new.load_state_dict(weights)
        return head(new, len(task.classes))

    room = min(length, shape.max_length)
    return Start(Pieces(pieces.definition, pieces.pad, room), build)


def _hugging_face(folder: Path, task: Task, *, length: int, fresh: bool) -> Start:
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{folder} has no tokenizer that can be loaded: {_first_line(error)}"
        ) from error
    if not getattr(tokenizer, "is_fast", False) or tokenizer.pad_token_id is None:
        raise ValueError(
            f"{folder} needs a fast tokenizer with a padding token; save such a one there."
        )

    def build() -> nn.Module:
        return _loaded(folder, task, fresh=fresh)

    room = HuggingFaceSubject(build(), tokenizer).room
    definition = str(tokenizer.backend_tokenizer.to_str())
    return Start(Pieces(definition, tokenizer.pad_token_id, min(length, room)), build)


def _loaded(folder: Path, task: Task, *, fresh: bool) -> Any:
    """The model with a head for the task's classes; only the head may be new."""
    import transformers
    from safetensors import SafetensorError

    tagged = isinstance(task, TaggedTask)
    name = "AutoModelForTokenClassification" if tagged else "AutoModelForSequenceClassification"
    kind = getattr(transformers, name)
    names = dict(enumerate(task.classes))
    settings: Any = {"id2label": names, "label2id": {n: at for at, n in names.items()}}
    try:
        with quiet_transformers():
            if fresh:
                shape = transformers.AutoConfig.from_pretrained(
                    folder, local_files_only=True, **settings
                )
                return kind.from_config(shape)
            model, about = kind.from_pretrained(
                folder,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # a head for other classes
                output_loading_info=True,
                **settings,
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"{folder} could not be opened as a Hugging Face model: {_first_line(error)}"
        ) from error
    _check_whole(folder, model, about["missing_keys"])
    return model


def _check_whole(folder: Path, model: Any, missing: Iterable[str]) -> None:
    """Refuse an encoder without its weights, for which transformers would draw new ones."""
    body = f"{model.base_model_prefix}."
    lost = sorted(name for name in missing if name.startswith(body) and "pooler" not in name)
    if lost:
        raise ValueError(
            f"The weights in {folder} are not those of a {type(model).__name__}: {len(lost)} are "
            f"missing, {lost[0]} among them. Save the model again with save_pretrained."
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
