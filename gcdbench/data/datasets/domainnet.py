"""DomainNet, cleaned version: 345 classes in six domains (Peng et al., ICCV 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

from gcdbench.data.class_splits import class_order
from gcdbench.data.datasets._assemble import Labelled, check_domains, domain_problem
from gcdbench.data.folders import image_files, subfolders
from gcdbench.data.images import FileImages, Images
from gcdbench.data.lists import check_once, text_lines
from gcdbench.data.problem import Dataset, Problem, log
from gcdbench.data.splits import class_file, class_ids
from gcdbench.errors import UserError

DOMAINS = ("real", "painting", "quickdraw", "sketch", "clipart", "infograph")


class DomainNet(Dataset):
    """See the module."""

    title: ClassVar[str] = "DomainNet (cleaned)"
    homepage: ClassVar[str] = "https://ai.bu.edu/M3SDA/"
    disk: ClassVar[str] = "18 GB"
    folders: ClassVar[tuple[str, ...]] = ("domainnet", "DomainNet", "domain_net")
    layout: ClassVar[str] = """\
<domain>/<class>/<image>, six domains: real painting quickdraw sketch clipart infograph
<domain>_train.txt and <domain>_test.txt, the official lists, here or in txt/; they say which
images count (without them: 'listing: folders' takes all images of the folders)"""
    archives: ClassVar[tuple[tuple[str, str], ...]] = (
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/real.zip", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/groundtruth/painting.zip", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/quickdraw.zip", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/sketch.zip", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/groundtruth/clipart.zip", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/infograph.zip", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/domainnet/txt/real_train.txt", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/domainnet/txt/real_test.txt", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/domainnet/txt/painting_train.txt", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/domainnet/txt/painting_test.txt", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/domainnet/txt/quickdraw_train.txt", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/domainnet/txt/quickdraw_test.txt", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/domainnet/txt/sketch_train.txt", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/domainnet/txt/sketch_test.txt", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/domainnet/txt/clipart_train.txt", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/domainnet/txt/clipart_test.txt", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/domainnet/txt/infograph_train.txt", ""),
        ("http://csr.bu.edu/ftp/visda/2019/multi-source/domainnet/txt/infograph_test.txt", ""),
    )
    unpack: ClassVar[str] = "domainnet"
    expected: ClassVar[dict[str, int]] = {
        "real": 172947,
        "painting": 72266,
        "quickdraw": 172500,
        "sketch": 69128,
        "clipart": 48129,
        "infograph": 51605,
    }

    @dataclass(frozen=True)
    class Config:
        source: Literal["real", "painting", "quickdraw", "sketch", "clipart", "infograph"] = "real"
        shifted: tuple[str, ...] = ("painting",)  # trained on without labels; the others are unseen
        num_old: int = 173  # released code; the paper says 172
        class_order: Literal["folders", "official"] = "folders"  # released: sorted folder names
        class_split: Literal[0, 1, 2, 3, 4] = 0  # which classes are old; 0: the first num_old
        protocol: Literal["gcd", "cross-domain", "domain-generalisation"] = "gcd"  # protocols.py
        unseen: Literal["trained", "own"] = "trained"  # their clusters: of training, or k-means
        labelled_share: float = 0.5  # of the pooled source images of old classes, GCD
        shifted_share: float = 0.3  # of each class for training, released; all are evaluated
        validation: float = 0.0  # share of each class's labelled images held out
        listing: Literal["lists", "folders"] = "lists"  # released code: all images of the folders
        augment: Literal["plain", "jitter"] = "jitter"  # released code for DomainNet

        def __post_init__(self) -> None:
            if not 1 <= self.num_old <= 345:
                raise ValueError(f"num_old must be between 1 and 345, got {self.num_old}")

    def problem(self, name: str) -> Problem:
        """List the images of all domains; none is opened."""
        config = self.config
        check_domains(name, config.source, config.shifted, dict.fromkeys(DOMAINS))
        lists = class_file("domainnet")
        classes = lists[config.class_order]
        numbers = range(len(classes))
        order, note = class_order("domainnet", config.class_split, config.num_old, numbers)
        classes = [classes[number] for number in order]
        listed = self._listed()
        self.compare(**{domain: len(paths) for domain, paths in listed.items()})
        images = self.parts()
        domains = {
            domain: Labelled(images[domain], class_ids([p.split("/")[1] for p in paths], classes))
            for domain, paths in listed.items()
        }
        return domain_problem(
            name,
            config,
            domains,
            classes=classes,
            num_old=config.num_old,
            notes={"split": f"domainnet {lists['version']}{note}"},
        )

    def published_size(self) -> int:
        """Return all photographs and the share of the other domains."""
        shifted = sum(self.expected[domain] for domain in self.config.shifted)
        return self.expected[self.config.source] + round(self.config.shifted_share * shifted)

    def parts(self) -> dict[str, Images]:
        """Return the domains."""
        folder = self.locate(*DOMAINS)
        return {
            domain: FileImages(folder, [f"domainnet/{path}" for path in paths], paths)
            for domain, paths in self._listed().items()
        }

    def remarks(self) -> list[str]:
        """Return a sentence for each folder that belongs to no class."""
        folder = self.locate(*DOMAINS)
        return [
            f"{folder / domain / name}: no class of DomainNet has this name"
            for domain in DOMAINS
            for name in _strange(folder / domain)
        ]

    def _listed(self) -> dict[str, list[str]]:
        folder = self.locate(*DOMAINS)
        for domain in DOMAINS:
            if not set(subfolders(folder / domain)) & set(class_file("domainnet")["folders"]):
                raise UserError(_nothing(folder / domain))
        if self.config.listing == "lists":
            lists = self._lists(folder)
            return {domain: _from_lists(lists, domain) for domain in DOMAINS}
        listed = {domain: _from_folders(folder, domain) for domain in DOMAINS}
        for domain in DOMAINS:
            if not listed[domain]:
                raise UserError(_nothing(folder / domain))
        return listed

    def _lists(self, folder: Path) -> Path:
        """Return the folder of the official lists."""
        names = [f"{domain}_{part}.txt" for domain in DOMAINS for part in ("train", "test")]
        missing = names
        for place in (folder, *(folder / name for name in ("txt", "splits", "image_list"))):
            gone = [name for name in names if not (place / name).is_file()]
            missing = gone if len(gone) < len(missing) else missing
            if not gone:
                return place
        raise UserError(
            f"{self.title}: {folder} lacks the official list {missing[0]} (gcdbench data download "
            "domainnet fetches the lists; 'listing: folders' takes all images of the folders)"
        )


def _nothing(folder: Path) -> str:
    """Return the message for a domain without images, with the probable reason."""
    strange = _strange(folder)
    hint = f"; {strange[0]!r} is no class of DomainNet" if strange else ""
    return f"{folder}: no image is at <class>/<image> below it{hint} (unpack it again)"


def _strange(folder: Path) -> list[str]:
    """Return the folders of a domain whose names are not classes."""
    try:
        found = set(subfolders(folder))
    except OSError as error:
        raise UserError(f"{folder}: cannot be read as a folder ({error.strerror})") from error
    return sorted(found - set(class_file("domainnet")["folders"]))


@cache
def _from_folders(folder: Path, domain: str) -> list[str]:
    """Return a domain's images class by class; a class without a folder has none."""
    return [
        f"{domain}/{name}/{path}"
        for name in class_file("domainnet")["folders"]
        for path in image_files(folder / domain / name)
    ]


