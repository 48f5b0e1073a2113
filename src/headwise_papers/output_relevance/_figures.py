"""Figures from tensors, for several experiments."""

from collections.abc import Mapping

from torch import Tensor

from headwise_papers.output_relevance._table import Row

__all__ = ["HR", "listed", "of_row"]

HR = "hr(alpha*, beta_unif)"


def of_row(row: Row) -> dict[str, Tensor]:
    """A row of Table 1 by name, and whether hr is above the random baseline."""
    return {
        HR: row.hr,
        f"{HR} at uniform's best accuracy": row.hr_at_best,
        f"{HR} at the end": row.hr_at_end,
        "random baseline": row.floor,
        "random baseline, best of as many shuffles": row.lucky_floor,
        "ceiling, another normal run": row.ceiling,
        "s": row.of_passing(row.s),
        "other runs pass hr": row.passes,
        "accuracy at s": row.of_passing(row.accuracy_at_s),
        "best accuracy": row.best,
        "hr above the random baseline": row.hr > row.lucky_floor,
    }


def listed(figures: Mapping[str, Tensor], *, part: str = "") -> dict[str, list[float]]:
    """As numbers, with the part they are of before each name; figures that no run has are left out.

    >>> import torch
    >>> listed({"s": torch.tensor([10, 20]), "t": torch.zeros(0)}, part="sst")
    {'sst: s': [10.0, 20.0]}
    """
    before = f"{part}: " if part else ""
    kept = {name: values.double().cpu().tolist() for name, values in figures.items()}
    return {f"{before}{name}": values for name, values in kept.items() if values}
