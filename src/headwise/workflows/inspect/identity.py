"""What an inspection is of: fingerprints of data, model and word counts, and what has changed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.text.frequencies import WordRanks
from headwise.workflows.inspect.corpus import Corpus
from headwise.workflows.inspect.subject import Subject

__all__ = [
    "Sources",
    "check_finite",
    "check_unchanged",
    "model_digest",
    "sources_of",
    "tokenizer_rules",
]

Sources = Mapping[str, str]  # what -> its fingerprint
SAID = {
    "data": "The data have",
    "model": "The model, its settings or its tokenizer have",
    "ranks": "The word counts have",
    "alignments": "The references or alignments have",
}


def sources_of(
    subject: Subject, corpus: Corpus, ranks: WordRanks | None, aligned: Corpus | None = None
) -> Sources:
    """The fingerprints of all that decides what an inspection finds, beside its settings."""
    counts = "" if ranks is None else _ranks_digest(ranks)
    found = {"data": corpus.fingerprint, "model": model_digest(subject), "ranks": counts}
    return found if aligned is None else {**found, "alignments": aligned.fingerprint}


def model_digest(subject: Subject) -> str:
    """A fingerprint of all weights, of the settings and of the tokenizer."""
    digest = hashlib.sha256(subject.description)
    for name, tensor in subject.model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def check_unchanged(before: Sources, now: Sources, folder: Path) -> None:
    """Refuse to go on with other data, another model or other counts than an inspection began with.

    Args:
        before: what the inspection began with.
        now: what there is.
        folder: of the inspection.
    """
    for what, said in SAID.items():
        if before.get(what) != now.get(what):
            raise ValueError(
                f"{said} changed since the inspection in {folder} began; choose another folder."
            )


def check_finite(model: nn.Module) -> None:
    """Refuse a model whose parameters are not all numbers: nothing could be measured of it."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise ValueError(
                f"The parameter {name} of {type(model).__name__} holds values that are nan or "
                "infinite; its training may have diverged. Give a model from before that."
            )


def tokenizer_rules(tokenizer: Any) -> object:
    """All that decides how a tokenizer cuts, but for what a call with padding leaves behind."""
    marks = tokenizer.special_tokens_map, tokenizer.model_max_length
    if not getattr(tokenizer, "is_fast", False):
        return sorted(tokenizer.get_vocab().items()), marks
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    return {
        name: rule for name, rule in rules.items() if name not in ("padding", "truncation")
    }, marks


def _ranks_digest(ranks: WordRanks) -> str:
    content = json.dumps([ranks.lower, sorted(ranks.counts.items())])
    return hashlib.sha256(content.encode()).hexdigest()
