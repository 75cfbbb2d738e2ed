"""How reports name and order methods, datasets and evaluation sets."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gcdbench import registry
from gcdbench.errors import UserError
from gcdbench.report import published


def method_title(spelling: str) -> str:
    """Name a method as its paper does, with what is laid over it.

    >>> method_title("hilo-patchmix")
    'HiLo − PatchMix'
    """
    method, *changes = re.split(r"(?=[+-])", spelling)
    title = published.title(method) or _class_name("method", method)
    for change in changes:
        sign = "+" if change[0] == "+" else "−"
        title += f" {sign} {_class_name('technique', change[1:])}"
    return title


def dataset_title(dataset: str) -> str:
    """Name a dataset: as the paper if it has it, otherwise as the suite."""
    return (published.dataset_title(dataset) or dataset).replace("+", " + ")


def set_title(name: str) -> str:
    """Name an evaluation set: ``gaussian_noise`` is Gaussian noise."""
    return name[:1].upper() + name[1:].replace("_", " ")


def in_order(spellings: Iterable[str]) -> list[str]:
    """Order methods as the paper's rows, others behind them by name; variants follow their base."""
    rows = {name: number for number, name in enumerate(published.order())}

    def key(spelling: str) -> tuple[int, str, str]:
        method = base(spelling)
        return rows.get(method, len(rows)), method, spelling

    return sorted(set(spellings), key=key)


def base(spelling: str) -> str:
    """Return the method of a spelling, without techniques."""
    return re.split("[+-]", spelling, maxsplit=1)[0]


def _class_name(kind: str, name: str) -> str:
    """Return the name of the plug-in's class, or the plain name if the plug-in is not here."""
    try:
        return registry.face(kind, name).class_name
    except UserError:
        return name
