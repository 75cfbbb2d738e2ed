"""Your own data: images in ``<domain>/<class>/<image>``, described by a suite's YAML alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from gcdbench.data.class_splits import class_order
from gcdbench.data.datasets._assemble import Labelled, check_num_old, domain_problem
from gcdbench.data.folders import class_images, empty_folders, image_files, subfolders
from gcdbench.data.images import FileImages, Images
from gcdbench.data.problem import CHANGES, Dataset, Problem
from gcdbench.data.splits import class_file, class_ids
from gcdbench.errors import UserError, unknown


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
        classes: str = ""  # or a list of the project: pacs, office_home, terra_incognita, vlcs
        class_split: Literal[0, 1, 2, 3, 4] = 0  # which classes are old; 0: as said above
        protocol: Literal["gcd", "cross-domain", "domain-generalisation"] = "gcd"  # protocols.py
        unseen: Literal["trained", "own"] = "trained"  # their clusters: of training, or k-means
        labelled_share: float = 0.5  # of the pooled source images of old classes, GCD
        shifted_share: float = 1.0  # of each class for training; all images are evaluated
        validation: float = 0.0  # share of each class's labelled images held out
        augment: Literal["plain", "jitter"] = "plain"  # released codes, all but DomainNet
        flip: bool = True  # whether a mirrored image is of the same class: not so with digits

        def __post_init__(self) -> None:
            if self.old and self.num_old:
                raise ValueError("give the old classes by name (old) or their number (num_old)")
            if self.classes and (self.old or self.num_old):
                raise ValueError("a list of the project (classes) says which classes are old")

    def problem(self, name: str) -> Problem:
        """List the images; none is opened."""
        listed, images = self._listed()[1], self.parts()
        found = sorted({path.split("/")[1] for paths in listed.values() for path in paths})
        names, num_old, known = self._classes(name, found)
        benchmark = self.config.classes or "folder"
        numbers = range(len(names))
        order, note = class_order(benchmark, self.config.class_split, num_old, numbers)
        classes = [names[number] for number in order]
        domains = {
            domain: Labelled(images[domain], class_ids([p.split("/")[1] for p in paths], classes))
            for domain, paths in listed.items()
        }
        built = domain_problem(
            name,
            self.config,
            domains,
            classes=classes,
            num_old=num_old,
            notes={"split": f"{known}{num_old} of {len(classes)} classes are old{note}"},
        )
        return built if self.config.flip else replace(built, changes=CHANGES - {"flip"})

    def parts(self) -> dict[str, Images]:
        """Return the domains."""
        folder, listed = self._listed()
        on_disk = self._domains(folder)
        return {
            domain: FileImages(
                folder,
                [f"{self.config.path}/{path}" for path in paths],
                [f"{on_disk[domain]}/{path.partition('/')[2]}" for path in paths],
            )
            for domain, paths in listed.items()
        }

    def remarks(self) -> list[str]:
        """Return sentences about classes without images and images without a class."""
        folder = self._folder()
        empty = empty_folders(folder)
        found = [f"{folder / domain}: no image of this domain" for domain in empty]
        found += [
            f"{folder / domain / name}: no image of this class"
            for domain in subfolders(folder)
            for name in empty_folders(folder / domain)
            if domain not in empty
        ]
        stray = [path for path in image_files(folder) if path.count("/") < 2]
        if stray:
            found.append(
                f"{folder}: {len(stray)} images not in <domain>/<class>/, the first is {stray[0]}"
            )
        return found

    def _folder(self) -> Path:
        """Return the folder of the domains: under another spelling, or one folder further down."""
        given = Path(self.config.path).expanduser()
        folder = (self.root or Path()) / given
        if not folder.is_dir() and self.root is not None and self.root.is_dir():
            folder = self._alike() or folder
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; it should hold <domain>/<class>/<image>")
        source = _bare(self.config.source)
        if source not in map(_bare, subfolders(folder)):
            for inner in subfolders(folder):
                if source in map(_bare, subfolders(folder / inner)) and self._nested(folder, inner):
                    return folder / inner
        return folder

    def _alike(self) -> Path | None:
        """Return the folder under another spelling, or an archive's longer name for it."""
        assert self.root is not None
        names, wanted = subfolders(self.root), _bare(self.config.path)
        same = [name for name in names if _bare(name) == wanted]
        longer = [n for n in names if _bare(n).startswith(wanted) and self._nested(self.root, n)]
        found = same or (longer if len(longer) == 1 else [])
        return self.root / found[0] if found else None

    def _nested(self, folder: Path, inner: str) -> bool:
        """Tell whether the domains are one folder further down, and not the classes."""
        wanted = {_bare(name) for name in (self.config.source, *self.config.shifted)}
        return len(wanted) > 1 and wanted <= set(map(_bare, subfolders(folder / inner)))

    def _domains(self, folder: Path) -> dict[str, str]:
        """Return the folder of each domain, under the name that the settings have for it."""
        given = {_bare(name): name for name in (self.config.source, *self.config.shifted)}
        there = subfolders(folder)
        named = {n: n if n in given.values() else given.get(_bare(n), n) for n in there}
        taken = [name for name in there if named[name] == name]
        return {new if new == old or new not in taken else old: old for old, new in named.items()}

    def _listed(self) -> tuple[Path, dict[str, list[str]]]:
        """Return the folder, and the images by domain with the names of the settings."""
        folder = self._folder()
        listed: dict[str, list[str]] = {}
        for domain, inside in self._domains(folder).items():
            paths = [f"{domain}/{path}" for path in class_images(folder / inside)]
            if paths:
                listed[domain] = paths
        if not listed:
            raise UserError(f"{folder}: no image is at <domain>/<class>/<image> below it")
        return folder, listed

    def _classes(self, name: str, found: list[str]) -> tuple[list[str], int, str]:
        """Return the classes, old ones first, the number of old ones, and what to note."""
        config = self.config
        if config.classes:
            lists = class_file("domains")
            known = [key for key, value in lists.items() if isinstance(value, dict)]
            if config.classes not in known:
                raise unknown("list of classes", config.classes, known)
            names = lists[config.classes]["classes"]
            strange = [c for c in found if c not in names]
            if strange:
                raise UserError(
                    f"dataset {name}: {strange[0]!r} is no class of {config.classes}, which has "
                    f"{', '.join(names)}"
                )
            return names, lists[config.classes]["num_old"], f"domains {lists['version']}, "
        old = self._old(name, found)
        return [*old, *(c for c in found if c not in old)], len(old), ""

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


def _bare(name: str) -> str:
    """Return a name without what spellings differ in: 'Real World' is also 'real_world'."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
