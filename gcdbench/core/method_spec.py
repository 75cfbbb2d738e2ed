"""A method with techniques applied to it, as the command line and suites write it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gcdbench.core import registry
from gcdbench.core.names import check_name
from gcdbench.errors import UserError


@dataclass(frozen=True)
class MethodSpec:
    """A method with techniques applied to it: ``simgcd+mcc+nwd``, ``hilo+mixup-patchmix``."""

    method: str
    techniques: tuple[str, ...]
    text: str  # canonical: only what differs from the method's own techniques

    @classmethod
    def parse(cls, text: str) -> MethodSpec:
        """Return the spec that a text such as ``hilo-patchmix`` describes; check all its names."""
        match = re.fullmatch(r"([^+-]+)((?:[+-][^+-]+)*)", text.strip())
        if match is None:
            raise UserError(f"method {text!r}: write a name, then +technique or -technique")
        own = registry.get("method", match[1]).constants.get("techniques", ())
        used = list(own)
        for sign, name in re.findall(r"([+-])([^+-]+)", match[2]):
            registry.get("technique", name)
            if sign == "+" and name in used:
                raise UserError(f"method {text!r}: {name} is already part of it")
            if sign == "-" and name not in used:
                raise UserError(f"method {text!r}: {name} is not part of {match[1]}")
            used.append(name) if sign == "+" else used.remove(name)
        _check_techniques(match[1], used)
        changes = [f"+{t}" for t in used if t not in own] + [f"-{t}" for t in own if t not in used]
        name = check_name(match[1] + "".join(changes), "--methods")
        return cls(match[1], tuple(used), name)


# What every method provides to techniques: the backbone's tokens and attention, and logits (a
# method without a classifier is given one).
_ALWAYS_PROVIDED = frozenset({"attention", "logits", "tokens"})


_SMALLER = frozenset({"small"})  # kinds of views with fewer pixels than the others (data/views)


def check_views(spec: MethodSpec, kinds: Iterable[str]) -> None:
    """Raise a UserError if a technique blends patches and the views are of several sizes."""
    if len({kind in _SMALLER for kind in kinds}) < 2:
        return
    for name in spec.techniques:
        if "attention" in registry.get("technique", name).constants.get("requires", ()):
            raise UserError(
                f"{name} cannot be applied to {spec.method} with the views {', '.join(kinds)}: it "
                "blends patches of views of one size"
            )


def _check_techniques(method: str, techniques: Iterable[str]) -> None:
    """Raise a UserError if a technique requires something that the method does not provide."""
    provided = _ALWAYS_PROVIDED | set(registry.get("method", method).constants.get("provides", ()))
    for name in techniques:
        required = set(registry.get("technique", name).constants.get("requires", ()))
        if missing := sorted(required - provided):
            what = " and ".join(missing)
            raise UserError(f"{name} cannot be applied to {method}: it needs a {what}")
