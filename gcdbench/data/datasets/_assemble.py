"""Build a problem from lists of images: what datasets of one kind have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gcdbench.data.images import Images, JoinedImages
from gcdbench.data.problem import EvalSet, Problem, Role
from gcdbench.data.protocols import PROTOCOLS, Protocol, protocol
from gcdbench.data.splits import hold_out, labelled_half, per_class_sample
from gcdbench.errors import UserError

# remedies for an empty set
_REMEDIES: dict[Role, str] = {
    "source": "lower labelled_share or the number of old classes",
    "shifted": "raise shifted_share, or look for the images",
    "unseen": "look for its images",
    "validation": "raise validation, or set it to 0",
}


@dataclass(frozen=True)
class Labelled:
    """Images with their classes."""

    images: Images
    labels: np.ndarray  # (n,), old classes first

    def __len__(self) -> int:
        return len(self.labels)


def corrupted_problem(
    name: str,
    config: Any,
    *,
    classes: Sequence[str],
    num_old: int,
    train: Labelled,
    shifted: Labelled | None,
    variants: list[tuple[str, int]],
    notes: dict[str, str],
) -> Problem:
    """Return a problem of clean training images and the corrupted variants of other images.

    The images of ``shifted`` are those of the first variant, then those of the second, and so on;
    without them there is no shift, and only the unlabelled training images are scored.
    """
    check_settings(name, config, num_old=num_old, num_classes=len(classes))
    labelled, unlabelled, held_out = _split(train.labels, num_old, config)
    sets = {"original": EvalSet(unlabelled, "source"), **held_out}
    images, labels = train.images, train.labels
    if shifted is not None:
        images = JoinedImages(train.images, shifted.images)
        labels = np.concatenate([train.labels, shifted.labels])
        unlabelled = np.concatenate([unlabelled, np.arange(len(train), len(labels))])
        sets |= _variant_sets(variants, len(shifted) // len(variants), first=len(train))
    return complete(
        name=name,
        classes=tuple(classes),
        num_old=num_old,
        images=images,
        labels=labels,
        labelled=labelled,
        unlabelled=unlabelled,
        sets=sets,
        augment=config.augment,
        notes=notes,
    )


def domain_problem(
    name: str,
    config: Any,
    domains: Mapping[str, Labelled],
    *,
    classes: Sequence[str],
    num_old: int,
    notes: dict[str, str],
) -> Problem:
    """Return a problem of several domains: one with labels, some trained on, the others unseen.

    A share of each class of a shifted domain is trained on; all of its images are scored. What is
    labelled, and whether shifted domains are trained on, is said by the protocol.
    """
    rule = protocol(config.protocol)
    check_domains(name, config.source, config.shifted, domains)
    check_settings(name, config, num_old=num_old, num_classes=len(classes))
    if config.validation and "validation" in domains:
        raise UserError(f"dataset {name}: 'validation' is a domain; rename it, or hold nothing out")
    first, starts = 0, {}
    for domain, members in domains.items():
        starts[domain], first = first, first + len(members)
    source = starts[config.source]
    split = _split(domains[config.source].labels, num_old, config, rule)
    labelled, unlabelled = source + split[0], source + split[1]
    sets = {config.source: EvalSet(unlabelled, "source")} if rule.source_unlabelled else {}
    sets |= {k: EvalSet(source + held.rows, held.role) for k, held in split[2].items()}
    trained = [unlabelled]
    for domain in (*config.shifted, *(d for d in domains if d not in config.shifted)):
        if domain == config.source:
            continue
        is_trained = domain in config.shifted and rule.targets_trained
        role: Role = "shifted" if is_trained else "unseen"
        start, members = starts[domain], domains[domain]
        sets[domain] = EvalSet(np.arange(start, start + len(members)), role)
        if role == "shifted":
            trained.append(start + _sample(members.labels, config.shifted_share))
            if len(members) and not len(trained[-1]):
                raise UserError(
                    f"dataset {name}: shifted_share {config.shifted_share} leaves no image of "
                    f"{domain} to train on; raise it"
                )
    if config.protocol != "gcd":
        notes = {**notes, "protocol": config.protocol}
    if config.unseen == "own":
        notes = {**notes, "unseen": "clustered on its own"}
    return complete(
        name=name,
        classes=tuple(classes),
        num_old=num_old,
        images=JoinedImages(*(members.images for members in domains.values())),
        labels=np.concatenate([members.labels for members in domains.values()]),
        labelled=labelled,
        unlabelled=np.concatenate(trained),
        sets=sets,
        augment=config.augment,
        notes=notes,
        cluster_unseen=config.unseen == "own",
    )


def check_domains(name: str, source: str, shifted: Sequence[str], known: Mapping) -> None:
    """Raise a UserError for domains that are unknown, repeated, or both source and shifted."""
    if source not in known:
        raise UserError(f"dataset {name}: source {source!r} is none of {_listed(known)}")
    for number, domain in enumerate(shifted):
        if domain not in known or domain == source:
            others = _listed(d for d in known if d != source)
            raise UserError(f"dataset {name}: shifted domain {domain!r} is none of {others}")
        if domain in shifted[:number]:
            raise UserError(f"dataset {name}: shifted domain {domain!r} is named twice")


def _listed(names: Iterable[str]) -> str:
    """Join names for a message; no sentence ends in an empty list."""
    return ", ".join(names) or "the domains: there is no other one"


def check_num_old(name: str, num_old: int, num_classes: int) -> None:
    """Raise a UserError if the number of old classes is out of range."""
    if not 1 <= num_old <= num_classes:
        raise UserError(
            f"dataset {name}: num_old is {num_old}, of {num_classes} classes; set it to a number "
            f"from 1 to {num_classes}"
        )


def check_settings(name: str, config: Any, *, num_old: int, num_classes: int) -> None:
    """Raise a UserError if a number of classes or the held-out share is out of range."""
    check_num_old(name, num_old, num_classes)
    if not 0 <= config.validation < 1:
        raise UserError(
            f"dataset {name}: validation is {config.validation}; it is at least 0 and below 1"
        )


def complete(**parts: Any) -> Problem:
    """Make a problem, and refuse one that has nothing to train on or to score."""
    problem = Problem(**parts)
    if not problem.sets or not len(problem.unlabelled):
        raise UserError(
            f"dataset {problem.name}: no image is unlabelled: name shifted domains, or set "
            "protocol: gcd"
        )
    if not len(problem.labelled):
        raise UserError(
            f"dataset {problem.name}: no image has a label: its source has too few images of the "
            f"{problem.num_old} old classes (choose others, or raise labelled_share)"
        )
    for key, one in problem.sets.items():
        if not len(one.rows):
            raise UserError(
                f"dataset {problem.name}: the {one.role} set {key!r} has no images "
                f"({_REMEDIES[one.role]})"
            )
    return problem


def _split(
    labels: np.ndarray, num_old: int, config: Any, rule: Protocol = PROTOCOLS["gcd"]
) -> tuple[np.ndarray, np.ndarray, dict[str, EvalSet]]:
    """Return labelled and unlabelled rows of the source, and the validation set if one is asked."""
    share = 1.0 if rule.all_old_labelled else config.labelled_share
    half = labelled_half(labels, num_old, share)
    labelled, unlabelled = np.flatnonzero(half), np.flatnonzero(~half)
    if not rule.source_unlabelled:
        unlabelled = unlabelled[:0]
    if not config.validation:
        return labelled, unlabelled, {}
    labelled, held_out = hold_out(labelled, labels, config.validation)
    return labelled, unlabelled, {"validation": EvalSet(held_out, "validation")}


def _sample(labels: np.ndarray, share: float) -> np.ndarray:
    return np.arange(len(labels)) if share == 1 else per_class_sample(labels, share)


def _variant_sets(variants: list[tuple[str, int]], count: int, first: int) -> dict[str, EvalSet]:
    """Return one evaluation set of ``count`` images per variant; they begin at row ``first``."""
    return {
        f"{corruption}/{severity}": EvalSet(
            np.arange(first + number * count, first + (number + 1) * count), "shifted"
        )
        for number, (corruption, severity) in enumerate(variants)
    }
