"""A little SVG: colours come from the page's style sheet, so that drawings follow its theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape


class Drawing:
    """Elements in the order in which they are drawn."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.width, self.height, self.label = width, height, label
        self._parts: list[str] = []

    def __str__(self) -> str:
        box = f"0 0 {_number(self.width)} {_number(self.height)}"
        # one on which the text stays readable is as wide as a phone
        style = f"max-width:{_number(1.4 * self.width)}px"
        return (
            f'<svg viewBox="{box}" role="img" aria-label="{escape(self.label)}" style="{style}">'
            + "".join(self._parts)
            + "</svg>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Draw a line of a class of the style sheet."""
        self._add("line", kind, {"x1": x1, "y1": y1, "x2": x2, "y2": y2})

    def path(
        self, points: Sequence[tuple[float, float]], kind: str, *, closed: bool = False
    ) -> None:
        """Draw a polyline or polygon."""
        steps = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._parts.append(
            f'<{"polygon" if closed else "polyline"} class="{kind}" points="{steps}"/>'
        )

    def rect(
        self, x: float, y: float, width: float, height: float, kind: str, title: str = ""
    ) -> None:
        """Draw a rectangle."""
        self._add("rect", kind, {"x": x, "y": y, "width": width, "height": height}, title)

    def shade(
        self, x: float, y: float, width: float, height: float, share: float, title: str = ""
    ) -> None:
        """Draw a cell of a heat map; ``share`` says how much of the colour it has."""
        place = {"x": x, "y": y, "width": width, "height": height, "fill-opacity": share}
        self._add("rect", "heat", place, title)

    def mark(self, x: float, y: float, shape: str, kind: str, title: str = "") -> None:
        """Draw a marker: the shape is named as in matplotlib."""
        if shape == "o":
            self._add("circle", kind, {"cx": x, "cy": y, "r": 4}, title)
            return
        corners, turn, size = _SHAPES.get(shape, (4, 45.0, 5.0))
        angles = [math.radians(turn + 360 * corner / corners) for corner in range(corners)]
        steps = [(x + size * math.sin(a), y - size * math.cos(a)) for a in angles]
        points = " ".join(f"{_number(px)},{_number(py)}" for px, py in steps)
        self._parts.append(f'<polygon class="{kind}" points="{points}">{_title(title)}</polygon>')

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """Write a text whose middle line is at y."""
        self._parts.append(
            f'<text class="{kind}" x="{_number(x)}" y="{_number(y)}" dy=".35em" '
            f'text-anchor="{anchor}">{escape(text)}</text>'
        )

    def group(self, kind: str) -> None:
        """Open a group; it belongs to a class as a whole."""
        self._parts.append(f'<g class="{kind}">')

    def end(self) -> None:
        """Close the group."""
        self._parts.append("</g>")

    def _add(self, tag: str, kind: str, place: dict[str, float], title: str = "") -> None:
        attributes = " ".join(f'{name}="{_number(value)}"' for name, value in place.items())
        self._parts.append(f'<{tag} class="{kind}" {attributes}>{_title(title)}</{tag}>')


# corners, turn in degrees and radius
_SHAPES = {
    "s": (4, 45.0, 5.2),
    "D": (4, 0.0, 5.4),
    "^": (3, 0.0, 5.6),
    "v": (3, 180.0, 5.6),
    "<": (3, 270.0, 5.6),
    ">": (3, 90.0, 5.6),
    "p": (5, 0.0, 5.0),
    "h": (6, 0.0, 4.8),
}


def ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Return round numbers between two bounds.

    >>> ticks(0, 70)
    [0, 20, 40, 60]
    """
    span = high - low
    if span <= 0:
        return [low]
    step = 10 ** math.floor(math.log10(span / most))
    step = next(step * factor for factor in (1, 2, 5, 10) if span / (step * factor) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def _number(value: float) -> str:
    """Write a coordinate with two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"
