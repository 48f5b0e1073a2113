"""Naming what a head does, from how often it points where."""

from collections.abc import Mapping

from headwise.recording.heads import HeadTable

POSITIONAL_SHARE = 0.9  # of queries at one neighbour (Voita et al., 2019, section 5.1)
MARGIN = 0.10  # above the best fixed distance (section 5.2)
NEIGHBOURS = {-1: "previous", 1: "next"}


def with_roles(table: HeadTable, baselines: Mapping[str, float]) -> HeadTable:
    """Add a `role` column, the first.

    A head is positional when at least 90 % of its queries look at the same neighbour; otherwise
    it has the annotated role that it beats the fixed-distance baseline of by most, and by at least
    10 points; otherwise none.

    Args:
        table: needs offset and offset_share, and a column for each label in `baselines`.
        baselines: {label: what one fixed distance reaches}, as from `Pointing.baselines()`.
    """
    roles = tuple(_role(row, baselines) for _, row in table)
    return HeadTable(table.heads, {"role": roles, **table.columns})


def _role(
    row: Mapping[str, float | int | str | None], baselines: Mapping[str, float]
) -> str | None:
    offset, share = row.get("offset"), row.get("offset_share")
    neighbour = NEIGHBOURS.get(offset) if isinstance(offset, int) else None
    if neighbour and isinstance(share, float) and share >= POSITIONAL_SHARE:
        return neighbour
    margins = {
        label: value - baseline
        for label, baseline in baselines.items()
        if isinstance(value := row.get(label), float)
    }
    best = max(margins, key=lambda label: margins[label], default=None)
    return best if best is not None and margins[best] >= MARGIN else None
