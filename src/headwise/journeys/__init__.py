"""What people do with Headwise from end to end; the command line calls these functions."""

from headwise.journeys.captioning import Captioner, CaptioningConfig, train_captioning
from headwise.journeys.demo import DemoConfig, demo
from headwise.journeys.finetuning import (
    Classifier,
    FinetuningConfig,
    finetune,
    load_classifier,
)
from headwise.journeys.inspect import InspectConfig, inspect, inspect_folder
from headwise.journeys.language import LanguageConfig, load_language_model, train_language
from headwise.journeys.pretraining import (
    Pretrained,
    PretrainingConfig,
    load_pretrained,
    pretrain,
)
from headwise.journeys.prune import PruneConfig, prune_folder
from headwise.journeys.translating import open_translator, translate_stream
from headwise.journeys.translation import TranslationConfig, train_translation
from headwise.journeys.translator import Translator

__all__ = [
    "Captioner",
    "CaptioningConfig",
    "Classifier",
    "DemoConfig",
    "FinetuningConfig",
    "InspectConfig",
    "LanguageConfig",
    "Pretrained",
    "PretrainingConfig",
    "PruneConfig",
    "TranslationConfig",
    "Translator",
    "demo",
    "finetune",
    "inspect",
    "inspect_folder",
    "load_classifier",
    "load_language_model",
    "load_pretrained",
    "open_translator",
    "pretrain",
    "prune_folder",
    "train_captioning",
    "train_language",
    "train_translation",
    "translate_stream",
]
