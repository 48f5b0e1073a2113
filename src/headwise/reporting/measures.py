"""Numbers and measures of heads, as the report writes them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

from headwise.recording.columns import column_of
from headwise.recording.heads import HeadTable, Value

MINUS = "\N{MINUS SIGN}"
Number = float | int
Values = tuple[Value, ...]
Rows = dict[str, dict[int, list[int | None]]]


def is_number(value: object) -> TypeGuard[Number]:
    """Return whether a value is a number; True and False are not."""
    return isinstance(value, float | int) and not isinstance(value, bool)


def decimals_for(values: Iterable[Number]) -> int:
    """Return how many decimals show the largest number with three significant digits.

    >>> decimals_for([0.25, 0.981]), decimals_for([93.25, 1.0]), decimals_for([3, 14])
    (3, 1, 0)
    """
    listed = list(values)
    largest = max(map(abs, listed), default=0)
    if largest == 0 or all(isinstance(value, int) for value in listed):
        return 0
    return min(max(2 - math.floor(math.log10(largest)), 0), 8)


def written(value: Number, *, decimals: int) -> str:
    """Format a number with a real minus sign and commas between thousands.

    >>> written(1234.56, decimals=1), written(-0.0001, decimals=2)
    ('1,234.6', '0.00')
    """
    text = f"{abs(value):,.{decimals}f}"
    is_zero = not text.strip("0.,")
    return text if value >= 0 or is_zero else MINUS + text


def headline(name: str, value: Number) -> str:
    """Format a metric for a tile: accuracies in percent, seconds with their unit.

    >>> headline("token_accuracy", 0.981), headline("seconds", 71.04), headline("bleu", 93.21)
    ('98.1 %', '71.0 s', '93.2')
    """
    if name.endswith("accuracy") and 0 <= value <= 1:
        percent = 100 * value
        # nothing short of perfect is shown as 100 %
        decimals = 1 if percent == 100 or percent < 99.95 else 3
        return f"{written(percent, decimals=decimals)} %"
    text = written(value, decimals=decimals_for([value]))
    return f"{text} s" if name.split("_")[-1] == "seconds" else text


def percent(share: Number | None) -> str:
    """Format a share in percent.

    >>> percent(0.4567), percent(None)
    ('45.7 %', '')
    """
    return "" if share is None else f"{written(100 * share, decimals=1)} %"


def signed(value: Number, decimals: int = 0) -> str:
    """Format a number with its sign, a plus sign included.

    >>> signed(2), signed(-2), signed(0), signed(12.34, 1)
    ('+2', '\N{MINUS SIGN}2', '0', '+12.3')
    """
    return ("+" if value > 0 else "") + written(value, decimals=decimals)


@dataclass(frozen=True)
class Measure:
    """One column of a head table, with the columns of its interval folded in.

    Args:
        name: name of the column.
        values: one value per head.
        low: lower ends of the intervals; None if the measure has none.
        high: upper ends.
    """

    name: str
    values: Values
    low: Values | None = None
    high: Values | None = None

    @property
    def meaning(self) -> str:
        """Explanation of the measure, or "" if Headwise does not know it."""
        column = column_of(self.name)
        return column.meaning if column else ""

    @cached_property
    def is_numeric(self) -> bool:
        """Whether it holds numbers and nothing else but None."""
        known = [value for value in self.values if value is not None]
        return bool(known) and all(map(is_number, known))

    @cached_property
    def texts(self) -> list[str]:
        """Formatted values, all numbers with the same decimals; "" where there is none."""
        if not self.is_numeric:
            return ["" if value is None else str(value) for value in self.values]
        return [self._written(value) for value in self.values]

    @cached_property
    def intervals(self) -> list[str]:
        """Formatted intervals, "[0.41, 0.48]"; "" where there is none."""
        if self.low is None or self.high is None:
            return [""] * len(self.values)
        return [
            f"[{self._written(low)}, {self._written(high)}]"
            if is_number(low) and is_number(high)
            else ""
            for low, high in zip(self.low, self.high, strict=True)
        ]

    def whole(self, row: int) -> str:
        """Return value and interval in one line.

        >>> measure = Measure("rarest", (0.45, None), (0.41, None), (0.48, None))
        >>> measure.whole(0), measure.whole(1)
        ('0.450 [0.410, 0.480]', '')
        """
        return f"{self.texts[row]} {self.intervals[row]}".strip()

    def known(self, rows: Iterable[int | None]) -> dict[int, Number]:
        """Return the numbers among the values of some rows, by row."""
        values = {row: self.values[row] for row in rows if row is not None}
        return {row: value for row, value in values.items() if is_number(value)}

    @cached_property
    def _decimals(self) -> int:
        return decimals_for(value for value in self.values if is_number(value))

    def _written(self, value: Value) -> str:
        return written(value, decimals=self._decimals) if is_number(value) else ""


Measures = Mapping[str, Measure]


def measures_of(table: HeadTable) -> dict[str, Measure]:
    """Return the measures of a table by name; X_low and X_high are the interval of X.

    >>> table = HeadTable.of({name: {"encoder.0.self": [0.5]} for name in ("x", "x_low", "x_high")})
    >>> list(measures_of(table))
    ['x']
    """
    columns = table.columns
    ends = {
        name: (f"{name}_low", f"{name}_high")
        for name in columns
        if f"{name}_low" in columns and f"{name}_high" in columns
    }
    folded = {end for pair in ends.values() for end in pair}
    return {
        name: Measure(name, values, *(columns[end] for end in ends.get(name, ())))
        for name, values in columns.items()
        if name not in folded
    }


def rows_by_layer(table: HeadTable) -> Rows:
    """Return rows of the table by kind of attention, layer and head; None for a missing head."""
    numbered = table.with_column("row", range(len(table))).layers("row")
    return {
        kind: {
            layer: [row if isinstance(row, int) else None for row in rows]
            for layer, rows in layers.items()
        }
        for kind, layers in numbered.items()
    }


def heads_data(table: HeadTable, measures: Measures) -> dict[str, Any]:
    """Return the table as the script sorts and colours it; the page itself holds the intervals.

    `maps` holds, for each kind of attention and layer, the rows of its heads in the table.
    """
    columns = [
        {
            "name": measure.name,
            "numeric": measure.is_numeric,
            "meaning": measure.meaning,
            # six digits order and colour as well as sixteen, in a third of the space
            "values": [
                float(f"{value:.6g}") if isinstance(value, float) else value
                for value in measure.values
            ],
        }
        for measure in measures.values()
    ]
    return {
        "sites": [head.site for head in table.heads],
        "indices": [head.index for head in table.heads],
        "columns": columns,
        "maps": {kind: list(layers.items()) for kind, layers in rows_by_layer(table).items()},
    }
