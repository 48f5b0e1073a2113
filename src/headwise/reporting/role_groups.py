"""Which kind of function a role is: what the colours of a report stand for."""

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
    """The group a role belongs to, "other" if Headwise does not know it.

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
    """A role in a few letters.

    >>> short_name("offset +2"), short_name("nsubj_to_head"), short_name("rare words")
    ('+2', 'nsubj', 'rare')
    """
    name = _plain(role)
    for ending in (" to head", " to dependent"):
        name = name.removesuffix(ending)
    if name.startswith("coreference"):
        return "coref"
    return SHORT.get(name, name.removeprefix("offset "))


def _plain(role: str) -> str:
    return role.replace("_", " ")
