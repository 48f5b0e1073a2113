"""How a table of heads is printed: about three digits, and a share with its interval as one."""

from collections.abc import Mapping, Sequence

Value = float | int | str | None
WIDE = 120  # characters for columns from which on intervals, and all roles, are shown


def printed(columns: Mapping[str, Sequence[Value]]) -> dict[str, list[str]]:
    """The cells of each printed column; X, X_low and X_high become one.

    >>> printed({"share": [0.45], "share_low": [0.41], "share_high": [0.48]})
    {'share': ['0.45 [0.41, 0.48]']}
    """
    cells: dict[str, list[str]] = {}
    for name in printed_names(columns):
        if ends := _ends(name, columns):
            cells[name] = _with_intervals(columns[name], *ends)
        else:
            cells[name] = [_show(value) for value in columns[name]]
    return cells


def printed_names(columns: Mapping[str, Sequence[Value]]) -> list[str]:
    """The columns that are not the end of another's interval."""
    hidden = {
        f"{name}_{end}" for name in columns if _ends(name, columns) for end in ("low", "high")
    }
    return [name for name in columns if name not in hidden]


def fitting(
    columns: Mapping[str, Sequence[Value]], names: Sequence[str], *, width: int
) -> list[str]:
    """The first of some columns that fit, each as wide as its cells or a word of its name.

    Args:
        columns: of the table.
        names: of columns, those to be shown first; what the table has not is left out.
        width: characters there are, without the names of heads.
    """
    own, wide = printed_names(columns), width >= WIDE
    hidden = "role" if "roles" in own and wide else "roles"  # all of them, or the first
    kept: list[str] = []
    for name in names:
        if name not in own or name == hidden:
            continue
        ends = [f"{name}_low", f"{name}_high"] if wide else []
        group = [name, *(end for end in ends if end in columns)]
        cells = printed({column: columns[column] for column in group})[name]
        width -= 2 + max(map(len, (*cells, *name.split("_"))))
        if width < 0:
            break
        kept += group
    return kept


def _ends(
    name: str, columns: Mapping[str, Sequence[Value]]
) -> tuple[Sequence[Value], Sequence[Value]] | None:
    low, high = columns.get(f"{name}_low"), columns.get(f"{name}_high")
    return None if low is None or high is None else (low, high)


def _with_intervals(
    values: Sequence[Value], lows: Sequence[Value], highs: Sequence[Value]
) -> list[str]:
    numbers = [abs(x) for x in (*values, *lows, *highs) if isinstance(x, float | int)]
    size = max(numbers, default=0)
    # as many places in all rows, so that they line up; two are enough for a share with its doubt
    places = 0 if size >= 100 else 2 if size >= 0.1 else 4
    cells: list[str] = []
    for value, low, high in zip(values, lows, highs, strict=True):
        value_text, low_text, high_text = (
            f"{x:.{places}f}" if isinstance(x, float | int) else "" for x in (value, low, high)
        )
        has_ends = low_text and high_text
        cells.append(f"{value_text} [{low_text}, {high_text}]" if has_ends else value_text)
    return cells


def _show(value: Value) -> str:
    """About three digits, in as many places for all values of a size, so that columns line up."""
    if not isinstance(value, float):
        return "" if value is None else str(value)
    size = abs(value)
    return f"{value:.{3 if size < 1 else 2 if size < 100 else 0}f}"
