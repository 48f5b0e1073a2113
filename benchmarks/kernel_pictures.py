"""Pictures of docs/kernels.md: how keys are selected, and how long ops take."""

import hashlib
import json
import struct
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.gpu_ops import NORMAL
from benchmarks.kernel_tables import LENGTHS, OURS, YARDSTICK, Document, Group, ours

DPI = 110
KEPT, DOUBT, PLAIN, NAME = "#9ecae1", "#fdae6b", "#f2f2f2", "#c7e9c0"
BUCKETS, LEVELS, KEEP = 8, 2, 4

# Two rows of 24 scores in tiles of 8. The second has three of its four best keys in one bucket.
CERTAIN = (3, 9, 1, 4, 2, 6, 0, 5, 7, 2, 8, 1, 3, 0, 4, 2, 1, 5, 2, 3, 9.5, 1, 6.5, 0)
DOUBTFUL = (3, 9, 1, 4, 2, 6, 0, 5, 2, 8, 3, 1, 3, 0, 4, 2, 1, 7, 2, 3, 9.5, 1, 6.5, 0)

# Whose times are drawn, and how they are called in the picture; the first that was timed.
TIMED = {
    "top-k keep 8": ("eager",),
    "entmax-1.5": ("entmax.entmax15 k=128",),
    "sparsemax": ("entmax.sparsemax k=64",),
    "statistics, entropy's gradient": ("eager matrix",),
    "guidance on half the heads": ("eager matrix",),
}
Points = dict[str, dict[str, list[tuple[int, float, float]]]]  # op -> who -> n, forward, both


def draw_all(folder: Path, found: list[Document]) -> None:
    """Write every picture."""
    folder.mkdir(parents=True, exist_ok=True)
    points = times(found)
    figures = {
        "buckets": _buckets(),
        "cells": _cells(),
        "times": _times(points),
    }
    for name, figure in figures.items():
        # no version of the library in the file: it would differ without looking different
        about = {"Software": None, "Source": digest(points) if name == "times" else "fixed"}
        figure.savefig(folder / f"{name}.png", dpi=DPI, metadata=about)


def digest(points: Points) -> str:
    """What the picture of times was drawn from, for a test to compare."""
    return hashlib.sha256(json.dumps(points, sort_keys=True).encode()).hexdigest()[:16]


def remembered(scores: Sequence[float]) -> list[list[float]]:
    """The largest scores of each bucket, a list a level, as the kernel finds them.

    >>> remembered([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 1, 1, 1, 1, 1, 1])[0]
    [9, 2, 3, 4, 5, 6, 7, 8]
    """
    levels = [[float("-inf")] * BUCKETS for _ in range(LEVELS)]
    for key, score in enumerate(scores):
        for level in levels:
            here = level[key % BUCKETS]
            level[key % BUCKETS], score = max(here, score), min(here, score)
    return levels


def threshold(levels: list[list[float]]) -> float:
    """The KEEP-th largest remembered score."""
    return sorted((score for level in levels for score in level), reverse=True)[KEEP - 1]


def certified(levels: list[list[float]]) -> bool:
    """Whether no bucket can have forgotten a score that is kept."""
    return max(levels[-1]) < threshold(levels)


def _buckets() -> Figure:
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    for axis, scores in zip(figure.subplots(1, 2), (CERTAIN, DOUBTFUL), strict=True):
        levels = remembered(scores)
        bound, sure = threshold(levels), certified(levels)
        tiles = [scores[start : start + BUCKETS] for start in range(0, len(scores), BUCKETS)]
        for number, tile in enumerate(tiles):
            _line(axis, -number, f"tile {number}", tile, bound, KEPT)
        for number, level in enumerate(levels):
            last = number == LEVELS - 1
            _line(axis, -number - 4.2, f"level {number + 1}", level, bound, DOUBT if last else KEPT)
        axis.text(0, 1.35, "scores of one query: a column is a bucket", fontsize=9)
        axis.text(0, -2.85, f"the {LEVELS} largest of each bucket", fontsize=9)
        told = "is below it: certain" if sure else "reaches it: flagged, as 7 was forgotten"
        axis.set_title(f"keep {KEEP}: threshold {bound:g}; the last level {told}", fontsize=10)
        axis.set(xlim=(-1.3, BUCKETS + 0.1), ylim=(-5.6, 1.8))
        axis.axis("off")
    return figure


