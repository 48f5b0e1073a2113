"""HTML that cannot be broken by what it shows: text is escaped unless it is `Html` already."""

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any


class Html(str):
    """Text that is HTML already and is not escaped again."""


def element(tag: str, *children: str, attributes: Mapping[str, str | int | float] = {}) -> Html:
    """One element with its children; children that are not `Html` are escaped.

    >>> element("p", "1 < 2", element("b", "yes"), attributes={"title": 'a "quote"'})
    '<p title="a &quot;quote&quot;">1 &lt; 2<b>yes</b></p>'
    """
    listed = "".join(f' {name}="{escape(str(value))}"' for name, value in attributes.items())
    return Html(f"<{tag}{listed}>{join(children)}</{tag}>")


def join(children: Iterable[str]) -> Html:
    """Children one after the other, each escaped unless it is `Html`."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def script_data(value: Any) -> Html:
    r"""JSON for a `<script type="application/json">` block, which no text inside can close.

    >>> print(script_data("</script>"))
    "\u003c/script\u003e"
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)
