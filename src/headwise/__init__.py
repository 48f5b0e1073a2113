"""See, steer, sparsify and prune the attention of your models, head by head.

Names are loaded when first used: importing headwise imports neither torch nor transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.guidance import guide
    from headwise.hf import adopt, check_parity, release
    from headwise.ops import (
        Attended,
        entmax_attention,
        gaussian_attention,
        softmax_attention,
        sparsemax_attention,
        topk_attention,
        uniform_attention,
    )
    from headwise.pruning import prune
    from headwise.recording import HeadTable, Run
    from headwise.sites import Head, Site, find_sites, gated, masked, observe, replace
    from headwise.workflows.inspect import inspect

__version__ = "0.2.0"

_HOMES = {
    "headwise.guidance": ("guide",),
    "headwise.hf": ("adopt", "check_parity", "release"),
    "headwise.workflows.inspect": ("inspect",),
    "headwise.ops": (
        "Attended",
        "entmax_attention",
        "gaussian_attention",
        "softmax_attention",
        "sparsemax_attention",
        "topk_attention",
        "uniform_attention",
    ),
    "headwise.pruning": ("prune",),
    "headwise.recording": ("HeadTable", "Run"),
    "headwise.sites": ("Head", "Site", "find_sites", "gated", "masked", "observe", "replace"),
}

__all__ = [
    "Attended",
    "Head",
    "HeadTable",
    "Run",
    "Site",
    "adopt",
    "check_parity",
    "entmax_attention",
    "find_sites",
    "gated",
    "gaussian_attention",
    "guide",
    "inspect",
    "masked",
    "observe",
    "prune",
    "release",
    "replace",
    "softmax_attention",
    "sparsemax_attention",
    "topk_attention",
    "uniform_attention",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"headwise has no name {name!r}; it has {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
