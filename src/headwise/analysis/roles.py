"""Roles of heads, from how often they attend to which words.

A head has a role if the lower end of a share's 95 % interval reaches the threshold. If the table
has intervals (a column X_low for X) but a share has none, there were too few sentences, and the
share makes no role.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headwise.recording.heads import HeadTable
from headwise.recording.pointing import baselines_at, kind_of
from headwise.sites import Head

POSITIONAL_SHARE = 0.9  # of words at one distance (Voita et al., 2019, section 5.1)
MARGIN = 0.10  # above the best fixed distance; section 5.2 for syntax, here for all labels
# Section 5.3 has "rare words" heads with 66 % and over 50 %; no paper has a threshold for others.
MAJORITY = 0.5
NEIGHBOURS = {-1: "previous", 1: "next"}

MAJORITIES = {  # column -> role
    "rarest": "rare words",
    "punctuation": "punctuation",
    "first_word": "first word",
    "special_mass": "sink",
    "duplicate": "duplicate",
    "induction": "induction",
}
# Columns that repeat another: the offset, or the rarest word.
NO_ROLES = frozenset({"previous", "next", "two_rarest"})
# Often measured on text repeated twice, where one distance finds everything, so that no head could
# exceed the baseline: a majority is enough there.
REPEATS = frozenset({"duplicate", "induction"})

Row = Mapping[str, float | int | str | None]


@dataclass(frozen=True)
class _Claim:
    """Share that makes a role if it reaches its threshold."""

    role: str
    share: float  # lower end of its interval
    threshold: float

    @property
    def holds(self) -> bool:
        return self.share >= self.threshold

    @property
    def strength(self) -> float:
        """Fraction of the distance from the threshold to 1, as thresholds differ."""
        distance = 1 - self.threshold
        return (self.share - self.threshold) / distance if distance > 0 else 0.0


def with_roles(table: HeadTable, baselines: Mapping[str, float]) -> HeadTable:
    """Add two columns in front: `role`, the strongest role of a head, and `roles`, all of them.

        previous, next, offset +2 ...   the strongest word at one distance, at least 90 %; not
                                        distance 0, except in cross-attention
        rare words, punctuation,        the strongest word is the rarest, a punctuation mark, the
        first word, duplicate,          first, an earlier same word, the word after one: at least
        induction                       half of the words that could, and 10 points above the
                                        baseline; where that is out of reach for a repeated word,
                                        at least half
        sink                            at least half of the weight on special tokens
        any other label (nsubj_to_head,
        alignment, coreference ...)     at least 10 points above its baseline

    The strongest role has gone furthest from its threshold to 1; of equally strong roles the first
    one above counts. Several are written "previous, sink"; a head without a role has None.

    Args:
        table: with columns of `Profile` and `Pointing`; missing ones make no role.
        baselines: {label: share of the best fixed distance}, as from `Pointing.baselines()`; a
            label "encoder.self: label" is for such heads alone.

    >>> table = HeadTable.of({"offset": {"encoder.0.self": [-1]},
    ...                       "offset_share": {"encoder.0.self": [0.95]}})
    >>> with_roles(table, {})["role"]
    ('previous',)
    """
    found = [_roles(head, row, baselines) for head, row in table]
    columns = {
        "role": tuple(roles[0] if roles else None for roles in found),
        "roles": tuple(", ".join(roles) or None for roles in found),
    }
    kept = {name: values for name, values in table.columns.items() if name not in columns}
    return HeadTable(table.heads, {**columns, **kept})


def _roles(head: Head, row: Row, baselines: Mapping[str, float]) -> list[str]:
    own = baselines_at(baselines, kind_of(head.site))
    claims = [*_positional(head, row), *_majorities(row, own), *_labelled(row, own)]
    held = [claim for claim in claims if claim.holds]
    # sorting keeps the order of what is equally strong
    return [claim.role for claim in sorted(held, key=lambda claim: -claim.strength)]


def _positional(head: Head, row: Row) -> list[_Claim]:
    offset, share = row.get("offset"), _certain(row, "offset_share")
    crosses = head.site.endswith(".cross")
    if not isinstance(offset, int) or share is None or (offset == 0 and not crosses):
        return []
    # words of another sentence are no neighbours
    role = None if crosses else NEIGHBOURS.get(offset)
    return [_Claim(role or f"offset {offset:+d}", share, POSITIONAL_SHARE)]


def _majorities(row: Row, baselines: Mapping[str, float]) -> list[_Claim]:
    return [
        _Claim(role, share, _majority(column, baselines.get(column)))
        for column, role in MAJORITIES.items()
        if (share := _certain(row, column)) is not None
    ]


def _majority(column: str, baseline: float | None) -> float:
    if baseline is None or (column in REPEATS and baseline + MARGIN > 1):
        return MAJORITY
    return max(MAJORITY, baseline + MARGIN)


def _labelled(row: Row, baselines: Mapping[str, float]) -> list[_Claim]:
    return [
        _Claim(label, share, baseline + MARGIN)
        for label, baseline in baselines.items()
        if label not in MAJORITIES and label not in NO_ROLES
        if (share := _certain(row, label)) is not None
    ]


def _certain(row: Row, column: str) -> float | None:
    """Return the lower end of a share's interval, or the share itself in a table without."""
    share = row.get(f"{column}_low", row.get(column))
    return float(share) if isinstance(share, float | int) else None
