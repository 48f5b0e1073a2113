"""HeadTable: measures of all heads in one table that sorts, filters, prints and plots."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsFloat, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from headwise.config import printable, suggestion
from headwise.json_files import check_shape
from headwise.recording import files
from headwise.recording.columns import Value, printed, printed_names
from headwise.sites import Head

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas

Panel = Mapping[int, Sequence[float | int | None]]  # layer -> value by head
BETWEEN = 2  # spaces between printed columns
Row = dict[str, Value]
Measured = Value | SupportsFloat  # what becomes a value: numpy's numbers and tensors too


@dataclass(frozen=True, repr=False)
class HeadTable:
    """Table with one row per head and one column per measure; None means "not measured".

    Columns X_low and X_high are the ends of X's interval and are printed with it. nan is refused.
    Every method returns a new table.

    >>> table = HeadTable.of({"confidence": {"encoder.0.self": [0.25, 0.75]}})
    >>> table.row(Head("encoder.0.self", 1))
    {'confidence': 0.75}
    >>> [str(head) for head in table.sort("confidence").heads]
    ['encoder.0.self.1', 'encoder.0.self.0']
    """

    heads: tuple[Head, ...]
    columns: Mapping[str, tuple[Value, ...]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))
        if len(set(self.heads)) != len(self.heads):
            twice = next(head for head in self.heads if self.heads.count(head) > 1)
            raise ValueError(f"A head has one row, but {twice} came twice.")
        for name, values in self.columns.items():
            _check_column(name, values, self.heads)

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copy and pickle, which cannot copy a read-only dictionary."""
        return HeadTable, (self.heads, dict(self.columns))

    @staticmethod
    def of(columns: Mapping[str, Mapping[str, Iterable[Measured] | Tensor]]) -> "HeadTable":
        """Build a table from {measure: {site name: one value per head}}.

        Sites stay in the order given. A site that a measure leaves out gets None there.

        Args:
            columns: lists, arrays or tensors of shape (H,); all measures of a site agree on H.
        """
        listed = {
            name: {site: _as_list(name, site, values) for site, values in sites.items()}
            for name, sites in columns.items()
        }
        counts: dict[str, int] = {}
        for name, sites in listed.items():
            for site, values in sites.items():
                if counts.setdefault(site, len(values)) != len(values):
                    raise ValueError(
                        f"{site} has {counts[site]} heads, but {name!r} gives {len(values)} values."
                    )
        heads = tuple(Head(site, index) for site, count in counts.items() for index in range(count))
        values_of = {
            name: tuple(
                sites[head.site][head.index] if head.site in sites else None for head in heads
            )
            for name, sites in listed.items()
        }
        return HeadTable(heads, values_of)

    def __len__(self) -> int:
        return len(self.heads)

    def __iter__(self) -> Iterator[tuple[Head, Row]]:
        """Yield head and row, from top to bottom."""
        for place, head in enumerate(self.heads):
            yield head, {name: values[place] for name, values in self.columns.items()}

    def __getitem__(self, column: str) -> tuple[Value, ...]:
        if column not in self.columns:
            hint = suggestion(column, self.columns)
            raise ValueError(f"The table has no column {column!r}. {hint}")
        return self.columns[column]

    def row(self, head: Head) -> Row:
        """Return all measures of one head."""
        if head not in self.heads:
            hint = suggestion(str(head), map(str, self.heads[:8]))
            raise ValueError(f"The table has no head {head}. {hint}")
        place = self.heads.index(head)
        return {name: values[place] for name, values in self.columns.items()}

    def with_column(self, name: str, values: Sequence[Value]) -> "HeadTable":
        """Add or replace a column, one value per row."""
        return HeadTable(self.heads, {**self.columns, name: tuple(values)})

    def join(self, other: "HeadTable") -> "HeadTable":
        """Join the columns of two tables; None where a head is in one of them only."""
        both = self.columns.keys() & other.columns.keys()
        if both:
            raise ValueError(
                f"Both tables have a column {min(both)!r}; leave it out of one of them."
            )
        heads = self.heads + tuple(head for head in other.heads if head not in set(self.heads))
        columns: dict[str, tuple[Value, ...]] = {}
        for table in (self, other):
            for name, values in table.columns.items():
                by_head = dict(zip(table.heads, values, strict=True))
                columns[name] = tuple(by_head.get(head) for head in heads)
        return HeadTable(heads, columns)

    def sort(self, by: str, *, descending: bool = True) -> "HeadTable":
        """Sort rows by one column; equal rows keep their order and None comes last."""
        values = self[by]
        known = [place for place, value in enumerate(values) if value is not None]
        if len({isinstance(values[place], str) for place in known}) > 1:
            raise ValueError(f"Column {by!r} mixes text and numbers and has no order.")
        known.sort(key=lambda place: cast(Any, values[place]), reverse=descending)
        unknown = [place for place, value in enumerate(values) if value is None]
        return self._take(known + unknown)

    def filter(self, predicate: Callable[[Head, Row], bool]) -> "HeadTable":
        """Keep the rows for which `predicate(head, row)` is true."""
        rows = enumerate(self)
        return self._take([place for place, (head, row) in rows if predicate(head, row)])

    def top(self, count: int, by: str) -> "HeadTable":
        """Keep the `count` heads with the largest values of one column, largest first."""
        if count < 0:
            raise ValueError(f"count must be 0 or more, got {count}.")
        return self.sort(by)._take(range(min(count, len(self))))

    def layers(self, column: str) -> dict[str, dict[int, list[Value]]]:
        """Return one column by kind of attention, layer and head; None for missing heads.

        >>> table = HeadTable.of({"peak": {"encoder.0.self": [1, 2], "decoder.0.cross": [3]}})
        >>> table.layers("peak")
        {'encoder.self': {0: [1, 2]}, 'decoder.cross': {0: [3]}}
        """
        kinds: dict[str, dict[int, list[Value]]] = {}
        for head, value in zip(self.heads, self[column], strict=True):
            kind, layer = _kind_and_layer(head.site)
            row = kinds.setdefault(kind, {}).setdefault(layer, [])
            row.extend([None] * (head.index + 1 - len(row)))
            row[head.index] = value
        return {kind: dict(sorted(layers.items())) for kind, layers in kinds.items()}

    def plot(self, column: str) -> "matplotlib.figure.Figure":
        """Draw heat maps of one column, layer by head, one panel per kind of attention.

        Head 7 of layer 3 is where L3 and H7 meet. A cell without a value stays empty. When values
        lie on both sides of zero the colours part there. The figure knows no window: save it with
        `figure.savefig(path)`, or let a notebook show it.
        """
        numbers = [value for value in self[column] if isinstance(value, float | int)]
        if not numbers or len(numbers) + self[column].count(None) != len(self):
            raise ValueError(f"Only a column of numbers can be plotted, {column!r} is not one.")
        panels = cast(dict[str, dict[int, list[float | None]]], self.layers(column))
        return _draw(panels, title=column)

    def to_pandas(self) -> "pandas.DataFrame":
        """Convert to a data frame with the heads' names as index. Needs pandas."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise ValueError(
                "to_pandas() needs pandas, which is not installed; pip install headwise[pandas]."
            ) from None
        index = pandas.Index([str(head) for head in self.heads], name="head")
        return pandas.DataFrame(dict(self.columns), index=index)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values; `from_json` is the inverse."""
        columns = {name: list(values) for name, values in self.columns.items()}
        return {"heads": [str(head) for head in self.heads], "columns": columns}

    @staticmethod
    def from_json(value: Any) -> "HeadTable":
        """Make a table from what `to_json` returned."""
        check_shape(value, {"heads": [str], "columns": {...: list}}, name="A head table")
        columns = {name: tuple(values) for name, values in value["columns"].items()}
        return HeadTable(tuple(map(Head.parse, value["heads"])), columns)

    def to_csv(self, path: Path | str) -> None:
        """Write a CSV file, the head's name first in each line; None becomes an empty cell."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["head", *self.columns])
        writer.writerows([str(head), *row.values()] for head, row in self)
        files.write_text(Path(path), text.getvalue())

    def to_parquet(self, path: Path | str) -> None:
        """Write a Parquet file with `head` as first column. Needs pandas and pyarrow."""
        if find_spec("pyarrow") is None:
            raise ValueError(
                "to_parquet() needs pyarrow, which is not installed; pip install pandas pyarrow, "
                "or use to_csv()."
            )
        frame = self.to_pandas().reset_index()
        with files.replacing(Path(path)) as temporary:
            frame.to_parquet(temporary, index=False, engine="pyarrow")

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Print as many whole columns as fit, and the names of the others."""
        cells = printed(self.columns)
        widths = {
            # a long name is broken at its spaces, so that the column stays narrow
            name: max(map(len, (*texts, *name.split("_"))))
            for name, texts in cells.items()
        }
        whole = options.max_width - max((len(str(head)) for head in self.heads), default=4)
        room, shown = whole, list[str]()
        for name, width in widths.items():
            room -= width + BETWEEN
            if room < 0:
                break
            shown.append(name)
        unbroken = sum(max(widths[name], len(name)) + BETWEEN for name in shown)
        narrow = widths if unbroken > whole else {}
        yield self._printed({name: cells[name] for name in shown}, narrow)
        if left := [name for name in cells if name not in shown]:
            said = f"{len(left)} more columns do not fit here: {', '.join(left)}."
            yield Text(printable(said))

    def _printed(self, cells: Mapping[str, Sequence[str]], widths: Mapping[str, int]) -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("head", no_wrap=True)
        for name in cells:
            is_text = any(isinstance(value, str) for value in self.columns[name])
            side = "left" if is_text else "right"
            shown = Text(printable(name.replace("_", " ")))
            table.add_column(shown, justify=side, width=widths.get(name))
        for head, *row in zip(self.heads, *cells.values(), strict=True):
            # Text, because Rich would read brackets in a plain string as markup
            texts = (Text(printable(cell), no_wrap=True) for cell in (str(head), *row))
            table.add_row(*texts)
        return table

    def __str__(self) -> str:
        text = io.StringIO()
        # wide enough that no cell is ever cut; the table takes only what it needs
        Console(file=text, width=10_000, color_system=None, legacy_windows=False).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def __repr__(self) -> str:
        names = printed_names(self.columns)
        return f"HeadTable({len(self)} heads: {', '.join(names) or 'no columns'})"

    def _take(self, places: Sequence[int]) -> "HeadTable":
        columns = {
            name: tuple(values[place] for place in places) for name, values in self.columns.items()
        }
        return HeadTable(tuple(self.heads[place] for place in places), columns)


