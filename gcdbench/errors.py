"""The exception for a wrong request; its message says where the mistake is and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A request that cannot be carried out as it stands; the command line exits with code 2."""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> UserError:
    """Return the error for an unknown name, with the nearest known name and a list of all.

    >>> str(unknown("method", "simgdc", ["gcd", "simgcd"]))
    "unknown method 'simgdc'; did you mean 'simgcd'? Known: gcd, simgcd"
    """
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" did you mean {near[0]!r}?" if near else ""
    place = f" in {where}" if where else ""
    return UserError(
        f"unknown {kind} {name!r}{place};{hint} Known: {', '.join(known) or 'none'}".replace(
            "; Known", "; known"
        )
    )
