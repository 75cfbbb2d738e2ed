"""``gcdbench data make-ssb-c``: the 45 variants of the test images of SSB, as JPEG files.

A file is a pure function of its clean image, corruption and severity, and is written atomically, so
interrupted and repeated runs end with the same tree.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gcdbench import __version__
from gcdbench.cli.data._common import in_parallel, say
from gcdbench.data.corrupted import Recipe
from gcdbench.data.corruptions import CORRUPTIONS, jpeg_bytes
from gcdbench.data.datasets import make_dataset
from gcdbench.data.datasets._ssb import MANIFEST, Manifest, read_manifest, settings_of
from gcdbench.data.images import Images, Unreadable
from gcdbench.data.pixel_store import pixel_code_hash
from gcdbench.errors import UserError

log = logging.getLogger(__name__)
_job: Job  # of this process


@dataclass(frozen=True)
class Job:
    """What a worker process needs."""

    clean: Images
    stored: list[str]
    recipe: Recipe
    quality: int
    folder: Path

    def todo(self, row: int) -> list[tuple[str, int, Path]]:
        """Return the variants of an image that are not there yet."""
        paths = (
            (corruption, severity, self.folder / corruption / str(severity) / self.stored[row])
            for corruption, severity in self.recipe.variants
        )
        return [one for one in paths if not _is_whole(one[2])]


def run(arguments: argparse.Namespace) -> int:
    """Make the trees of some datasets; return 1 if some images could not be read."""
    recipe = Recipe(
        corruptions=tuple(arguments.corruptions) or CORRUPTIONS,
        severities=tuple(arguments.severities),
        size=arguments.size,
        frost=arguments.frost,
    )
    failures: dict[str, str] = {}
    for plugin in arguments.datasets:
        dataset: Any = make_dataset(plugin, arguments.data_root)
        listing = dataset.listing()
        folder = (arguments.out or dataset.root / "SSB-C") / listing.tree
        job = Job(listing.test.images, listing.stored, recipe, arguments.quality, folder)
        try:
            failed = make(job, workers=arguments.workers)
        except OSError as error:
            raise UserError(
                f"{folder}: cannot be written ({error.strerror or error}); run the same command "
                "again when it can, or choose another folder with --out"
            ) from error
        say(f"{folder}: {len(job.stored):,} images, {len(recipe.variants)} variants each")
        failures |= failed
    for place, reason in sorted(failures.items()):
        say(f"unreadable: {place} ({reason})")
    return 1 if failures else 0


def make(job: Job, *, workers: int | None = None) -> dict[str, str]:
    """Write the missing files; return the clean images that could not be read, with reasons."""
    job.folder.mkdir(parents=True, exist_ok=True)
    _sign(job, done=False)
    rows = [row for row in range(len(job.stored)) if job.todo(row)]
    if len(rows) < len(job.stored):
        log.info("%s: %d images are complete already", job.folder, len(job.stored) - len(rows))
    failures: dict[str, str] = {}
    answers = in_parallel(_write, rows, workers=workers, prepare=_prepare, given=(job,))
    label = job.folder.name
    with tqdm(total=len(rows), desc=label, unit="image", disable=None, leave=False) as bar:
        for failed in answers:
            failures |= failed
            bar.update()
    if not failures:
        _sign(job, done=True)
    return failures


def _sign(job: Job, *, done: bool) -> None:
    """Write the manifest; raise a UserError if the tree was begun with other settings."""
    before, asked = read_manifest(job.folder), {f"{name}/{n}" for name, n in job.recipe.variants}
    if before is None and any(not path.name.startswith(".") for path in job.folder.iterdir()):
        raise UserError(
            f"{job.folder} holds files of unknown making, which are not added to: remove it, or "
            "choose another folder with --out"
        )
    # with all corruptions: a tree may be made in several runs, some corruptions at a time
    whole = replace(job.recipe, corruptions=CORRUPTIONS, jpeg_quality=job.quality)
    if before is not None and (before.made, before.code) != (whole.describe(), pixel_code_hash()):
        raise UserError(
            f"{job.folder} was begun in another way ({before.made}, gcdbench {before.gcdbench}): "
            "remove it, or choose another folder with --out"
        )
    finished = set(before.finished if before is not None else ()) - asked
    manifest = Manifest(
        made=whole.describe(),
        settings=settings_of(whole),
        code=pixel_code_hash(),
        gcdbench=__version__,
        finished=sorted(finished | asked if done else finished),
    )
    text = json.dumps(asdict(manifest), indent=1) + "\n"
    _write_whole(job.folder / MANIFEST, text.encode())


def _prepare(job: Job) -> None:
    global _job
    _job = job


def _write(row: int) -> dict[str, str]:
    """Write the missing variants of one image; return it, with the reason, if it is unreadable."""
    try:
        for corruption, severity, path in _job.todo(row):
            pixels = _job.recipe.apply(_job.clean, row, corruption, severity)
            _write_whole(path, jpeg_bytes(pixels, _job.quality))
    except Unreadable as error:
        return {error.place: error.reason}
    return {}


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file under a temporary name first, so that a truncated file is never used."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _is_whole(path: Path) -> bool:
    """Return whether a file exists and is not empty: a crash can leave an empty file."""
    return path.exists() and path.stat().st_size > 0