def plain_number(value: object) -> object:
    """Return a Python number for a numpy number or a tensor without axes; else the value."""
    return cast(Any, value).item() if getattr(value, "ndim", None) == 0 else value


def _as_list(name: str, site: str, values: Iterable[Measured] | Tensor) -> list[Value]:
    if not isinstance(values, Tensor):
        return cast(list[Value], [plain_number(value) for value in values])  # checked by the table
    if values.dim() != 1:
        shape = tuple(values.shape)
        raise ValueError(f"{name!r} wants one value per head of {site}, got a shape of {shape}.")
    return values.tolist()


def _check_column(name: str, values: Sequence[object], heads: Sequence[Head]) -> None:
    if len(values) != len(heads):
        raise ValueError(
            f"Column {name!r} has {len(values)} values for {len(heads)} heads; give one per head."
        )
    for head, value in zip(heads, values, strict=True):
        if not isinstance(value, float | int | str | None):
            raise ValueError(f"Column {name!r} holds {value!r} at {head}; use a number or text.")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(
                f"Column {name!r} is {value} at {head}; use None for what was not measured."
            )


def _kind_and_layer(site: str) -> tuple[str, int]:
    """Return ("encoder.self", 3) for "encoder.3.self"; without a layer number it is 0."""
    parts = site.split(".")
    place = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    if place is None:
        return site, 0
    return ".".join(parts[:place] + parts[place + 1 :]), int(parts[place])


