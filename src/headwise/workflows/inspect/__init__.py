"""Inspection: what each head of a model does and how much it matters.

config                       settings
sentence, corpus             what is read
subject, hugging_face        how a model reads it
annotation, stream           one pass: what heads attend to
importance                   a sample in detail: how much heads matter
examining, inspection        all of it, and the run that keeps it
"""

from headwise.workflows.inspect.annotation import Annotation
from headwise.workflows.inspect.config import InspectConfig
from headwise.workflows.inspect.corpus import coreference_corpus
from headwise.workflows.inspect.hugging_face import HuggingFaceSubject, padding_right
from headwise.workflows.inspect.inspection import inspect, inspect_folder
from headwise.workflows.inspect.opening import (
    chosen_device,
    load_model,
    load_tokenizer,
    open_subject,
    opened,
    quiet_transformers,
)
from headwise.workflows.inspect.sentence import Linked, Sentence
from headwise.workflows.inspect.stream import Stream, read_through
from headwise.workflows.inspect.subject import (
    MAX_TOKENS,
    NO_WORD,
    Output,
    Prepared,
    Subject,
    check_finite,
    check_special,
    no_token,
    without,
    word_numbers,
)

__all__ = [
    "MAX_TOKENS",
    "NO_WORD",
    "Annotation",
    "HuggingFaceSubject",
    "InspectConfig",
    "Linked",
    "Output",
    "Prepared",
    "Sentence",
    "Stream",
    "Subject",
    "check_finite",
    "check_special",
    "chosen_device",
    "coreference_corpus",
    "inspect",
    "inspect_folder",
    "load_model",
    "load_tokenizer",
    "no_token",
    "open_subject",
    "opened",
    "padding_right",
    "quiet_transformers",
    "read_through",
    "without",
    "word_numbers",
]
