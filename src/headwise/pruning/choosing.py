"""Choose heads without gates: by a column of a table, greedily, or at random.

Each returns a `Keep`, {site name: numbers of the heads to keep}, for `prune`. Sites outside `where`
are not named, and keep all their heads.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import nn

from headwise.recording import HeadTable
from headwise.sites import Head, Where, find_sites, masked

Keep = dict[str, list[int]]


def by_column(
    table: HeadTable,
    column: str,
    count: int,
    *,
    where: str = "*",
    lowest: bool = False,
    group: int = 1,
) -> Keep:
    """Keep the `count` heads with the largest values of a column; the first of equal ones.

    Args:
        table: one row per head.
        column: a column of numbers; every head of the sites must have one.
        count: the number of heads to keep, of all sites together.
        where: a pattern of site names to choose among.
        lowest: keep the heads with the smallest values instead.
        group: how many neighbouring heads stay or go together, by the mean of their values.

    >>> importance = {"encoder.0.self": [0.1, 0.9], "encoder.1.self": [0.5, 0.2]}
    >>> table = HeadTable.of({"importance": importance})
    >>> by_column(table, "importance", 1)
    {'encoder.0.self': [1], 'encoder.1.self': []}
    """
    values = {
        head: _number(column, head, value)
        for head, value in zip(table.heads, table[column], strict=True)
        if fnmatchcase(head.site, where)
    }
    groups = _groups(sorted(values), group)
    if not groups:
        raise ValueError(f"where={where!r} chooses no head of the table: {table!r}.")
    _check_count(count, group, len(values))
    sign = 1 if lowest else -1
    places = {head: place for place, head in enumerate(table.heads)}
    ranked = sorted(
        groups,
        key=lambda heads: (
            sign * math.fsum(values[head] for head in heads),
            min(places[head] for head in heads),
        ),
    )
    chosen = [head for heads in ranked[: count // group] for head in heads]
    return _as_keep(chosen, (head.site for head in table.heads if head in values))


def random(
    model: nn.Module, count: int, *, seed: int = 0, where: Where = "*", group: int = 1
) -> Keep:
    """Keep `count` random heads: the baseline of any other choice.

    Args:
        model: a model with sites.
        count: the number of heads to keep, of all chosen sites together.
        seed: of the random choice.
        where: the sites to choose among.
        group: how many neighbouring heads stay or go together.
    """
    sites = find_sites(model, where=where)
    groups = _groups([head for site in sites for head in site.heads], group)
    _check_count(count, group, sum(map(len, groups)))
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen = [head for place in order[: count // group] for head in groups[place]]
    return _as_keep(chosen, (site.name for site in sites))


def greedy(
    model: nn.Module,
    measure: Callable[[nn.Module], float],
    count: int,
    *,
    better: Literal["higher", "lower"] = "higher",
    where: Where = "*",
    group: int = 1,
    at_once: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Keep:
    """Mask heads one after the other, each time the one whose removal costs least.

    A round evaluates the model once for each head left, so that N heads need about N^2 / 2
    evaluations; `at_once` divides that (Michel et al., 2019, remove a tenth of all heads at once).

    Args:
        model: a model with sites; it is left as it was.
        measure: evaluates the model as it is, e.g. its accuracy.
        count: the number of heads to keep, of all chosen sites together.
        better: whether higher or lower values are better.
        where: the sites to choose among.
        group: how many neighbouring heads stay or go together.
        at_once: how many groups are removed per round.
        progress: called with (evaluations done, evaluations in all).
    """
    if at_once < 1:
        raise ValueError(f"at_once must be at least 1, got {at_once}.")
    if better not in ("higher", "lower"):
        raise ValueError(f"better must be 'higher' or 'lower', got {better!r}.")
    sites = find_sites(model, where=where)
    left = _groups([head for site in sites for head in site.heads], group)
    _check_count(count, group, sum(map(len, left)))
    sign = -1 if better == "higher" else 1
    off: list[Head] = []
    done, total = 0, _evaluations(len(left), count // group, at_once)
    while len(left) > count // group:
        values: list[float] = []
        for heads in left:
            progress(done, total)
            with masked(model, _as_keep([*off, *heads], (site.name for site in sites))):
                values.append(sign * _finite(measure(model), heads))
            done += 1
        order = sorted(range(len(left)), key=lambda place: values[place])
        going = set(order[: min(at_once, len(left) - count // group)])
        off += [head for place in going for head in left[place]]
        left = [heads for place, heads in enumerate(left) if place not in going]
    progress(total, total)
    return _as_keep([head for heads in left for head in heads], (site.name for site in sites))


def _finite(value: float, heads: Sequence[Head]) -> float:
    if not math.isfinite(value):
        raise ValueError(f"The model without {heads[0]} measures {value}, so it cannot be ranked.")
    return value


def _evaluations(groups: int, kept: int, at_once: int) -> int:
    return sum(range(groups, kept, -at_once))


def _groups(heads: Sequence[Head], group: int) -> list[tuple[Head, ...]]:
    """Return groups of `group` neighbouring heads of each site."""
    if group < 1:
        raise ValueError(f"group must be at least 1, got {group}.")
    together: dict[tuple[str, int], list[Head]] = {}
    for head in heads:
        together.setdefault((head.site, head.index // group), []).append(head)
    for (site, _), members in together.items():
        if len(members) != group:
            raise ValueError(
                f"The heads of {site} cannot be grouped by {group}; choose a group that divides "
                "their number."
            )
    return [tuple(members) for members in together.values()]


def _check_count(count: int, group: int, heads: int) -> None:
    if not 0 <= count <= heads:
        raise ValueError(f"count must be between 0 and the {heads} heads there are, got {count}.")
    if count % group:
        raise ValueError(f"count must be a multiple of the group of {group} heads, got {count}.")


def _number(column: str, head: Head, value: float | int | str | None) -> float:
    if value is None or isinstance(value, str):
        raise ValueError(
            f"Column {column!r} holds {value!r} at {head}; heads are chosen by numbers. "
            "Leave that site out with where=."
        )
    return float(value)


def _as_keep(heads: Iterable[Head], sites: Iterable[str]) -> Keep:
    """Return the heads by site, in order; a site without any has an empty list."""
    keep: Keep = {site: [] for site in sites}
    for head in sorted(heads):
        keep[head.site].append(head.index)
    return keep