@cache
def _from_lists(folder: Path, domain: str) -> list[str]:
    """Return the images of a domain's two official lists, in the order of its folders."""
    number = {name: i for i, name in enumerate(class_file("domainnet")["official"])}
    paths = []
    for part in ("train", "test"):
        path = folder / f"{domain}_{part}.txt"
        lines, other = text_lines(path), []
        if not any(lines):
            raise UserError(f"{path}: no image is listed there; fetch it again")
        for row, line in enumerate(lines, start=1):
            if not line:
                continue
            image, _, label = line.strip().rpartition(" ")
            steps = image.split("/")
            if len(steps) != 3 or steps[0] != domain or steps[1] not in number:
                raise UserError(f"{path}, line {row}: not an image of a known class: {line!r}")
            if label != str(number[steps[1]]):
                other.append(f"line {row} {label!r} instead of {number[steps[1]]}")
            paths.append(image)
        if other:
            log.warning(
                "%s: %d lines have other class numbers than the official list, the first is %s; "
                "the folder's name says the class",
                *(path, len(other), other[0]),
            )
    check_once(paths, f"{folder / domain}_train.txt and {domain}_test.txt")
    rank = {name: i for i, name in enumerate(class_file("domainnet")["folders"])}
    return sorted(paths, key=lambda image: (rank[image.split("/")[1]], image))
