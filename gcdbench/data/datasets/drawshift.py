"""Drawings of 65 objects in four styles: line, solid and colour icons and hand-drawn sketches.

The embedded suite: a miniature DomainNet that ships with the package. Licences and authors of the
drawings are in gcdbench/data/drawshift/ATTRIBUTION.csv.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

from gcdbench.core.paths import PACKAGE
from gcdbench.data.class_splits import class_order
from gcdbench.data.datasets._assemble import Labelled, check_domains, domain_problem
from gcdbench.data.images import ZipImages
from gcdbench.data.problem import Dataset, Problem
from gcdbench.data.splits import class_ids

FOLDER = PACKAGE / "data" / "drawshift"
DOMAINS = ("line", "solid", "color", "quickdraw")


class Drawshift(Dataset):
    """See the module."""

    title: ClassVar[str] = "drawshift"
    homepage: ClassVar[str] = "ships with gcdbench"
    disk: ClassVar[str] = "11 MB"

    @dataclass(frozen=True)
    class Config:
        source: Literal["line", "solid", "color", "quickdraw"] = "line"  # the domain with labels
        shifted: tuple[str, ...] = ("solid",)  # the unlabelled domains that are trained on
        class_split: Literal[0, 1, 2, 3, 4] = 0  # which classes are old; 0: those of drawshift
        protocol: Literal["gcd", "cross-domain", "domain-generalisation"] = "gcd"  # protocols.py
        unseen: Literal["trained", "own"] = "trained"  # their clusters: of training, or k-means
        labelled_share: float = 0.5  # of the pooled source images of old classes, as in GCD
        shifted_share: float = 1.0  # of each class for training; all images are evaluated
        validation: float = 0.0  # share of each class's labelled images held out
        augment: Literal["plain", "jitter"] = "plain"  # crop and flip

    def problem(self, name: str) -> Problem:
        """Read the archive's index and split it; no image is opened."""
        check_domains(name, self.config.source, self.config.shifted, dict.fromkeys(DOMAINS))
        split = class_split()
        classes, note = ordered_classes(self.config.class_split)
        return domain_problem(
            name,
            self.config,
            {domain: drawings(domain, classes) for domain in DOMAINS},
            classes=classes,
            num_old=len(split["old"]),
            notes={"split": f"drawshift {split['version']}{note}"},
        )


def class_split() -> dict[str, Any]:
    """Return old and new classes, excluded drawings, and the version of the split."""
    return json.loads((FOLDER / "split.json").read_text(encoding="utf-8"))


def ordered_classes(number: int) -> tuple[list[str], str]:
    """Return the classes of a class split, old ones first, and what a record notes about it."""
    split = class_split()
    classes = [*split["old"], *split["new"]]
    order, note = class_order("drawshift", number, len(split["old"]), range(len(classes)))
    return [classes[place] for place in order], note


def drawings(domain: str, classes: Sequence[str] = ()) -> Labelled:
    """Return the drawings of a domain, in the order of the archive's index."""
    excluded = set(class_split()["excluded"])
    rows = [r for r in _index() if r["domain"] == domain and r["path"] not in excluded]
    labels = class_ids([row["class"] for row in rows], classes or ordered_classes(0)[0])
    return Labelled(ZipImages(FOLDER / "drawshift.zip", [row["path"] for row in rows]), labels)


@cache
def _index() -> list[dict[str, str]]:
    with zipfile.ZipFile(FOLDER / "drawshift.zip") as archive:
        text = archive.read("index.csv").decode("utf-8")
    return list(csv.DictReader(io.StringIO(text)))
