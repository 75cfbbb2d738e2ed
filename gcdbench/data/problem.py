"""A problem: which images there are, which are labelled, and which sets are scored.

Nothing here imports torch: plans and reports read problems too.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from gcdbench.data.folders import subfolders
from gcdbench.data.images import Images
from gcdbench.errors import UserError
from gcdbench.ops.labels import UNLABELLED

# unseen: no image of that domain is trained on; validation: labelled images kept out of training
Role = Literal["source", "shifted", "unseen", "validation"]
Augment = Literal["plain", "jitter"]  # crop and flip; jitter adds colour and grey, as on DomainNet
Change = Literal["flip", "colour"]
CHANGES: frozenset[Change] = frozenset({"flip", "colour"})
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvalSet:
    """Images that are scored together, with one assignment of clusters to classes."""

    rows: np.ndarray
    role: Role


@dataclass(frozen=True)
class Problem:
    """One dataset of a suite, ready to be trained and scored on."""

    name: str
    classes: tuple[str, ...]  # old ones first
    num_old: int
    images: Images
    labels: np.ndarray  # (n,) of all images; those of unlabelled ones are for the evaluator only
    labelled: np.ndarray  # rows that are trained on with their labels
    unlabelled: np.ndarray  # rows that are trained on without labels
    sets: dict[str, EvalSet]
    augment: Augment = "plain"  # what a plain view is
    changes: frozenset[Change] = CHANGES  # that leave an image in its class: no flip for digits
    notes: dict[str, str] = field(default_factory=dict)  # facts that a record should name
    cluster_unseen: bool = False  # unseen sets have clusters of their own; said in the notes, too

    @property
    def num_classes(self) -> int:
        """Number of old and new classes."""
        return len(self.classes)

    @property
    def pool(self) -> np.ndarray:
        """Rows of the training images: labelled ones first."""
        return np.concatenate([self.labelled, self.unlabelled])

    @property
    def visible_labels(self) -> np.ndarray:
        """Labels of the training pool, UNLABELLED where they are hidden."""
        hidden = np.full(len(self.unlabelled), UNLABELLED, dtype=np.int64)
        return np.concatenate([self.labels[self.labelled], hidden])

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that defines the problem but the pixels."""
        digest = hashlib.sha256()
        facts: list[Any] = [self.classes, self.num_old, self.augment, self.notes]
        if self.changes != CHANGES:
            facts.append(sorted(self.changes))
        digest.update(json.dumps(facts).encode())
        digest.update("\n".join(self.images.ids).encode())
        for rows in (self.labels, self.labelled, self.unlabelled):
            digest.update(np.ascontiguousarray(rows, dtype="<i8").tobytes())
        for name, evaluated in sorted(self.sets.items()):
            digest.update(f"{name}/{evaluated.role}".encode())
            digest.update(np.ascontiguousarray(evaluated.rows, dtype="<i8").tobytes())
        return digest.hexdigest()

    def limited(self, number: int) -> Problem:
        """Return a smaller problem: at most ``number`` images in each part and evaluation set."""
        rng = np.random.RandomState(0)

        def few(rows: np.ndarray) -> np.ndarray:
            return np.sort(rng.permutation(rows)[:number])

        sets = {name: replace(s, rows=few(s.rows)) for name, s in self.sets.items()}
        trained = [s.rows[np.isin(s.rows, self.unlabelled)] for s in sets.values()]
        return replace(
            self,
            labelled=few(self.labelled),
            unlabelled=np.unique(np.concatenate(trained)),
            sets=sets,
            notes={**self.notes, "limited to": str(number)},
        )

    def without(self, names: Iterable[str], note: str) -> Problem:
        """Return the problem without some images; the split is not drawn again.

        Images are named by their ids, or without an id's first word, which is the dataset: so are
        those of DomainBed's list for DomainNet.
        """
        gone = set(names)
        ids = map(clean_id, self.images.ids)
        kept = np.array([not {name, name.partition("/")[2]} & gone for name in ids], dtype=bool)
        if gone and kept.all():
            raise UserError(
                f"dataset {self.name}: no image of the exclusion list ({note}) is there"
            )
        sets = {n: replace(s, rows=s.rows[kept[s.rows]]) for n, s in self.sets.items()}
        left = replace(
            self,
            labelled=self.labelled[kept[self.labelled]],
            unlabelled=self.unlabelled[kept[self.unlabelled]],
            sets={name: one for name, one in sets.items() if len(one.rows)},
            notes={**self.notes, "excluded": note},
        )
        if not (len(left.labelled) and len(left.unlabelled) and left.sets):
            raise UserError(f"dataset {self.name}: the exclusion list ({note}) leaves nothing")
        return left


