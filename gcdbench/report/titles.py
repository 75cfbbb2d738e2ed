"""How reports name and order methods, datasets and evaluation sets."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gcdbench.core import registry
from gcdbench.errors import UserError
from gcdbench.report import paper_numbers


def method_title(spec: str) -> str:
    """Name a method as its paper does, with what is laid over it.

    >>> method_title("hilo-patchmix")
    'HiLo − PatchMix'
    """
    method, *changes = re.split(r"(?=[+-])", spec)
    title = paper_numbers.title(method) or _class_name("method", method)
    for change in changes:
        sign = "+" if change[0] == "+" else "−"
        title += f" {sign} {_class_name('technique', change[1:])}"
    return title


def dataset_title(dataset: str) -> str:
    """Name a dataset: as the paper if it has it, otherwise as the suite."""
    return (paper_numbers.dataset_title(dataset) or dataset).replace("+", " + ")


def set_title(name: str) -> str:
    """Name an evaluation set: ``gaussian_noise`` is Gaussian noise."""
    return name[:1].upper() + name[1:].replace("_", " ")


def in_order(specs: Iterable[str]) -> list[str]:
    """Order methods as the paper's rows, others behind them by name; variants follow their base."""
    rows = {name: number for number, name in enumerate(paper_numbers.order())}

    def key(spec: str) -> tuple[int, str, str]:
        method = base(spec)
        return rows.get(method, len(rows)), method, spec

    return sorted(set(specs), key=key)


def base(spec: str) -> str:
    """Return the method of a spec, without techniques."""
    return re.split("[+-]", spec, maxsplit=1)[0]


def _class_name(kind: str, name: str) -> str:
    """Return the name of the plug-in's class, or the plain name if the plug-in is not here."""
    try:
        return registry.get(kind, name).class_name
    except UserError:
        return name
