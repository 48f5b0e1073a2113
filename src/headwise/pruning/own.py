"""Headwise's own models as a folder holds them: a class by name, and settings that build it."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from headwise.config import from_json, to_json
from headwise_papers.models.caption import CaptionConfig, CaptionModel
from headwise_papers.models.classifier import ClassifierConfig, TransformerClassifier
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.models.encoder_heads import (
    MaskedLM,
    MaskedLMWithNextSentence,
    NextSentence,
    ReplacedToken,
    SequenceClassifier,
    TokenClassifier,
)
from headwise_papers.models.rnn import Seq2Seq, Seq2SeqConfig
from headwise_papers.models.transformer import Transformer, TransformerConfig
from headwise_papers.models.xl import TransformerXL, XLConfig

# a class that is built from its configuration
WHOLE: dict[type[Any], type[Any]] = {
    CaptionModel: CaptionConfig,
    Encoder: EncoderConfig,
    Seq2Seq: Seq2SeqConfig,
    Transformer: TransformerConfig,
    TransformerClassifier: ClassifierConfig,
    TransformerXL: XLConfig,
}
# one that is built from an encoder
HEADED: tuple[type[Any], ...] = (MaskedLM, NextSentence, MaskedLMWithNextSentence, ReplacedToken)
# and one that is built from an encoder and a number of classes
CLASSIFIERS: tuple[type[Any], ...] = (SequenceClassifier, TokenClassifier)
NAMED = {kind.__name__: kind for kind in (*WHOLE, *HEADED, *CLASSIFIERS)}


@dataclass(frozen=True)
class OfEncoder:
    """The settings of a model that is an encoder and a head."""

    encoder: EncoderConfig
    classes: int | None = None
    dropout: float | None = None


def is_own(model: nn.Module) -> bool:
    """Whether it is exactly one of Headwise's classes, which `built` builds."""
    return NAMED.get(type(model).__name__) is type(model)


def settings_of(model: Any) -> dict[str, Any]:
    """What config.json says of one of them."""
    if type(model) in WHOLE:
        return to_json(model.config)
    head: dict[str, Any] = {}
    if type(model) in CLASSIFIERS:
        head = {"classes": model.classes.out_features, "dropout": model.dropout.p}
    return to_json(OfEncoder(model.encoder.config, **head))


def built(class_name: str, settings: dict[str, Any]) -> nn.Module:
    """A fresh one with the settings that `settings_of` gave."""
    kind: Any = NAMED[class_name]
    if kind in WHOLE:
        return kind(from_json(WHOLE[kind], settings))
    told = from_json(OfEncoder, settings)
    encoder = Encoder(told.encoder)
    if kind in HEADED:
        return kind(encoder)
    if told.classes is None:
        raise ValueError(f"The settings of a {class_name} must say how many classes it has.")
    return kind(encoder, told.classes, dropout=told.dropout)