def clean_id(name: str) -> str:
    """Return the id of the clean image of a corrupted one, and any other id as it is.

    >>> clean_id("fog/3/cub/001/a.jpg@1f2e"), clean_id("photo/dog/1.jpg")
    ('cub/001/a.jpg', 'photo/dog/1.jpg')
    """
    body, at, _ = name.rpartition("@")
    return body.split("/", 2)[2] if at and body.count("/") >= 2 else name


def read_exclusions(path: Path) -> tuple[list[str], str]:
    """Read a list of ids, one a line, and what a record notes about it; # begins a comment."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"exclude: {path} cannot be read as a list ({error})") from error
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    digest = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:8]
    return names, f"{len(names)} images of {path.name} ({digest})"


class Dataset(ABC):
    """Base class of datasets: builds a problem from a dataset's settings and a data root.

    Each file in gcdbench/data/datasets/ defines one; the nested Config says what a suite may set.
    The attributes that describe a dataset on disk are literals: ``gcdbench data info`` reads them
    without importing the file.
    """

    title: ClassVar[str] = ""  # the dataset's name in its paper
    homepage: ClassVar[str] = ""
    disk: ClassVar[str] = ""  # how much space it takes
    folders: ClassVar[tuple[str, ...]] = ()  # below the data root, the usual name first
    layout: ClassVar[str] = ""  # what must be in the folder, one path a line
    archives: ClassVar[tuple[tuple[str, str], ...]] = ()  # (address, "md5:..." or "")
    unpack: ClassVar[str] = ""  # folder below the data root into which archives are unpacked
    expected: ClassVar[dict[str, int]] = {}  # number of images in each part of the real dataset

    @dataclass(frozen=True)
    class Config:
        """Settings of a dataset."""

    def __init__(self, config: Any, root: Path | None) -> None:
        self.config = config
        given = root or os.environ.get("GCDBENCH_DATA")
        self.root = Path(given).expanduser() if given else None

    @property
    def plugin(self) -> str:
        """Name of the plug-in in suites and on the command line."""
        return type(self).__module__.rpartition(".")[2].removeprefix("gcdbench_plugin_")

    @abstractmethod
    def problem(self, name: str) -> Problem:
        """Build the problem; raise a UserError that says what is missing and where to put it."""

    def published_size(self) -> int | None:
        """Return how many images are trained on, or None if only the data on disk can tell."""
        return None

    def parts(self) -> dict[str, Images]:
        """Return the images on disk by part, for ``gcdbench data verify``."""
        return {"images": self.problem("verify").images}

    def checksums(self) -> dict[Path, str]:
        """Return the published checksums of the archives that were kept on disk."""
        if self.root is None:
            return {}
        names = {address.rpartition("/")[2]: checksum for address, checksum in self.archives}
        found = ((self.root / "downloads" / name, checksum) for name, checksum in names.items())
        return {path: checksum for path, checksum in found if checksum and path.is_file()}

    def locate(self, *needed: str) -> Path:
        """Return the dataset's folder: the first candidate that holds everything in ``needed``."""
        help_ = f"'gcdbench data info {self.plugin}' says where to get it"
        if self.root is None:
            raise UserError(
                f"{self.title} is needed on disk: name the folder that holds {self.folders[0]}/ "
                f"with --data-root or GCDBENCH_DATA ({help_})"
            )
        near = None
        for folder in self._candidates():
            missing = [name for name in needed if not (folder / name).exists()]
            if not missing:
                return folder
            if len(missing) < len(needed):
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                near = near or f"{folder} lacks {missing[0]}{more}"
        expected = self.root / self.folders[0] / needed[0]
        found = near or f"expected {expected}, {_listing(self.root)}"
        raise UserError(f"{self.title} is not there: {found} ({help_})")

    def _candidates(self) -> Iterator[Path]:
        """Yield the folders where the dataset may be: the usual ones, then one folder down."""
        assert self.root is not None
        usual = [*(self.root / name for name in self.folders), self.root]
        yield from usual
        for folder in usual:
            inner = subfolders(folder) if folder.is_dir() else []
            yield from (folder / name for name in inner)
        if self.root.is_dir():
            for name in subfolders(self.root):
                yield from (self.root / name / usual_name for usual_name in self.folders)

    def compare(self, **found: int) -> None:
        """Log a warning if a part does not have as many images as the published dataset."""
        for part, number in found.items():
            if number != self.expected.get(part, number):
                log.warning(
                    "%s: %d images in %s instead of %d ('gcdbench data verify %s' says more)",
                    *(self.title, number, part, self.expected[part], self.plugin),
                )


def _listing(folder: Path) -> str:
    """Return a description of a folder's content, for messages about missing files."""
    if not folder.is_dir():
        return f"but {folder} is {'no folder' if folder.exists() else 'not there'}"
    names = sorted(path.name for path in folder.iterdir())
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"found {shown} in {folder}" if names else f"{folder} is empty"
