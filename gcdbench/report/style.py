"""One colour, marker and hatch per method, the same in all plots and on the page.

Colours are Okabe and Ito's, which are distinguishable with any kind of colour vision; markers and
hatches distinguish methods in print without colours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gcdbench.core import registry
from gcdbench.report import paper_numbers, titles

# on a white and on a dark page: in the order of the paper's rows, then for other methods
_PALETTE = (
    ("#56B4E9", "#7CC7F2"),
    ("#E69F00", "#F0B429"),
    ("#CC79A7", "#E096C0"),
    ("#009E73", "#2FBF93"),
    ("#0072B2", "#4393D6"),
    ("#7F7F7F", "#A6A6A6"),
    ("#D55E00", "#F0772B"),
    ("#B5A300", "#D6C62E"),
    ("#6A51A3", "#9E86D6"),
    ("#7A4B2A", "#B98660"),
    ("#44AA99", "#6CCBBB"),
    ("#882255", "#C7568C"),
)
MARKERS = "osD^vPX<>*ph"
_HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")
_DASHES: tuple[Literal["solid", "dashed", "dotted", "dashdot"], ...] = (
    "solid",
    "dashed",
    "dotted",
    "dashdot",
)
_DARKER = 0.4
_TINTS = (0.0, 0.45, -0.35, 0.65, -0.55)  # towards white (+) or black (-), for variants of a method


@dataclass(frozen=True)
class Look:
    """Colours, marker, hatch and line style of a method."""

    colour: str
    dark: str  # on a dark page
    marker: str
    hatch: str
    dashes: Literal["solid", "dashed", "dotted", "dashdot"]


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Return the look of each method; variants are tints of their base.

    The methods of the paper come first, then the project's others, so that their looks do not
    depend on what else is drawn. After the last colour all begin again darker, with other markers.
    """
    ordered = titles.in_order(methods)
    known = [*paper_numbers.order()]
    known += [name for name in registry.bundled_names("method") if name not in known]
    others = [base for base in dict.fromkeys(map(titles.base, ordered)) if base not in known]
    found, variants = {}, dict.fromkeys(map(titles.base, ordered), 0)
    for spec in ordered:
        base = titles.base(spec)
        number = known.index(base) if base in known else len(known) + others.index(base)
        variant, again = variants[base], number // len(_PALETTE)
        variants[base] += 1
        light, dark = (_tinted(one, -_DARKER * again) for one in _PALETTE[number % len(_PALETTE)])
        tint = _TINTS[variant % len(_TINTS)]
        found[spec] = Look(
            colour=_tinted(light, tint),
            dark=_tinted(dark, tint / 2),
            marker=MARKERS[(number + 3 * variant + 5 * again) % len(MARKERS)],
            hatch=_HATCHES[(variant + again) % len(_HATCHES)],
            dashes=_DASHES[(variant + again) % len(_DASHES)],
        )
    return found


def _tinted(colour: str, amount: float) -> str:
    goal = 255 if amount > 0 else 0
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    mixed = [round(part + abs(amount) * (goal - part)) for part in parts]
    return "#" + "".join(f"{part:02X}" for part in mixed)
