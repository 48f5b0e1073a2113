"""How fast each kernel but those of top-k is with other tiles than its own.

    python -m benchmarks.tiles                       # a minute or two on a GPU with many cores
    python -m benchmarks.tiles entmax 2048           # one op, some lengths
    python -m benchmarks.tiles entmax-forward        # without a gradient, for which more is written
    python -m benchmarks.tiles entmax-held 512 1024  # tiles that hold all keys of longer rows

The calls of `benchmarks.kernel_times`, and its way of timing. Tiles are compiled first, in several
processes; then one kernel after the other is given each of them, while the others keep theirs. What
does not fit the device, or gives another answer, is told and not timed.
"""

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, NamedTuple

from torch import Tensor
from triton.runtime.errors import OutOfResources

from benchmarks.kernel_times import asked, drawn, kernels, ops
from headwise.ops import entmax_attention, sparsemax_attention
from headwise.ops.entmax import triton as entmax
from headwise.ops.row_sweep import sweeps
from headwise.ops.tiles import Tile

TILES = [
    Tile(rows, keys, warps, stages)
    for rows, keys, warps in (
        (64, 32, 4), (128, 32, 4), (64, 64, 4), (128, 64, 4), (128, 64, 8), (256, 64, 8),
        (64, 128, 4), (64, 128, 8), (128, 128, 8),
    )
    for stages in (2, 3)
]  # fmt: skip
# Of entmax, for more keys than its resident tiles hold: `streaming` is what they would spare.
HELD = [
    Tile(rows, keys, warps, 1)
    for rows, keys, warps in (
        (16, 512, 4), (16, 512, 8), (32, 512, 8), (64, 512, 8), (16, 1024, 8), (32, 1024, 8),
    )
]  # fmt: skip
KIND = 2, 64  # bytes a number, width: which of the tiles of a sweep are changed
MOST = 16  # processes that compile, each with some hundred megabytes of the device
CLOSE = 0.02  # of the largest gradient; in bfloat16 sums in another order differ less


class Place(NamedTuple):
    """A kernel of an op, and the name of its tile."""

    op: str
    tile: str
    kernel: str


# Forward passes alone: those that a gradient follows write more, and may want another tile.
ALONE = {"entmax-forward": entmax_attention, "sparsemax-forward": sparsemax_attention}
HOLDING = "entmax-held"  # a forward and a backward pass of entmax, with one of HELD
SOLVED = "entmax", "sparsemax", *ALONE, HOLDING  # which share their tiles
PLACES = [
    *(
        Place(op, name, name)
        for op in ("entmax", "sparsemax")
        for name in ("streaming", "for_queries", "for_keys")
    ),
    *(Place(op, "streaming", "streaming") for op in ALONE),
    Place(HOLDING, "resident", "resident"),
    *(
        Place(op, tile, kernel)
        for op in ("statistics", "guidance")
        for tile, kernel in (
            ("forward", "_forward_kernel"), ("queries", "to_queries"), ("keys", "to_keys"),
        )
    ),
]  # fmt: skip
OPS = tuple(dict.fromkeys(place.op for place in PLACES))


def present(place: Place) -> Any:
    """The kernel's own tile; of `resident`, all of them."""
    if place.op in SOLVED:
        return getattr(entmax.NARROW, place.tile)
    return sweeps.TILES[place.tile][KIND]


def tiles_of(place: Place) -> list[Tile]:
    """What is tried, the kernel's own first."""
    if place.tile == "resident":
        return HELD
    return list(dict.fromkeys([present(place), *TILES]))


@contextmanager
def another(place: Place, tile: Tile) -> Generator[None]:
    """The kernel has this tile, `resident` this one more, for the length of the block."""
    own = present(place)
    _put(place, (*own, tile) if place.tile == "resident" else tile)
    try:
        yield
    finally:
        _put(place, own)


def _put(place: Place, tile: Any) -> None:
    if place.op in SOLVED:
        entmax.NARROW = entmax.NARROW._replace(**{place.tile: tile})
    else:
        sweeps.TILES[place.tile][KIND] = tile


def call_of(op: str, length: int) -> Callable[[], tuple[Tensor, ...]]:
    """A forward and a backward pass; or a forward pass, of an op in ALONE."""
    leaves, dout = drawn(length)
    if op in ALONE:
        q, k, v = (x.detach() for x in leaves)
        return lambda: (ALONE[op](q, k, v, impl="triton").out,)
    return ops(leaves, dout)[op.removesuffix("-held")]  # pyright: ignore[reportReturnType]


def compile_one(job: tuple[Place, Tile]) -> None:
    """So that the compiled kernel lies in Triton's cache, where the next process finds it."""
    place, tile = job
    try:
        with another(place, tile):
            call_of(place.op, max(512, tile.keys))()
    except OutOfResources:
        return  # is told where it is timed


def time_of(place: Place, tile: Tile, length: int, wanted: Sequence[Tensor]) -> float | str:
    """Milliseconds of the kernel alone; or why there is no time."""
    call = call_of(place.op, length)
    with another(place, tile):
        try:
            got = call()
        except OutOfResources as error:
            return f"does not fit: {error}"
        for one, other in zip(got, wanted, strict=True):
            if not (one - other).abs().max() <= CLOSE * other.abs().max():
                return "gives another answer"
        times = kernels(call)
    own = [microseconds for name, microseconds in times.items() if name.startswith(place.kernel)]
    return sum(own) / 1000 if own else "is not called"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line a kernel, length and tile."""
    given = asked("python -m benchmarks.tiles", OPS, [512, 4096], arguments)
    places = [place for place in PLACES if given.op in (None, place.op)]
    processes = min(os.cpu_count() or 1, MOST)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_one, [(place, tile) for place in places for tile in tiles_of(place)]))
    for length in given.lengths:
        for place in places:
            wanted, own = call_of(place.op, length)(), present(place)
            print(f"{place.op} {place.kernel}, {length:,} keys", flush=True)
            for tile in tiles_of(place):
                took = time_of(place, tile, length, wanted)
                shown = took if isinstance(took, str) else f"{took:.3f} ms"
                print(f"  {'->' if tile == own else '  '} {tuple(tile)}: {shown}", flush=True)


if __name__ == "__main__":
    main()
