"""Two arms under every setting of a grid: results by arm, and differences cell by cell."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from headwise_papers.attention_guidance._encoders import GUIDED, MLM
from headwise_papers.core import Result, share

DEPTHS = (0.25, 0.5, 1.0)  # nats below the unigram loss; the last is convergence
MORE = f"share of settings that converge, {GUIDED} - {MLM}"
STEADIER = f"share of what the best setting gains, {GUIDED} - {MLM}"
Cell = tuple[float, float, float]  # learning rate, warm-up, attention dropout


class Ended(NamedTuple):
    """The end of a training."""

    loss: float | None  # on the validation part; None where the training diverged
    converged: bool
    unigram_loss: float
    minutes: float | None  # None where others were trained in parallel, or it diverged

    def is_below(self, depth: float) -> bool:
        """Return whether it ended more than so many nats below the unigram loss."""
        return self.loss is not None and self.loss < self.unigram_loss - depth


def cell_difference(cell: Cell) -> str:
    """Return the name of the difference of both arms under one setting.

    >>> cell_difference((5e-4, 0.25, 0.1))
    'rate 0.0005, warm-up 25%, dropout 0.1: validation loss of guided - MLM'
    """
    rate, warmup, dropout = cell
    return (
        f"rate {rate:g}, warm-up {warmup:.0%}, dropout {dropout:g}: validation loss of {GUIDED} - "
        f"{MLM}"
    )


Found = Mapping[str, Sequence[Sequence[Ended]]]  # by arm, seed and cell


def by_arm(cells: Sequence[Cell], found: Found) -> dict[str, Result]:
    """Return the results of each arm, and of parts of the grid."""
    losses = _losses(found)
    results = {
        f"{arm}: validation loss": Result([x for row in losses[arm] for x in row]) for arm in found
    }
    for arm, seeds in found.items():
        ends = [end for row in seeds for end in row]
        results |= _converging(arm, list(zip([*cells] * len(seeds), ends, strict=True)))
        for depth in DEPTHS:
            name = f"{arm}: settings that end {depth:g} nats below the unigram loss"
            results[name] = share(end.is_below(depth) for end in ends)
        results[f"{arm}: settings that diverge"] = share(end.loss is None for end in ends)
        if ended := [end.loss for end in ends if end.loss is not None]:
            results[f"{arm}: best validation loss"] = Result([min(ended)])
        if kept := [gain for row in seeds for gain in _kept(row)]:
            results[f"{arm}: share of what the best setting gains"] = Result(kept)
        if minutes := [end.minutes for end in ends if end.minutes is not None]:
            results[f"{arm}: minutes"] = Result(minutes)
    results["unigram loss"] = Result([found[MLM][0][0].unigram_loss])
    return results


def _converging(arm: str, ended: Sequence[tuple[Cell, Ended]]) -> dict[str, Result]:
    """Return whether each setting converges: all, by learning rate and by warm-up."""
    trials: dict[str, list[float]] = {}
    name = f"{arm}: settings that converge"
    for label in (
        lambda cell: name,
        lambda cell: f"{name}, learning rate {cell[0]:g}",
        lambda cell: f"{name}, warm-up {cell[1]:.0%}",
    ):
        for cell, end in ended:
            trials.setdefault(label(cell), []).append(float(end.converged))
    return {label: Result(values, "share") for label, values in trials.items()}


def compared(cells: Sequence[Cell], found: Found) -> dict[str, Result]:
    """Return differences of both arms: cell by cell, and seed by seed over the grid."""
    losses = _losses(found)
    both = list(zip(found[GUIDED], found[MLM], strict=True))
    gaps = [
        [a - b for a, b in zip(*rows, strict=True)]
        for rows in zip(losses[GUIDED], losses[MLM], strict=True)
    ]
    columns = list(zip(*gaps, strict=True))
    results = {
        f"validation loss of {GUIDED} - {MLM}": Result(
            [x for row in gaps for x in row], "difference"
        ),
        **{
            cell_difference(cell): Result(column, "difference")
            for cell, column in zip(cells, columns, strict=True)
        },
        MORE: Result([_rate(guided) - _rate(plain) for guided, plain in both], "difference"),
    }
    kept = [(_kept(guided), _kept(plain)) for guided, plain in both]
    if steadier := [fmean(a) - fmean(b) for a, b in kept if a and b]:
        results[STEADIER] = Result(steadier, "difference")
    return results


def _rate(ends: Sequence[Ended]) -> float:
    return fmean(end.converged for end in ends)


def _losses(found: Found) -> dict[str, list[list[float]]]:
    """Return losses by arm, seed and cell; a diverged one counts as the worst of both arms."""
    every = [end for seeds in found.values() for row in seeds for end in row]
    worst = max(end.unigram_loss if end.loss is None else end.loss for end in every)
    return {
        arm: [[worst if end.loss is None else end.loss for end in row] for row in seeds]
        for arm, seeds in found.items()
    }


def _kept(ends: Sequence[Ended]) -> list[float]:
    """Return each setting's share of what the best one gains; nothing if none converges."""
    if not any(end.converged for end in ends):
        return []
    gains = [0.0 if end.loss is None else max(0.0, end.unigram_loss - end.loss) for end in ends]
    return [gain / max(gains) for gain in gains]
