"""Means over sentences of what heads are worth, with intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.recording import Tally, bootstrap_weights

__all__ = ["Columns", "Means"]

Columns = dict[str, dict[str, list[float | None]]]  # measure -> site -> one value a head


@dataclass
class Means:
    """Means over sentences of what heads are worth, with intervals; can be put away."""

    name: str = "importance"
    seed: int = 0
    _tallies: dict[tuple[str, str], Tally] = field(default_factory=dict[tuple[str, str], Tally])

    def add(
        self,
        measure: str,
        values: Mapping[str, Tensor],
        sentences: Sequence[int],
        counts: Sequence[float | int],
    ) -> None:
        """Add {site: (B, H)} of some sentences, each with the weight that it has."""
        weights_BR = bootstrap_weights(sentences, seed=self.seed)
        count_B1 = torch.tensor(counts, dtype=torch.float64)[:, None]
        for site, value_BH in values.items():
            tally = self._tallies.setdefault((measure, site), Tally(bounded=False, grain=0.0))
            tally.add(value_BH.double().cpu() * count_B1, count_B1, weights=weights_BR)

    def columns(self) -> Columns:
        """{measure, and its ends: {site: one value a head}}."""
        found: Columns = {}
        for (measure, site), tally in self._tallies.items():
            for column, values in tally.shares().columns(measure).items():
                found.setdefault(column, {})[site] = values
        return found

    def state(self) -> dict[str, Tensor]:
        """All sums, for `load`."""
        return {
            f"{measure}/{site}/{part}": tensor
            for (measure, site), tally in self._tallies.items()
            for part, tensor in tally.state().items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state()` gave."""
        self._tallies.clear()
        for measure, site, _ in (key.split("/") for key in state if key.endswith("/hits")):
            tally = Tally(bounded=False, grain=0.0)
            mark = f"{measure}/{site}/"
            tally.load({k.removeprefix(mark): v for k, v in state.items() if k.startswith(mark)})
            self._tallies[measure, site] = tally

    def merge(self, other: "Means") -> None:
        """Add the sums of another, of other sentences."""
        if other.seed != self.seed:
            raise ValueError(
                f"Means with the seed {self.seed} were given some with the seed {other.seed}; "
                "their intervals do not go together."
            )
        for key, tally in other._tallies.items():
            own = self._tallies.setdefault(key, Tally(bounded=False, grain=0.0))
            own.merge(tally)
