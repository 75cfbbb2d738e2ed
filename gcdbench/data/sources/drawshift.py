"""Drawings of 65 objects in four styles: line, solid and colour icons and hand-drawn sketches.

The embedded suite: a miniature DomainNet that ships with the package. Licences and authors of the
drawings are in gcdbench/data/drawshift/ATTRIBUTION.csv.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from gcdbench.data.images import ZipImages
from gcdbench.data.problem import EvalSet, Problem, Role, Source
from gcdbench.data.splits import class_ids, labelled_half
from gcdbench.errors import UserError
from gcdbench.layout import PACKAGE

FOLDER = PACKAGE / "data" / "drawshift"
DOMAINS = ("line", "solid", "color", "quickdraw")


class Drawshift(Source):
    """See the module."""

    homepage: ClassVar[str] = "ships with gcdbench"

    @dataclass(frozen=True)
    class Config:
        source: Literal["line", "solid", "color", "quickdraw"] = "line"  # the domain with labels
        shifted: tuple[str, ...] = ("solid",)  # the unlabelled domains that are trained on
        labelled_share: float = 0.5  # of the pooled source images of old classes, as in GCD

    def problem(self, name: str) -> Problem:
        """Read the archive's index and split it; no image is opened."""
        config = self.config
        for domain in config.shifted:
            if domain not in DOMAINS or domain == config.source:
                others = ", ".join(d for d in DOMAINS if d != config.source)
                raise UserError(f"dataset {name}: shifted domain {domain!r} is none of {others}")
        split = json.loads((FOLDER / "split.json").read_text(encoding="utf-8"))
        excluded = set(split["excluded"])
        rows = [row for row in _index() if row["path"] not in excluded]
        classes = (*split["old"], *split["new"])
        labels = class_ids([row["class"] for row in rows], classes)
        domain_of = np.array([row["domain"] for row in rows])
        in_source = np.flatnonzero(domain_of == config.source)
        half = labelled_half(labels[in_source], len(split["old"]), config.labelled_share)
        shifted = np.flatnonzero(np.isin(domain_of, config.shifted))
        sets = {config.source: EvalSet(in_source[~half], "source")}
        for domain in sorted(set(DOMAINS) - {config.source}, key=DOMAINS.index):
            role: Role = "shifted" if domain in config.shifted else "unseen"
            sets[domain] = EvalSet(np.flatnonzero(domain_of == domain), role)
        return Problem(
            name=name,
            classes=classes,
            num_old=len(split["old"]),
            images=ZipImages(FOLDER / "drawshift.zip", [row["path"] for row in rows]),
            labels=labels,
            labelled=in_source[half],
            unlabelled=np.concatenate([in_source[~half], shifted]),
            sets=sets,
            notes={"split": f"drawshift {split['version']}"},
        )


def _index() -> list[dict[str, str]]:
    with zipfile.ZipFile(FOLDER / "drawshift.zip") as archive:
        text = archive.read("index.csv").decode("utf-8")
    return list(csv.DictReader(io.StringIO(text)))