def _line(
    axis: Axes, height: float, name: str, scores: Sequence[float], bound: float, colour: str
) -> None:
    axis.text(-0.1, height + 0.4, name, ha="right", va="center", fontsize=9)
    for place, score in enumerate(scores):
        reached = score >= bound
        axis.add_patch(
            Rectangle((place, height), 0.94, 0.8, color=colour if reached else PLAIN, linewidth=0)
        )
        weight = "bold" if reached else "normal"
        axis.text(place + 0.47, height + 0.4, f"{score:g}", ha="center", va="center", weight=weight)


def _cells() -> Figure:
    """How a cell of two keys gets a name: n = 4,096, tiles of 64."""
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    axis = figure.subplots()
    first, second, turn, bucket = 2.6182, 3.1416, 21, 37
    for height, name, key, score in (
        (5.2, "tile 42", 42 * 64 + bucket, first),
        (4.2, "tile 43", 43 * 64 + bucket, second),
    ):
        axis.text(-0.3, height + 0.35, name, ha="right", va="center", fontsize=9)
        axis.add_patch(Rectangle((0, height), 32, 0.7, color=PLAIN, linewidth=0))
        axis.add_patch(Rectangle((17, height), 3.4, 0.7, color=KEPT, linewidth=0))
        axis.text(18.7, height + 0.35, f"{score:g}", ha="center", va="center")
        axis.text(20.8, height + 0.35, f"key {key:,}, bucket {bucket}", va="center", fontsize=9)
    bits = struct.unpack(">I", struct.pack(">f", max(first, second)))[0]
    _bits(axis, 2.3, "larger of the two", bits, 0)
    _bits(axis, 0.7, "with its name", bits & ~2047 | turn * 64 | bucket, 11)
    for left, right, text in (
        (0, 1, "sign"),
        (1, 9, "exponent"),
        (9, 21, "12 bits of the score"),
        (21, 26, f"turn {turn}"),
        (26, 32, f"bucket {bucket}"),
    ):
        axis.text((left + right) / 2, 0.3, text, ha="center", va="center", fontsize=8)
    said = "Turn 21 and bucket 37 name keys (2 x 21) x 64 + 37 and (2 x 21 + 1) x 64 + 37."
    axis.text(0, -0.4, said, fontsize=9)
    axis.set(xlim=(-5, 32.5), ylim=(-0.8, 6.2))
    axis.axis("off")
    return figure


def _bits(axis: Axes, height: float, name: str, bits: int, named: int) -> None:
    axis.text(-0.3, height + 0.4, name, ha="right", va="center", fontsize=9)
    for place in range(32):
        colour = NAME if place >= 32 - named else KEPT
        axis.add_patch(Rectangle((place, height), 0.92, 0.8, color=colour, linewidth=0))
        digit = str(bits >> (31 - place) & 1)
        axis.text(place + 0.46, height + 0.4, digit, ha="center", va="center", fontsize=8)


def times(found: list[Document]) -> Points:
    """Measured times of ours, SDPA and the usual way, where ours was timed in the same run."""
    points: Points = {}
    for op, peers in TIMED.items():
        for length in LENGTHS:
            group = Group(NORMAL, length)
            row = ours(found, op, group)
            if row is None:
                continue
            document = next(one for one in found if any(row is other for other in one.rows))
            for other in document.groups(op)[group]:
                if other["who"] in (OURS, YARDSTICK, *peers) and "forward_ms" in other:
                    point = (length, other["forward_ms"], other["both_ms"])
                    points.setdefault(op, {}).setdefault(other["who"], []).append(point)
    return points


def _times(points: Points) -> Figure:
    figure = Figure(figsize=(3.1 * len(TIMED), 5.6), layout="constrained")
    axes = figure.subplots(2, len(TIMED), sharex=True, sharey="row")
    for column, op in enumerate(TIMED):
        for line, passes in enumerate(("forward", "forward and backward")):
            axis: Axes = axes[line, column]
            for who, measured in points.get(op, {}).items():
                lengths, *both = zip(*measured, strict=True)
                colour = {OURS: "tab:blue", YARDSTICK: "tab:orange"}.get(who, "tab:gray")
                axis.plot(lengths, both[line], marker="o", color=colour, label=who)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(LENGTHS, [f"{n:,}" for n in LENGTHS], fontsize=7)
            axis.set_xlim(LENGTHS[0] / 1.4, LENGTHS[-1] * 1.4)
            axis.minorticks_off()
            axis.grid(alpha=0.3)
            if line == 0:
                added = "\n(added to SDPA)" if op.startswith("guidance") else ""
                axis.set_title(op + added, fontsize=9)
                axis.legend(fontsize=7)
            else:
                axis.set_xlabel("keys, tokens x heads constant")
            if column == 0:
                axis.set_ylabel(f"{passes}, ms")
    return figure
