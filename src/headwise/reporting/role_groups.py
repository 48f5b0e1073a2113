"""Groups of roles: what the colours of a report stand for."""

from collections import Counter
from collections.abc import Iterable, Mapping

GROUPS = {  # in the order of the legend, and the roles with a fixed name
    "positional": ("previous", "next"),
    "syntactic": (),
    "rare words": ("rarest", "two rarest", "rare words"),
    "resting": ("sink", "first word", "punctuation", "special tokens", "delimiter"),
    "repetition": ("duplicate", "induction"),
    "alignment": ("alignment",),
    "coreference": ("coreference",),
}
OTHER = "other"
SHORT = {  # what fits into a cell
    "previous": "\N{MINUS SIGN}1",
    "next": "+1",
    "rarest": "rare",
    "two rarest": "rare",
    "rare words": "rare",
    "first word": "first",
    "punctuation": "punct",
    "duplicate": "dup",
    "induction": "induct",
    "alignment": "align",
}


def group_of(role: str) -> str:
    """Return the group a role belongs to, "other" if Headwise does not know it.

    >>> group_of("offset +2"), group_of("nsubj_to_head"), group_of("first word")
    ('positional', 'syntactic', 'resting')
    """
    name = _plain(role)
    if name.startswith("offset "):
        return "positional"
    if name.endswith((" to head", " to dependent")):
        return "syntactic"
    if name.startswith("coreference"):
        return "coreference"
    return next((group for group, roles in GROUPS.items() if name in roles), OTHER)


def short_name(role: str) -> str:
    """Return a role in a few letters.

    >>> short_name("offset +2"), short_name("nsubj_to_head"), short_name("rare words")
    ('+2', 'nsubj', 'rare')
    """
    name = _plain(role)
    for ending in (" to head", " to dependent"):
        name = name.removesuffix(ending)
    if name.startswith("coreference"):
        return "coref"
    return SHORT.get(name, name.removeprefix("offset "))


def grouped(roles: Iterable[object]) -> Counter[str]:
    """Count the heads of each group; "" stands for heads without a role."""
    return Counter(group_of(str(role)) if role else "" for role in roles)


def legend(said: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return colour class and text of each entry of the legend.

    Args:
        said: text by group, such as how many heads it has; "" stands for heads without a role.
    """
    known = [group for group in (*GROUPS, OTHER) if group in said]
    entries = [(colour_of(group), f"{group} ({said[group]})") for group in known]
    return [*entries, (colour_of(""), f"no role found ({said.get('', 0)})")]


def colour_of(group: str) -> str:
    """Return the CSS class of a cell with the colour of a group."""
    return f"role {group.replace(' ', '-')}".strip()


def _plain(role: str) -> str:
    return role.replace("_", " ")
