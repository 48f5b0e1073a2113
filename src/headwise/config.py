"""Settings: frozen dataclasses, and the only place where text or JSON becomes one.

A setting may be a bool, int, float, str, Path, Literal, a tuple of these, one of these or None, or
another such dataclass. There is no YAML and no registry: the dataclass is the documentation.
"""

import dataclasses
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)


@runtime_checkable
class Dataclass(Protocol):
    """Dataclass instance."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


T = TypeVar("T", bound=Dataclass)
Kind = TypeVar("Kind")  # a dataclass; Python cannot check a class against a protocol with fields

MOST, MOST_SEED = 10**9, 2**63 - 1  # whole numbers that a setting may be
_TRUTH = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    Path: "a path",
    NoneType: "none",
}
# control characters, line ends of Unicode, marks that change the direction of text, and halves of
# surrogate pairs, which stand for bytes of a file name that are no text
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def override(config: T, settings: Sequence[str], options: Mapping[str, Any] = {}) -> T:
    """Return a copy of a config with settings replaced by text, as typed on a command line.

    Args:
        config: a frozen dataclass; its annotations say how each text is read.
        settings: NAME=VALUE each; a tuple is written 1,2,3 and a missing value none; a setting of
            an inner dataclass is named OUTER.INNER. Of two settings with one name the last counts.
        options: further values by name, such as a command's own options; None leaves a setting as
            it is, and what `settings` says counts more.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Config:
    ...     steps: int = 300
    ...     sizes: tuple[int, ...] = (8,)
    >>> override(Config(), ["steps=20", "sizes=16,32"])
    Config(steps=20, sizes=(16, 32))
    """
    given = {name: value for name, value in options.items() if value is not None}
    return changed(config, given | dict(_read(config, setting) for setting in settings))


def changed(config: T, changes: Mapping[str, Any]) -> T:
    """Return a copy of a config with settings replaced by values, whose types are checked.

    All are replaced together, so that what a config checks of two settings does not depend on
    their order.

    Args:
        config: a frozen dataclass.
        changes: values by name; a setting of an inner dataclass is named OUTER.INNER.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Fit:
    ...     steps: int = 300
    >>> @dataclass(frozen=True)
    ... class Config:
    ...     fit: Fit = Fit()
    ...     seed: int = 0
    >>> changed(Config(), {"fit.steps": 20, "seed": 1})
    Config(fit=Fit(steps=20), seed=1)
    """
    values: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        outer, dot, inner = name.partition(".")
        annotation = _annotation(config, outer)
        if dot:
            inside.setdefault(outer, {})[inner] = value
            continue
        try:
            # the round trip checks the type: a tuple is a list in JSON, and a path text
            values[name] = _from_value(_plain(value), annotation)
        except _Mismatch:
            raise _wrong_value(type(config), name, annotation, value) from None
        _check_size(name, values[name])
    for outer, some in inside.items():
        values[outer] = changed(_inner(config, values, outer), some)
    return dataclasses.replace(config, **values) if values else config


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that `to_json` wrote with dotted names for inner dataclasses.

    >>> flat({"fit": {"steps": 300}, "seed": 0})
    {'fit.steps': 300, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inner = flat(cast(Mapping[str, Any], value)) if isinstance(value, Mapping) else {"": value}
        found |= {f"{name}.{key}".rstrip("."): plain for key, plain in inner.items()}
    return found


def to_json(config: Dataclass) -> dict[str, Any]:
    """Return the settings as JSON values: tuples as lists, paths as text."""
    fields = dataclasses.fields(config)
    return {field.name: _plain(getattr(config, field.name)) for field in fields if field.init}


def from_json(kind: type[Kind], settings: Mapping[str, Any]) -> Kind:
    """Make the config that `to_json` wrote; check names and types, and fill in defaults.

    Args:
        kind: the dataclass to build.
        settings: what was read from a JSON file.
    """
    if not isinstance(cast(object, settings), Mapping):
        raise ValueError(f"{kind.__name__} is made of a JSON object of settings, got {settings!r}.")
    annotations = _annotations(kind)
    values: dict[str, Any] = {}
    for name, value in settings.items():
        _check_name(kind, name, annotations)
        try:
            values[name] = _from_value(value, annotations[name])
        except _Mismatch:
            raise _wrong_value(kind, name, annotations[name], value) from None
    for name in _required(kind):
        if name not in values:
            raise ValueError(f"{kind.__name__} needs the setting {name!r}, which is missing.")
    return kind(**values)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return advice about an unknown name, the second sentence of an error message.

    >>> suggestion("stpes", ["steps", "seed"])
    "Did you mean 'steps'?"
    >>> suggestion("width", ["steps", "seed"])
    'Known: steps, seed.'
    """
    known = list(known)
    close = get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known) or 'none'}."


def printable(text: str) -> str:
    r"""Escape what could change a terminal, such as an escape character in the name of a file.

    >>> printable("a \x1b[31mred name")
    'a \\x1b[31mred name'
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class _Mismatch(Exception):
    """A value does not fit an annotation; the caller knows the setting's name and says so."""


def _read(config: Dataclass, setting: str) -> tuple[str, Any]:
    """Parse a setting written NAME=VALUE."""
    name, equals, text = (part.strip() for part in setting.partition("="))
    if not equals:
        raise ValueError(f"A setting is written NAME=VALUE, got {setting!r}.")
    *outer, last = name.split(".")
    for one in outer:
        _annotation(config, one)
        config = _inner(config, {}, one)
    annotation = _annotation(config, last)
    try:
        return name, _from_text(text, annotation)
    except _Mismatch:
        raise _wrong_value(type(config), last, annotation, text) from None


