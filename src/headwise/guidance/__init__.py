"""Guidance of heads in training: patterns, plans, and a loss that draws heads towards them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwise.guidance.guiding import Guidance, guide
from headwise.guidance.plan import (
    CONSTANT_FOR,
    CONVENTIONS,
    Aim,
    Convention,
    ConventionName,
    Plan,
    Schedule,
    Strength,
    convention_of,
    pattern,
)

if TYPE_CHECKING:
    from headwise.guidance.trainer import GuidanceCallback

__all__ = [
    "CONSTANT_FOR",
    "CONVENTIONS",
    "Aim",
    "Convention",
    "ConventionName",
    "Guidance",
    "GuidanceCallback",
    "Plan",
    "Schedule",
    "Strength",
    "convention_of",
    "guide",
    "pattern",
]


def __getattr__(name: str) -> Any:
    if name == "GuidanceCallback":  # lazy: it imports transformers
        return import_module("headwise.guidance.trainer").GuidanceCallback
    raise AttributeError(f"headwise.guidance has no name {name!r}; it has {', '.join(__all__)}.")
