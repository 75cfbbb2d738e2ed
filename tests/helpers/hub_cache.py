"""A cache of the hub on disk, with the folders and links that ``huggingface_hub`` makes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def put_into_cache(cache: Path, repository: str, name: str, content: bytes) -> Path:
    """Write a file of a repository as a download would leave it, and return the place of it."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    digest = hashlib.sha256(content).hexdigest()
    commit = hashlib.sha1(content).hexdigest()
    blob, link = folder / "blobs" / digest, folder / "snapshots" / commit / name
    for path in (blob, link, folder / "refs" / "main"):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs" / "main").write_text(commit)
    return link


def put_folder_into_cache(cache: Path, repository: str, source: Path) -> None:
    """Write all files of a folder as a download of the repository would leave them."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    commit = hashlib.sha1(repository.encode()).hexdigest()
    for path in sorted(source.iterdir()):
        link = put_into_cache(cache, repository, path.name, path.read_bytes())
        place = folder / "snapshots" / commit / path.name
        place.parent.mkdir(exist_ok=True)
        link.rename(place)
        link.parent.rmdir()
    (folder / "refs" / "main").write_text(commit)
