"""From a folder to something that can be inspected."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from headwise.hf import adopt
from headwise.json_files import read_json
from headwise.pruning import load
from headwise.recording import Run
from headwise.workflows.folders import load_model, load_tokenizer, opened
from headwise.workflows.inspect.hugging_face_subject import (
    MAX_TRANSLATION,
    HuggingFaceSubject,
)
from headwise.workflows.inspect.identity import check_finite
from headwise.workflows.inspect.subject import Subject
from headwise.workflows.inspect.text_alone import check_reads_text
from headwise.workflows.run_kinds import RunKind, kind_of_run
from headwise_papers.data.byte_pieces import BytePieces
from headwise_papers.data.marian import marian_folder
from headwise_papers.models.encoder import Encoder
from headwise_papers.models.encoder_heads import (
    MaskedLM,
    MaskedLMWithNextSentence,
    SequenceClassifier,
    TokenClassifier,
)
from headwise_papers.recipes.encoder_subject import EncoderSubject
from headwise_papers.recipes.own_subjects import TranslatorSubject
from headwise_papers.recipes.pretraining import load_pretrained
from headwise_papers.recipes.pretraining_tasks import PretrainingModel
from headwise_papers.recipes.translator import Translator
from headwise_papers.recipes.tuning.classifier import Classifier


def open_subject(
    folder: Path,
    *,
    special: Sequence[str] = (),
    device: str = "auto",
    max_translation: int = MAX_TRANSLATION,
) -> Subject:
    """The model in a folder: a run of Headwise, a Hugging Face model, or a translator of Marian.

    Nothing is downloaded: a model of the hub must lie in a local folder first.

    Args:
        folder: of the model.
        special: more tokens that are not to count as words.
        device: such as "cpu" or "cuda:1"; "auto" takes a GPU where there is one.
        max_translation: tokens of a translation that a Hugging Face model writes, at most.
    """
    place = chosen_device(device)
    if not folder.is_dir():
        raise ValueError(
            f"There is no model folder {folder}. Give the folder of a headwise run or of a saved "
            "Hugging Face model; models of the hub are fetched with `hf download NAME`."
        )
    if kind := kind_of_run(folder):
        return _of_run(Run.open(folder), kind, special=special, place=place)
    if files := marian_folder(folder):
        return _of_translator(Translator.of_marian(files), special=special, place=place)
    if (folder / "config.json").exists():
        model = _hugging_face(folder).to(place)
        tokenizer = padding_right(load_tokenizer(folder))
        return HuggingFaceSubject(adopt(model), tokenizer, frozenset(special), max_translation)
    raise ValueError(
        f"{folder} holds neither a headwise run nor a Hugging Face model, nor one of Marian."
    )


def _of_run(run: Run, kind: RunKind, *, special: Sequence[str], place: torch.device) -> Subject:
    if kind == "encoder":
        trained = load_pretrained(run)
        check_finite(trained.model)
        return encoder_subject(trained.model.to(place), trained.pieces, special=special)
    if kind == "classifier":
        classifier = Classifier.load(run)
        classifier.model.to(place)
        return classifier_subject(classifier, special=special)
    return _of_translator(Translator.load(run), special=special, place=place)


def _of_translator(
    translator: Translator, *, special: Sequence[str], place: torch.device
) -> Subject:
    check_finite(translator.model)
    translator.model.to(place)
    return TranslatorSubject.of(translator, special=special)


def encoder_subject(
    model: PretrainingModel | Encoder, pieces: BytePieces, *, special: Sequence[str] = ()
) -> Subject:
    """A pre-trained encoder of ours: as a model of Hugging Face, or, where none is like it, itself.

    Args:
        model: on the device where it is to be.
        pieces: its tokenizer.
        special: more tokens that are not to count as words.
    """
    from headwise_papers.models.encoder_weights import to_hugging_face  # lazy: takes seconds

    config = model.config if isinstance(model, Encoder) else model.encoder.config
    if config.attention != "softmax":
        return EncoderSubject(model.eval(), pieces, frozenset(special))
    if isinstance(model, MaskedLMWithNextSentence):  # what reads one text has no use for pairs
        both, model = model, MaskedLM(model.encoder)
        model.words = both.words
    tokenizer = padding_right(pieces.hugging_face(max_length=config.max_length))
    tokenizer.split_special_tokens = True  # what a text says is text, as when it was pre-trained
    return HuggingFaceSubject(adopt(to_hugging_face(model).eval()), tokenizer, frozenset(special))


def classifier_subject(classifier: Classifier, *, special: Sequence[str] = ()) -> Subject:
    """A classifier of `headwise train classifier`, as a model of Hugging Face, or its encoder.

    Args:
        classifier: on the device where it is to be.
        special: more tokens that are not to count as words.
    """
    from headwise_papers.models.encoder_weights import to_hugging_face  # lazy: takes seconds

    model, tokenizer = classifier.model, classifier.tokenizer()
    check_finite(model)
    if isinstance(model, SequenceClassifier | TokenClassifier):
        if model.encoder.config.attention != "softmax":
            pieces = BytePieces(classifier.pieces.definition)
            return EncoderSubject(model.encoder.eval(), pieces, frozenset(special))
        model = to_hugging_face(model)
        names = dict(enumerate(classifier.classes))
        model.config.id2label = names
        model.config.label2id = {name: number for number, name in names.items()}
    return HuggingFaceSubject(adopt(model.eval()), tokenizer, frozenset(special))


def _hugging_face(folder: Path) -> Any:
    pruned = (folder / "pruning.json").exists()
    model = (load(folder) if pruned else _loaded(folder)).eval()
    if not hasattr(model, "main_input_name"):
        raise ValueError(
            f"{folder} holds a {type(model).__name__} of headwise without its words. From Python, "
            "observe(pruning.load(folder), Profile()) works for it."
        )
    check_reads_text(model)
    check_finite(model)
    return model


def _loaded(folder: Path) -> Any:
    import transformers

    with opened(folder):
        kind = _model_class(transformers, read_json(folder / "config.json", dict))
    return load_model(folder, kind)


def _model_class(transformers: Any, settings: dict[str, Any]) -> Any:
    """The class the model was saved as, which keeps its output layer."""
    named = settings.get("architectures") or [""]
    found = getattr(transformers, str(named[0]), None) if isinstance(named, list) else None
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    return found if is_model else transformers.AutoModel


def padding_right(tokenizer: Any) -> Any:
    """Let a tokenizer put padding after each line, with its end mark where it has no own token."""
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ValueError(
                f"{type(tokenizer).__name__} has neither a padding token nor an end mark; "
                "set tokenizer.pad_token."
            )
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return tokenizer


def chosen_device(name: str) -> torch.device:
    """The device of a name; "auto" takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(
            f"A device such as cpu, cuda or cuda:1 was wanted, got {name!r}."
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"There is no CUDA device here for {name!r}; use cpu or auto.")
    return device
