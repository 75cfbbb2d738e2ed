"""Protocols: which images of a source domain and of its targets are trained on, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gcdbench.errors import unknown

Name = Literal["gcd", "cross-domain", "domain-generalisation"]


@dataclass(frozen=True)
class Protocol:
    """Who sees what."""

    all_old_labelled: bool  # else a share of them, drawn as in GCD
    source_unlabelled: bool  # whether the other source images are trained on and scored
    targets_trained: bool  # else the targets are unseen in training
    about: str


PROTOCOLS: dict[str, Protocol] = {
    "gcd": Protocol(
        all_old_labelled=False,
        source_unlabelled=True,
        targets_trained=True,
        about="half of the old classes' source images are labelled, all others unlabelled",
    ),
    "cross-domain": Protocol(  # as in CDAD-Net
        all_old_labelled=True,
        source_unlabelled=False,
        targets_trained=True,
        about="all source images of old classes are labelled, the targets unlabelled",
    ),
    "domain-generalisation": Protocol(
        all_old_labelled=False,
        source_unlabelled=True,
        targets_trained=False,
        about="the source as in gcd; the targets are unseen in training",
    ),
}
assert set(PROTOCOLS) == set(get_args(Name))


def protocol(name: str) -> Protocol:
    """Return a protocol by its name."""
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
