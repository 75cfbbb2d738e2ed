"""A split of another code base: a CSV or JSON file with path, class and role of every image."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from gcdbench.data.datasets._assemble import complete
from gcdbench.data.images import FileImages
from gcdbench.data.lists import check_once, missing_files
from gcdbench.data.problem import CHANGES, Dataset, EvalSet, Problem, Role
from gcdbench.data.split_files import SplitRow, class_names, read_split
from gcdbench.data.splits import class_ids
from gcdbench.errors import UserError


class Listed(Dataset):
    """See the module."""

    title: ClassVar[str] = "a split from a file"
    layout: ClassVar[str] = (
        "a CSV or JSON file with path, class and role (gcdbench data export-split)"
    )

    @dataclass(frozen=True)
    class Config:
        file: str  # the split, below the data root or absolute
        path: str = ""  # folder of the images, below the data root or absolute; "": the data root
        augment: Literal["plain", "jitter"] = "plain"  # crop and flip
        flip: bool = True  # whether a mirrored image is of the same class: not so with digits

    def problem(self, name: str) -> Problem:
        """Read the file; no image is opened."""
        root = self.root or Path()
        file = root / Path(self.config.file).expanduser()
        rows = read_split(file)
        folder = root / Path(self.config.path).expanduser()
        paths = [row.path for row in rows]
        check_once(paths, str(file))
        images = FileImages(folder, [row.id or f"listed/{row.path}" for row in rows], paths)
        missing = missing_files(images)
        if missing:
            raise UserError(
                f"{file}: {len(missing):,} of {len(rows):,} images are not in {folder}, the first "
                f"is {paths[missing[0]]} (name their folder with --images, or path in a suite)"
            )
        for role in ("labelled", "unlabelled"):
            if not any(role in row.roles for row in rows):
                raise UserError(f"{file}: no image has the role {role}; training needs both")
        classes, num_old = class_names(rows, file)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
        return complete(
            name=name,
            classes=tuple(classes),
            num_old=num_old,
            images=images,
            labels=class_ids([row.name for row in rows], classes),
            labelled=_rows(rows, "labelled"),
            unlabelled=_rows(rows, "unlabelled"),
            sets=_sets(rows),
            augment=self.config.augment,
            changes=CHANGES if self.config.flip else CHANGES - {"flip"},
            notes={"split": f"listed {file.name} ({digest})"},
        )


def _rows(rows: Sequence[SplitRow], role: str) -> np.ndarray:
    return np.array([i for i, row in enumerate(rows) if role in row.roles], dtype=np.int64)


def _sets(rows: Sequence[SplitRow]) -> dict[str, EvalSet]:
    """Return the evaluation sets: as named, by domain, or one of all scored images.

    Without any scored image, the unlabelled ones are scored.
    """
    scored = "scored" if any("scored" in row.roles for row in rows) else "unlabelled"
    members: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        if scored in row.roles:
            for name in row.sets or ("all",):
                members.setdefault(name, []).append(i)
    sets = {}
    for name, inside in members.items():
        title, _, said = name.partition("=")
        role: Role = said or _role(title, inside, rows)  # type: ignore[assignment]  # read_split
        sets[title] = EvalSet(np.array(inside, dtype=np.int64), role)
    return sets


def _role(name: str, inside: list[int], rows: Sequence[SplitRow]) -> Role:
    """Return the role of a set: of the labelled domain, trained on, or unseen."""
    if name == "all" or any("labelled" in r.roles and name in r.sets for r in rows):
        return "source"
    return "shifted" if any("unlabelled" in rows[i].roles for i in inside) else "unseen"
