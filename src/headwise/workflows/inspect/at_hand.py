"""From a model and tokenizer at hand to something that can be inspected, and left as it came."""

import copy
from collections.abc import Generator
from contextlib import contextmanager

from torch import nn
from transformers import PreTrainedModel

from headwise.hf import adopt, release
from headwise.hf.adoption import is_adopted, unwrapped
from headwise.workflows.inspect.hugging_face_subject import HuggingFaceSubject
from headwise.workflows.inspect.subject import Subject
from headwise.workflows.inspect.text_alone import check_reads_text
from headwise.workflows.opening import padding_right
from headwise_papers.data.vocabulary import Vocabulary
from headwise_papers.models import Transformer
from headwise_papers.models.classifier import TransformerClassifier
from headwise_papers.models.rnn import RnnClassifier, Seq2Seq
from headwise_papers.recipes.codec import Codec, InWords
from headwise_papers.recipes.own_subjects import ClassifierSubject, TranslatorSubject

__all__ = ["evaluated", "subject_of"]


@contextmanager
def evaluated(model: nn.Module) -> Generator[None]:
    """A model with sites, evaluated and not trained, for the length of the block."""
    host = _host(model)
    if host is not None:
        check_reads_text(host)
    had_sites = host is None or is_adopted(host)
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        if host is not None:
            adopt(model)
        yield
    finally:
        for module, was_training in training.items():
            module.training = was_training
        if host is not None and not had_sites and is_adopted(host):
            release(model)


def subject_of(
    model: nn.Module, tokenizer: object, special: frozenset[str], *, max_translation: int
) -> Subject:
    """The subject of a model with sites.

    Args:
        model: see `inspect`.
        tokenizer: see `inspect`.
        special: more tokens that are not to count as words.
        max_translation: tokens of a translation that a Hugging Face model writes, at most.
    """
    if isinstance(model, TransformerClassifier | RnnClassifier):
        if not isinstance(tokenizer, Vocabulary):
            raise ValueError(
                f"{type(model).__name__} reads words: give its Vocabulary as the tokenizer, got "
                f"{type(tokenizer).__name__}."
            )
        return ClassifierSubject(model, InWords(tokenizer), special)
    if isinstance(model, Transformer | Seq2Seq):
        return TranslatorSubject(model, *_codecs(model, tokenizer), special)
    own = padding_right(copy.deepcopy(tokenizer))
    # Sentence Transformers' models take a batch as one argument, and give no tokens' outputs
    reader = unwrapped(model) if isinstance(model, nn.Sequential) else model
    return HuggingFaceSubject(reader, own, special, max_translation)


def _host(model: nn.Module) -> PreTrainedModel | None:
    """The Hugging Face model, or None for one of Headwise's own."""
    if isinstance(model, Transformer | Seq2Seq | TransformerClassifier | RnnClassifier):
        return None
    try:
        return unwrapped(model)
    except ValueError:
        raise ValueError(
            "inspect() takes a Hugging Face model (a PreTrainedModel) and its tokenizer, or a "
            "Transformer, Seq2Seq, TransformerClassifier or RnnClassifier of headwise_papers.models and "
            f"its words, got {type(model).__name__}."
        ) from None


def _codecs(model: nn.Module, tokenizer: object) -> tuple[Codec, Codec]:
    if isinstance(tokenizer, tuple) and len(tokenizer) == 2:
        source, target = tokenizer
        if isinstance(source, Codec) and isinstance(target, Codec):
            return source, target
    raise ValueError(
        f"{type(model).__name__} translates: give the codecs of source and target as the "
        "tokenizer, a pair of headwise_papers.recipes.codec.InWords or InPieces. The run of one is "
        "inspected by headwise.workflows.inspect_folder."
    )
