"""Which classes are old: five fixed choices for every dataset, the published one first.

The choice of old classes changes rankings. Papers that draw it from a folder's listing have another
one on every file system, so the choices 1 to 4 are lists of the project with a version.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from gcdbench.data.splits import class_file
from gcdbench.errors import UserError

NUMBERS = (0, 1, 2, 3, 4)


def class_order(
    benchmark: str, split: int, num_old: int, published: Sequence[int]
) -> tuple[list[int], str]:
    """Return the classes by number, ``num_old`` old ones first, and what a record notes about it.

    ``published`` is the order of split 0; of the others, old and new classes are each in the order
    of their numbers. A benchmark without a list of the project is drawn from the split's number.
    """
    if split not in NUMBERS:
        raise UserError(f"class_split {split}: there are 0, 1, 2, 3 and 4")
    if split == 0:
        return list(published), ""
    lists = class_file("class_splits")
    drawn = lists.get(benchmark, [[]] * 4)[split - 1] or _drawn(split, len(published))
    if len(drawn) != len(published):
        raise UserError(
            f"class_split {split} of {benchmark} is for {len(drawn)} classes, not {len(published)}"
        )
    order = [*sorted(drawn[:num_old]), *sorted(drawn[num_old:])]
    return order, f", class split {split} ({lists['version']})"


@cache
def _drawn(split: int, number: int) -> list[int]:
    return np.random.RandomState(split).permutation(number).tolist()
