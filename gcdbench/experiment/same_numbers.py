"""Changes of code that makes numbers which leave every number as it is, to the last bit.

The key reads the lines ``now`` as the lines ``before``, so records from before the change stay
valid. Unless no cell with records runs the changed lines, an entry needs a comparison: train cells
with the code before and after, and compare them with ``benchmarks/compare_records.py``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SameNumbers:
    """One change."""

    module: str  # below gcdbench/
    before: str
    now: str  # once in the module, without comments and docstrings
    shown: str  # why no number changes, or which cells were compared


CHANGES: tuple[SameNumbers, ...] = (
    SameNumbers(
        "nn/transformer.py",
        before='getattr(rope, "bands", True) is None:',
        now='getattr(rope, "pos_embed", None) is not None:',
        shown="Up to timm 1.0.30 both hold for the same positions; only Eva models have any.",
    ),
)


def as_before(module: str, text: str) -> str:
    """Return the text of a module as it was before the declared changes."""
    for change in CHANGES:
        if change.module == module:
            text = text.replace(change.now, change.before)
    return text
