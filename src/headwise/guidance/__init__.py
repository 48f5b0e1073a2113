"""Guiding heads: patterns, plans, and a loss that draws heads towards them while a model learns."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwise.guidance.guiding import Guidance, guide
from headwise.guidance.patterns import Aim, pattern
from headwise.guidance.plan import Plan
from headwise.guidance.schedule import CONVENTIONS, Convention, Strength

if TYPE_CHECKING:
    from headwise.guidance.trainer import GuidanceCallback

__all__ = [
    "CONVENTIONS",
    "Aim",
    "Convention",
    "Guidance",
    "GuidanceCallback",
    "Plan",
    "Strength",
    "guide",
    "pattern",
]


def __getattr__(name: str) -> Any:
    if name == "GuidanceCallback":  # lazy: it imports transformers
        return import_module("headwise.guidance.trainer").GuidanceCallback
    raise AttributeError(f"headwise.guidance has no name {name!r}; it has {', '.join(__all__)}.")
