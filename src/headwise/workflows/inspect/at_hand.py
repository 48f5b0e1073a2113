"""From a model and tokenizer at hand to something that can be inspected, and left as it came."""

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager

from torch import nn
from transformers import PreTrainedModel

from headwise.hf import adopt, release
from headwise.hf.adoption import is_adopted, unwrapped
from headwise.workflows.inspect.hugging_face_subject import HuggingFaceSubject
from headwise.workflows.inspect.subject import Subject
from headwise.workflows.inspect.text_alone import check_reads_text
from headwise.workflows.opening import padding_right

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
    if own := _own_subject(model):
        return own(tokenizer, special)
    padded = padding_right(copy.deepcopy(tokenizer))
    # Sentence Transformers' models take a batch as one argument, and give no tokens' outputs
    reader = unwrapped(model) if isinstance(model, nn.Sequential) else model
    return HuggingFaceSubject(reader, padded, special, max_translation)


def _own_subject(model: nn.Module) -> Callable[[object, frozenset[str]], Subject] | None:
    """The method by which a model that is not one of Hugging Face's says how it is read."""
    return getattr(model, "headwise_subject", None)


def _host(model: nn.Module) -> PreTrainedModel | None:
    """The Hugging Face model; None for one that says itself how it is read."""
    if _own_subject(model):
        return None
    try:
        return unwrapped(model)
    except ValueError:
        raise ValueError(
            "inspect() takes a Hugging Face model (a PreTrainedModel) and its tokenizer, or a "
            "model with a method headwise_subject(tokenizer, special), as those of "
            f"headwise_papers.models have, got {type(model).__name__}."
        ) from None
