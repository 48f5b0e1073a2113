"""JSON files, checked against a shape; a damaged file raises an error of one sentence.

A shape is one of:

- a type: `str`, `bool`, `int`, `float` (any finite number), `dict`, `list`, `object` (anything)
- None
- a tuple of shapes, any of which may match
- [shape], a list of it
- {name: shape}, an object with at least these fields
- {...: shape}, an object whose values all have that shape
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

_WORDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "a JSON object",
    list: "a JSON list",
    object: "anything",
    None: "null",
}
MAX_SHOWN = 60  # characters of a wrong value in an error message


def read_json(path: Path, shape: Any = object) -> Any:
    """Read a JSON file; raise a ValueError that names the file if it is damaged.

    Args:
        path: of the file.
        shape: see the module's docstring.
    """
    return parse_json(path.read_bytes(), shape, name=str(path))


def read_text(path: Path) -> str:
    """Read a UTF-8 file; raise a ValueError that names the file if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path} is not text in UTF-8 ({problem}); make it again.") from None


def parse_json(text: str | bytes, shape: Any = object, *, name: str) -> Any:
    """Parse a JSON text.

    Args:
        text: of a file, or its bytes in UTF-8.
        shape: see the module's docstring.
        name: of the file, for error messages.

    >>> parse_json('{"step": 1}', {"step": int}, name="x.json")
    {'step': 1}
    """
    try:
        value = json.loads(text if isinstance(text, str) else text.decode("utf-8"))
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply; it was changed. Make it again.") from None
    except ValueError as problem:
        raise ValueError(
            f"{name} is not valid JSON ({problem}); it was cut short or changed. Make it again."
        ) from None
    check_shape(value, shape, name=name)
    return value


def check_shape(value: object, shape: Any, *, name: str) -> None:
    """Raise a ValueError if a value read from JSON has another shape.

    Args:
        value: from `json.loads`.
        shape: see the module's docstring.
        name: of the file or field, for the error message.
    """
    wrong = _mismatch(value, shape, "")
    if wrong is None:
        return
    place, wanted, found = wrong
    shown = repr(found)
    shown = f"{shown[:MAX_SHOWN]}…" if len(shown) > MAX_SHOWN else shown
    field = f" in {place}" if place else ""
    raise ValueError(
        f"{name} must hold {wanted}{field}, got {shown}; it was changed. Make it again."
    )


def _mismatch(value: object, shape: Any, place: str) -> tuple[str, str, object] | None:
    """Find the first mismatch: its path, what was wanted, and what is there."""
    if isinstance(shape, tuple):
        found = [_mismatch(value, one, place) for one in cast(Sequence[Any], shape)]
        wanted = " or ".join(_described(one) for one in cast(Sequence[Any], shape))
        return None if None in found else (place, wanted, value)
    if not _is_kind(value, _kind_of(shape)):
        return place, _described(shape), value
    return next(filter(None, _inside(value, shape, place)), None)


def _inside(value: Any, shape: Any, place: str) -> list[tuple[str, str, object] | None]:
    """Compare the parts of a list or an object with the shapes that they must have."""
    if isinstance(shape, list):
        return [_mismatch(item, shape[0], f"{place}[{n}]") for n, item in enumerate(value)]
    if not isinstance(shape, dict):
        return []
    found: list[tuple[str, str, object] | None] = []
    for name, wanted in cast(Mapping[Any, Any], shape).items():
        if name is ...:
            found += [_mismatch(item, wanted, _joined(place, key)) for key, item in value.items()]
        elif name in value:
            found.append(_mismatch(value[name], wanted, _joined(place, name)))
        else:
            found.append((place, f"the field {name!r}", value))
    return found


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _kind_of(shape: Any) -> Any:
    return type(cast(object, shape)) if isinstance(shape, list | dict) else shape


def _is_kind(value: object, kind: Any) -> bool:
    if kind is None:
        return value is None
    if kind is float:  # what is too large for a float is no number either
        is_number = isinstance(value, float | int) and not isinstance(value, bool)
        return is_number and abs(cast(float, value)) <= sys.float_info.max
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _described(shape: Any) -> str:
    return _WORDS[_kind_of(shape)]
