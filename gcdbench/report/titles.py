"""Names and order of methods, datasets and evaluation sets in reports."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gcdbench.core import registry
from gcdbench.errors import UserError
from gcdbench.report import paper_numbers


def method_title(spec: str) -> str:
    """Return the name of a method as in its paper, with its techniques.

    >>> method_title("hilo-patchmix")
    'HiLo − PatchMix'
    """
    method, *changes = re.split(r"(?=[+-])", spec)
    title = paper_numbers.title(method) or _own_title("method", method)
    for change in changes:
        sign = "+" if change[0] == "+" else "−"
        title += f" {sign} {_own_title('technique', change[1:])}"
    return title


def dataset_title(dataset: str) -> str:
    """Return the name of a dataset in the paper, or in the suite if the paper does not use it."""
    return (paper_numbers.dataset_title(dataset) or dataset).replace("+", " + ")


def set_title(name: str) -> str:
    """Return the name of an evaluation set: ``gaussian_noise`` is Gaussian noise."""
    return name[:1].upper() + name[1:].replace("_", " ")


def in_order(specs: Iterable[str]) -> list[str]:
    """Return methods in the order of the paper's rows, then others by name; variants after base."""
    rows = {name: number for number, name in enumerate(paper_numbers.order())}

    def key(spec: str) -> tuple[int, str, str]:
        method = base(spec)
        return rows.get(method, len(rows)), method, spec

    return sorted(set(specs), key=key)


def base(spec: str) -> str:
    """Return the method of a spec, without techniques."""
    return re.split("[+-]", spec, maxsplit=1)[0]


def _own_title(kind: str, name: str) -> str:
    """Return what a plug-in calls itself: before the colon of its docstring, or its class's name.

    It is the plain name if the plug-in is not installed.
    """
    try:
        info = registry.get(kind, name)
    except UserError:
        return name
    title = info.summary.partition(":")[0]
    return title if re.sub(r"\W", "", title).lower() == name else info.class_name