def _annotation(config: Dataclass, name: str) -> Any:
    """Return the annotation of a setting; raise with a suggestion for an unknown name."""
    annotations = _annotations(type(config))
    if name not in annotations:
        inner = {one.rpartition(".")[2]: one for one in reversed(flat(to_json(config)))}
        close = get_close_matches(name, [*annotations, *inner], n=1)
        wanted = close and close[0] not in annotations and f"Did you mean {inner[close[0]]!r}?"
        hint = wanted or suggestion(name, annotations)
        raise ValueError(f"{type(config).__name__} has no setting {name!r}. {hint}")
    return annotations[name]


def _inner(config: Dataclass, values: Mapping[str, Any], name: str) -> Dataclass:
    """Return the dataclass that is the value of a setting."""
    found = values.get(name, getattr(config, name))
    if not isinstance(found, Dataclass):
        raise ValueError(f"{type(config).__name__}'s {name!r} has no settings inside.")
    return found


def _check_size(name: str, value: Any) -> None:
    """Refuse a number that no count, size or seed can be."""
    most = MOST_SEED if "seed" in name else MOST
    for number in cast(Sequence[Any], value) if isinstance(value, tuple) else (value,):
        if isinstance(number, int) and abs(number) > most:
            raise ValueError(f"{name} must be at most {most:,}, got {number}.")


def _annotations(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def _required(kind: type[Any]) -> list[str]:
    fields = [field for field in dataclasses.fields(kind) if field.init]
    missing = dataclasses.MISSING
    return [f.name for f in fields if f.default is missing and f.default_factory is missing]


def _check_name(kind: type[Any], name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ValueError(f"{kind.__name__} has no setting {name!r}. {suggestion(name, known)}")


def _wrong_value(kind: type[Any], name: str, annotation: Any, value: object) -> ValueError:
    wanted = _describe(annotation)
    return ValueError(f"{kind.__name__}'s setting {name!r} wants {wanted}, got {value!r}.")


def _describe(annotation: Any) -> str:
    """Describe the values that an annotation allows, for an error message."""
    arguments = get_args(annotation)
    if _is_union(annotation):
        return " or ".join(_describe(member) for member in arguments)
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if get_origin(annotation) is tuple and arguments[-1] is Ellipsis:
        return f"values parted by commas, each {_describe(arguments[0])}"
    if get_origin(annotation) is tuple:
        return f"{len(arguments)} values parted by commas"
    if dataclasses.is_dataclass(annotation):
        return f"settings of {cast(type[Any], annotation).__name__}, each by its own name"
    return _WORDS.get(annotation) or str(annotation)


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType)


def _from_text(text: str, annotation: Any) -> Any:
    if _is_union(annotation):
        return _first_that_fits(text, annotation, _from_text)
    if get_origin(annotation) is Literal:
        return _choice({str(choice): choice for choice in get_args(annotation)}, text)
    if get_origin(annotation) is tuple:
        parts = [part.strip() for part in text.split(",")] if text else []
        return _items(parts, annotation, _from_text)
    if annotation is NoneType:
        return _choice({"none": None}, text.lower())
    if annotation is bool:
        return _choice(_TRUTH, text.lower())
    if annotation in (int, float):
        try:
            return _from_value(annotation(text), annotation)
        except ValueError:
            raise _Mismatch from None
    if annotation in (str, Path):
        return annotation(text)
    if dataclasses.is_dataclass(annotation):
        _fail()
    raise TypeError(f"A setting of type {annotation} cannot be read from text.")


def _from_value(value: Any, annotation: Any) -> Any:
    if _is_union(annotation):
        return _first_that_fits(value, annotation, _from_value)
    if get_origin(annotation) is Literal:
        choices = {(type(choice), choice): choice for choice in get_args(annotation)}
        return _choice(choices, (type(value), value)) if _is_scalar(value) else _fail()
    if get_origin(annotation) is tuple:
        return _items(value, annotation, _from_value) if isinstance(value, list) else _fail()
    if dataclasses.is_dataclass(annotation):
        inner = cast(type[Dataclass], annotation)
        return from_json(inner, value) if isinstance(value, dict) else _fail()
    if annotation is float and type(value) in (int, float):
        return float(value) if abs(value) <= sys.float_info.max else _fail()  # nan is not either
    if annotation is Path and isinstance(value, str):
        return Path(value)
    if annotation in _WORDS:
        # an exact comparison, because True is an int to isinstance
        return value if type(value) is annotation else _fail()
    raise TypeError(f"A setting of type {annotation} cannot be read from JSON.")


def _first_that_fits(value: Any, union: Any, convert: Any) -> Any:
    # the narrower first: "none" is no text in `str | None`, and "3" no float in `float | int`
    order = {NoneType: 0, int: 1, float: 3, bool: 4, Path: 5, str: 6}
    for member in sorted(get_args(union), key=lambda member: order.get(member, 2)):
        try:
            return convert(value, member)
        except _Mismatch:
            continue
    return _fail()


def _items(values: Sequence[Any], annotation: Any, convert: Any) -> tuple[Any, ...]:
    members = get_args(annotation)
    if members[-1] is Ellipsis:
        members = (members[0],) * len(values)
    if len(members) != len(values):
        _fail()
    return tuple(convert(value, member) for value, member in zip(values, members, strict=True))


def _choice(choices: Mapping[Any, Any], key: Any) -> Any:
    return choices[key] if key in choices else _fail()


def _fail() -> Any:
    raise _Mismatch


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float | bool | None)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast(Sequence[Any], value)]
    return to_json(value) if isinstance(value, Dataclass) else value
