"""Changes that `tests.ops.fuzz` makes while a kernel runs: fresh memory and tile sizes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from unittest.mock import patch

import numpy
import torch
from torch import Tensor

from tests.ops.fuzz_variants import Variant

ROWS, KEYS = 16, 16  # a tile in the interpreter


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill fresh memory with NaN, or large integers, so that unwritten entries are noticed."""
    makers = ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty"))
    with ExitStack() as patches:
        for owner, name in makers:
            patches.enter_context(patch.object(owner, name, _poison(getattr(owner, name))))
        yield


def _poison(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(*args: object, **options: object) -> Tensor:
        fresh = make(*args, **options)
        if fresh.is_floating_point():
            return fresh.fill_(torch.nan)
        # A number that is no key of any row, where it fits.
        return fresh.fill_(2**30 if fresh.element_size() > 2 else 1)

    return made


@contextmanager
def small_tiles(variant: Variant) -> Iterator[None]:
    """Use small tiles, few levels so that rows lack certificates, and the plan of a variant.

    Imports Triton, so TRITON_INTERPRET must be set before.
    """
    tiles, topk, selection, fused, entmax, sweeping = (
        import_module(f"headwise.ops.{name}")
        for name in (
            "tiles",
            "topk.triton",
            "topk.selection",
            "topk.fused",
            "entmax.triton",
            "row_sweep.sweeps",
        )
    )
    sweeps = topk.Sweeps(*[tiles.Tile(ROWS, KEYS, warps=4, stages=1)] * 5)
    tile = tiles.Tile(ROWS, KEYS, warps=1, stages=1)
    resident = () if variant.long else tuple(tile._replace(keys=keys) for keys in (16, 64))
    swept = {(8, 128): tiles.Tile(ROWS, KEYS, 4, 1)}
    changes = [(topk, name, sweeps) for name in ("HALF", "WIDE", "ROOMY", "SINGLE")]
    changes += [
        (topk, "GATHER_KEYS", 1 if variant.long else 10**9),
        (topk, "MOST_KEYS", {2: 20, 4: 20}),
        (selection, "LEVELS", {4: 3, 64: 2}),
        (fused, "TILE", tile._replace(keys=64, warps=4)),  # two lists a row
    ]
    entmax_tiles = entmax.Tiles(resident, tile, tile, tile)
    changes += [(entmax, name, entmax_tiles) for name in ("NARROW", "WIDE", "FULL")]
    changes += [(sweeping, "TILES", dict.fromkeys(("forward", "queries", "keys"), swept))]
    # Scores of hidden keys are computed, and may be large, before they are hidden.
    with ExitStack() as patches, numpy.errstate(over="ignore", invalid="ignore"):
        for module, name, value in changes:
            patches.enter_context(patch.object(module, name, value))
        yield
