"""``gcdbench results pack``, and what ``verify`` and ``merge`` do with packs."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gcdbench.cli.arguments import counted, say
from gcdbench.errors import UserError

log = logging.getLogger("gcdbench")


def add_pack(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the action."""
    packing = actions.add_parser("pack", help="write records and predictions into one zip file")
    packing.add_argument("folder", nargs="?", type=Path, default=Path("results/runs"))
    packing.add_argument("--out", type=Path, default=Path("pack.zip"), metavar="FILE.zip")
    packing.add_argument("--methods", nargs="+", default=(), metavar="METHOD", help="some of them")
    packing.add_argument("--datasets", nargs="+", default=(), metavar="NAME", help="some of them")


def pack(arguments: argparse.Namespace) -> int:
    """Pack the records of a results folder."""
    from gcdbench.sharing import packs

    if not arguments.folder.is_dir():
        raise UserError(f"results pack: no folder {arguments.folder}")
    chosen = {"methods": arguments.methods, "datasets": arguments.datasets}
    packed = packs.pack(arguments.folder, arguments.out, **chosen)
    for path, reason in packed.refused:
        log.warning("not packed: %s %s", path, reason)
    say(f"{arguments.out}: {counted(len(packed.cells), 'record')}")
    return 0


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[tuple[Path, list[tuple[Path, str]]]]:
    """Give the records of a pack as a folder, and those files that its list contradicts.

    A folder is given as it is.
    """
    from gcdbench.sharing import packs

    if not path.is_file():
        yield path, []
        return
    with packs.opened(path) as (folder, manifest):
        _describe(path, manifest)
        wrong = packs.contradictions(folder, manifest)
        yield folder, [(path / place.relative_to(folder), reason) for place, reason in wrong]


@contextlib.contextmanager
def all_unpacked(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Give folders, and the records of packs as folders; a pack with a wrong list is refused."""
    with contextlib.ExitStack() as stack:
        folders = []
        for path in paths:
            folder, wrong = stack.enter_context(unpacked(path))
            for place, reason in wrong:
                raise UserError(f"{place} {reason}")
            folders.append(folder)
        yield folders


def _describe(path: Path, manifest: Mapping[str, Any]) -> None:
    """Log what a pack was made with; its text is anybody's."""
    from gcdbench.sharing.packs import code_here

    environment = manifest.get("environment")
    system = environment.get("platform") if isinstance(environment, dict) else None
    log.info("%s: made by gcdbench %.40r on %.100r", path, manifest.get("gcdbench"), system)
    for title, said in code_here(manifest).items():
        log.info("%.80r: %s", title, said)
