"""How fast Headwise is, against its peers, in one run on one machine.

    python -m benchmarks                                # everything
    python -m benchmarks ops --threads 2 --repeat 5     # one of them
    python -m benchmarks ops --save                     # also write results/ops-cpu.json

Trust the ratios more than the milliseconds: contestants take turns, and the best turn counts, so
that a busy machine disturbs all of them alike. A contestant that gives wrong answers is not timed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Measured:
    """What a benchmark found: rows for JSON, and the same for the eye."""

    rows: list[dict[str, Any]]
    table: Table


Benchmark = Callable[[int], Measured]  # how often to repeat -> what was found
