"""Your own data: images in ``<domain>/<class>/<image>``, described by a suite's YAML alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from gcdbench.data.datasets._assemble import Labelled, check_num_old, domain_problem
from gcdbench.data.folders import image_files
from gcdbench.data.images import FileImages, Images
from gcdbench.data.problem import Dataset, Problem
from gcdbench.data.splits import class_ids
from gcdbench.errors import UserError


class Folder(Dataset):
    """See the module."""

    title: ClassVar[str] = "a folder of your own"
    layout: ClassVar[str] = "<path>/<domain>/<class>/<image>"

    @dataclass(frozen=True)
    class Config:
        path: str  # folder with one folder per domain, below the data root or absolute
        source: str  # the domain with labels
        shifted: tuple[str, ...] = ()  # trained on without labels; all other domains are unseen
        old: tuple[str, ...] = ()  # the classes with labels, by name
        num_old: int = 0  # or their number, in the order of the names; half of them if neither
        labelled_share: float = 0.5  # of the pooled source images of old classes, GCD
        shifted_share: float = 1.0  # of each class for training; all images are evaluated
        validation: float = 0.0  # share of each class's labelled images held out
        augment: Literal["plain", "jitter"] = "plain"  # released codes, all but DomainNet

        def __post_init__(self) -> None:
            if self.old and self.num_old:
                raise ValueError("give the old classes by name (old) or their number (num_old)")

    def problem(self, name: str) -> Problem:
        """List the images; none is opened."""
        listed, images = self._listed()[1], self.parts()
        names = sorted({path.split("/")[1] for paths in listed.values() for path in paths})
        old = self._old(name, names)
        classes = [*old, *(c for c in names if c not in old)]
        domains = {
            domain: Labelled(images[domain], class_ids([p.split("/")[1] for p in paths], classes))
            for domain, paths in listed.items()
        }
        return domain_problem(
            name,
            self.config,
            domains,
            classes=classes,
            num_old=len(old),
            notes={"split": f"{len(old)} of {len(classes)} classes are old"},
        )

    def parts(self) -> dict[str, Images]:
        """Return the domains."""
        folder, listed = self._listed()
        return {
            domain: FileImages(folder, [f"{self.config.path}/{path}" for path in paths], paths)
            for domain, paths in listed.items()
        }

    def remarks(self) -> list[str]:
        """Say which images belong to no class."""
        folder = self._folder()
        stray = [path for path in image_files(folder) if path.count("/") < 2]
        if not stray:
            return []
        return [f"{folder}: {len(stray)} images not in <domain>/<class>/, the first is {stray[0]}"]

    def _folder(self) -> Path:
        folder = (self.root or Path()) / Path(self.config.path).expanduser()
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; it should hold <domain>/<class>/<image>")
        return folder

    def _listed(self) -> tuple[Path, dict[str, list[str]]]:
        folder = self._folder()
        listed: dict[str, list[str]] = {}
        for path in image_files(folder):
            if path.count("/") >= 2:
                listed.setdefault(path.partition("/")[0], []).append(path)
        if not listed:
            raise UserError(f"{folder}: no image is at <domain>/<class>/<image> below it")
        return folder, listed

    def _old(self, name: str, names: list[str]) -> list[str]:
        config = self.config
        if not config.old:
            number = config.num_old or len(names) // 2
            check_num_old(name, number, len(names))
            return names[:number]
        strange = [c for c in config.old if c not in names]
        if strange:
            raise UserError(f"dataset {name}: no domain has the old class {strange[0]!r}")
        return list(dict.fromkeys(config.old))
