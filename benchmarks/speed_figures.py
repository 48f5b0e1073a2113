"""Figures of docs/speed.md: how keys are selected, and how long ops take."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.gpu_ops import NORMAL
from benchmarks.speed_tables import LENGTHS, OURS, YARDSTICK, Document, newest

DPI = 110
KEPT, DOUBT, PLAIN = "#9ecae1", "#fdae6b", "#f2f2f2"
BUCKETS, LEVELS, KEEP = 8, 2, 4

# Two rows of 24 scores in tiles of 8. The second has three of its four best keys in one bucket.
CERTAIN = (3, 9, 1, 4, 2, 6, 0, 5, 7, 2, 8, 1, 3, 0, 4, 2, 1, 5, 2, 3, 9.5, 1, 6.5, 0)
DOUBTFUL = (3, 9, 1, 4, 2, 6, 0, 5, 2, 8, 3, 1, 3, 0, 4, 2, 1, 7, 2, 3, 9.5, 1, 6.5, 0)

# Whose times are drawn, and what they are called in the figure; the first that was timed.
TIMED = {
    "top-k keep 8": ("eager",),
    "entmax-1.5": ("entmax.entmax15 k=128",),
    "sparsemax": ("entmax.sparsemax k=64",),
    "statistics, entropy's gradient": ("eager matrix",),
    "guidance on half the heads": ("eager matrix",),
}
Points = dict[str, dict[str, list[tuple[int, float, float]]]]  # op -> who -> n, forward, both


def draw_all(folder: Path, found: list[Document]) -> None:
    """Write every figure."""
    folder.mkdir(parents=True, exist_ok=True)
    points = times(found)
    figures = {
        "buckets": _buckets(),
        "times": _times(points),
    }
    for name, figure in figures.items():
        # no version of the library in the file: it would differ without looking different
        about = {"Software": None, "Source": digest(points) if name == "times" else "fixed"}
        figure.savefig(folder / f"{name}.png", dpi=DPI, metadata=about)


def digest(points: Points) -> str:
    """Identify what the figure of times was drawn from, for a test to compare."""
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


def times(found: list[Document]) -> Points:
    """Measured times of ours, SDPA and the usual way, where ours was timed in the same run."""
    points: Points = {}
    for op, peers in TIMED.items():
        for length in LENGTHS:
            found_here = newest(found, op, length)
            for other in found_here[0].rows if found_here else ():
                known = other["who"] in (OURS, YARDSTICK, *peers) and "forward_ms" in other
                if known and (other["op"], other["n"], other["inputs"]) == (op, length, NORMAL):
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
