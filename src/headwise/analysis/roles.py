"""Naming what a head does, from how often it points where.

A role is given only where a share clears its threshold for certain: it is the lower end of the
share's 95 % interval that must reach it. Where the table has intervals (a column X_low beside X)
but a share has none, there were too few sentences to tell, and it makes no role.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headwise.recording.heads import HeadTable
from headwise.recording.pointing import baselines_at, kind_of
from headwise.sites import Head

POSITIONAL_SHARE = 0.9  # of words at one distance (Voita et al., 2019, section 5.1)
MARGIN = 0.10  # above the best fixed distance, for grammar (section 5.2); we ask it of all labels
# More often than not. Section 5.3 says "rare words" of heads that point at the rarest word in 66 %
# and in over 50 % of cases; for the others no paper names a threshold, and half is the natural one.
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
# Measured beside what they would only repeat: offset says the same, or the rarest.
NO_ROLES = frozenset({"previous", "next", "two_rarest"})
# Often measured where all is said twice, so that one distance finds everything: there no head could
# do better, and a majority is enough.
REPEATS = frozenset({"duplicate", "induction"})

Row = Mapping[str, float | int | str | None]


@dataclass(frozen=True)
class _Claim:
    """A share that could make a role."""

    role: str
    share: float  # its lower end
    threshold: float

    @property
    def holds(self) -> bool:
        return self.share >= self.threshold

    @property
    def strength(self) -> float:
        """How much of the way from the threshold to 1: thresholds differ, and so does the room."""
        room = 1 - self.threshold
        return (self.share - self.threshold) / room if room > 0 else 0.0


def with_roles(table: HeadTable, baselines: Mapping[str, float]) -> HeadTable:
    """Add two columns, the first: `role`, the strongest of a head's roles, and `roles`, all.

        previous, next, offset +2 ...   the strongest word at one distance, at least 90 %; the
                                        word itself is no distance, except in cross-attention
        rare words, punctuation,        the strongest word is the rarest, a punctuation mark, the
        first word, duplicate,          first, an earlier same word, the word after one: at least
        induction                       half of the words that could, and 10 points above the
                                        baseline; where that is out of reach for a repeated word,
                                        at least half
        sink                            at least half of the weight on special tokens
        any other label (nsubj_to_head,
        alignment, coreference ...)     at least 10 points above its baseline

    Strength is how much of the way from the threshold to 1 a share has gone; of equally strong
    roles the one named first above is taken. Several are written "previous, sink". None where a
    head has no role.

    Args:
        table: the columns of `Profile` and `Pointing`; those that are missing make no role.
        baselines: {label: what one fixed distance reaches}, as from `Pointing.baselines()`; those
            of "encoder.self: label" are for such heads alone.

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
    # words of another sentence are not one's neighbours
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
    """What a share certainly is: the lower end of its interval, or itself in a table without."""
    share = row.get(f"{column}_low", row.get(column))
    return float(share) if isinstance(share, float | int) else None
