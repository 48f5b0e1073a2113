"""Parts of inline SVG pictures."""

from headwise.reporting.markup import Html, element

Number = float | int


def words(text: str, *, x: Number, y: Number, anchor: str = "start") -> Html:
    """Text at a place; `anchor` says which end of it stands there, "start", "middle" or "end"."""
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    return element("text", text, attributes=place)


def line(x1: Number, y1: Number, x2: Number, y2: Number, *, kind: str = "") -> Html:
    """A straight line; `kind` is its class."""
    place = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    return element("line", attributes=place | ({"class": kind} if kind else {}))


def bar(
    *, x: Number, y: Number, width: Number, height: Number, kind: str = "bar", tip: str = ""
) -> Html:
    """A filled rectangle; a browser shows `tip` under the pointer."""
    place = {"x": x, "y": y, "width": width, "height": height}
    attributes = {"class": kind} | {name: f"{value:.1f}" for name, value in place.items()}
    return element("rect", *([element("title", tip)] if tip else []), attributes=attributes)


def picture(*parts: Html, width: Number, height: Number, label: str) -> Html:
    """An `svg` that scales with the page; `label` is what it says to those who cannot see it."""
    box = {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": label}
    return element("svg", *parts, attributes=box)