def _draw(panels: Mapping[str, Panel], *, title: str) -> "matplotlib.figure.Figure":
    """Draw one panel per kind, all on one colour scale; every value is written in its cell.

    Args:
        panels: kind of attention -> layer -> value by head; None leaves a cell empty. At least one
            value is a number.
        title: what the values are.
    """
    from matplotlib.cm import ScalarMappable  # lazy: only plots need matplotlib
    from matplotlib.figure import Figure

    widths = [max(map(len, panel.values())) for panel in panels.values()]
    tallest = max(map(len, panels.values()))
    figure = Figure(figsize=(1.5 + 0.6 * sum(widths), 1.2 + 0.45 * tallest), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=widths)[0]
    scale, colours = _colours(panels)
    for axis, (kind, panel) in zip(axes, panels.items(), strict=True):
        _draw_panel(axis, panel, scale, colours)
        axis.set_title(kind)
    figure.colorbar(ScalarMappable(scale, colours), ax=list(axes), label=title)
    return figure


def _colours(panels: Mapping[str, Panel]) -> tuple[Any, Any]:
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    rows = [row for panel in panels.values() for row in panel.values()]
    values = [value for row in rows for value in row if value is not None]
    low, high = min(values), max(values)
    if low < 0 < high:
        reach = max(-low, high)
        return Normalize(-reach, reach), colormaps["RdBu_r"]
    return Normalize(low, high), colormaps["viridis"]


def _draw_panel(axis: Any, panel: Panel, scale: Any, colours: Any) -> None:
    width = max(map(len, panel.values()))
    nan = float("nan")  # what matplotlib leaves empty
    grid = [
        [nan if value is None else value for value in [*row, *[None] * (width - len(row))]]
        for row in panel.values()
    ]
    axis.imshow(grid, cmap=colours, norm=scale, aspect="auto")
    axis.set_xticks(range(width), [f"H{head}" for head in range(width)])
    axis.set_yticks(range(len(panel)), [f"L{layer}" for layer in panel])
    for place, row in enumerate(panel.values()):
        for head, value in enumerate(row):
            if value is not None:
                ink = _ink(colours(float(scale(value))))
                axis.text(head, place, f"{value:.2g}", ha="center", va="center", color=ink, size=8)


def _ink(background: tuple[float, float, float, float]) -> str:
    """Return black or white, whichever is easier to read on a colour."""
    red, green, blue, _ = background
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
