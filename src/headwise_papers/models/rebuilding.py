"""The papers' models as a saved folder holds them: a class by name, and settings that build it."""

from importlib import import_module
from typing import Any

from torch import nn

from headwise.config import from_json, to_json
from headwise.kinds import Kind

__all__ = ["MODEL", "Rebuildable", "rebuild"]

# {class: (its module, the class of its settings)}
WHOLE = {
    "CaptionModel": ("caption", "CaptionConfig"),
    "Encoder": ("encoder", "EncoderConfig"),
    "Seq2Seq": ("rnn", "Seq2SeqConfig"),
    "Transformer": ("transformer", "TransformerConfig"),
    "TransformerClassifier": ("classifier", "ClassifierConfig"),
    "TransformerXL": ("xl", "XLConfig"),
}
# classes of encoder_heads that are built from an encoder, and those that need a number of classes
HEADED = ("MaskedLM", "NextSentence", "MaskedLMWithNextSentence", "ReplacedToken")
CLASSIFIERS = ("SequenceClassifier", "TokenClassifier")


class Rebuildable(nn.Module):
    """A model that `headwise.pruning.load` makes again from its class name and settings."""

    def headwise_rebuild(self) -> tuple[str, str, dict[str, Any]]:
        """Return the kind, the class name and the settings; see `headwise.pruning.prune`."""
        return MODEL.name, type(self).__name__, to_json(self.rebuilt_from())

    def rebuilt_from(self) -> Any:
        """Return the settings as a dataclass."""
        return self.config


def rebuild(class_name: str, settings: dict[str, Any]) -> nn.Module:
    """Make a fresh model with the settings that `headwise_rebuild` gave."""
    if class_name in WHOLE:
        name, config = WHOLE[class_name]
        module = import_module(f"headwise_papers.models.{name}")
        return getattr(module, class_name)(from_json(getattr(module, config), settings))
    if class_name not in (*HEADED, *CLASSIFIERS):
        raise ValueError(f"headwise_papers has no model {class_name} that can be rebuilt.")
    from headwise_papers.models import encoder_heads

    found = from_json(encoder_heads.HeadSettings, settings)
    encoder, kind = encoder_heads.Encoder(found.encoder), getattr(encoder_heads, class_name)
    if class_name in HEADED:
        return kind(encoder)
    if found.classes is None:
        raise ValueError(f"The settings of a {class_name} must say how many classes it has.")
    return kind(encoder, found.classes, dropout=found.dropout)


MODEL = Kind("model", rebuild=rebuild)
