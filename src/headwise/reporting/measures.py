"""Measures of heads as a page shows them: a value and, where there is one, its 95 % interval."""

from collections.abc import Sequence
from dataclasses import dataclass

from headwise.recording.heads import HeadTable, Value
from headwise.reporting.numerals import decimals_for, is_number, written

Values = tuple[Value, ...]
Rows = dict[str, dict[int, list[int | None]]]


@dataclass(frozen=True)
class Measure:
    """One column of a head table, with the columns of its interval folded in.

    Args:
        name: of the column.
        values: one a head.
        low: lower ends of the intervals; None if the measure has none.
        high: upper ends.
    """

    name: str
    values: Values
    low: Values | None = None
    high: Values | None = None

    @property
    def is_numeric(self) -> bool:
        """Whether it holds numbers and nothing else but None."""
        return is_numeric(self.values)

    def texts(self) -> list[str]:
        """The values as written, all numbers with the same decimals; "" where there is none."""
        if not self.is_numeric:
            return ["" if value is None else str(value) for value in self.values]
        decimals = self._decimals()
        return [_written(value, decimals) for value in self.values]

    def intervals(self) -> list[str]:
        """The intervals as written, "[0.41, 0.48]"; "" where there is none."""
        if self.low is None or self.high is None:
            return [""] * len(self.values)
        decimals = self._decimals()
        return [
            f"[{_written(low, decimals)}, {_written(high, decimals)}]"
            if is_number(low) and is_number(high)
            else ""
            for low, high in zip(self.low, self.high, strict=True)
        ]

    def whole_texts(self) -> list[str]:
        """Value and interval in one line.

        >>> Measure("rarest", (0.45, None), (0.41, None), (0.48, None)).whole_texts()
        ['0.450 [0.410, 0.480]', '']
        """
        pairs = zip(self.texts(), self.intervals(), strict=True)
        return [f"{text} {interval}".strip() for text, interval in pairs]

    def _decimals(self) -> int:
        return decimals_for(value for value in self.values if is_number(value))


def measures_of(table: HeadTable) -> dict[str, Measure]:
    """The measures of a table by name, X_low and X_high being the interval of X.

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
    """Rows of the table by kind of attention, layer and head; None where there is no such head."""
    numbered = table.with_column("row", range(len(table))).layers("row")
    return {
        kind: {
            layer: [row if isinstance(row, int) else None for row in rows]
            for layer, rows in layers.items()
        }
        for kind, layers in numbered.items()
    }


def is_numeric(values: Sequence[Value]) -> bool:
    """Whether a column holds numbers and nothing else but None."""
    known = [value for value in values if value is not None]
    return bool(known) and all(map(is_number, known))


def _written(value: Value, decimals: int) -> str:
    return written(value, decimals=decimals) if is_number(value) else ""
