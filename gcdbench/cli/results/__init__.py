"""The verb results: merge, verify, rescore and share results folders."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from gcdbench.cli.arguments import counted, say
from gcdbench.cli.results import packs, weights
from gcdbench.errors import UserError

SHOWN = 3  # scores of a record that are named if they differ
log = logging.getLogger("gcdbench")


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``results``."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    merging = actions.add_parser("merge", help="copy the records of other folders into one")
    merging.add_argument("sources", nargs="+", type=Path, metavar="DIR|PACK.zip")
    merging.add_argument("--into", type=Path, default=Path("results/runs"), metavar="DIR")
    verifying = actions.add_parser("verify", help="check every record and its predictions")
    verifying.add_argument(
        "folder", nargs="?", type=Path, default=Path("results/runs"), metavar="DIR|PACK.zip"
    )
    verifying.add_argument("--data-root", type=Path, metavar="DIR", help="where the datasets are")
    scoring = actions.add_parser("rescore", help="compute scores again from stored predictions")
    scoring.add_argument("folder", nargs="?", type=Path, default=Path("results/runs"))
    scoring.add_argument("--check", action="store_true", help="write nothing; 1 if a score differs")
    scoring.add_argument("--data-root", type=Path, metavar="DIR", help="where the datasets are")
    packs.add_pack(actions)
    weights.add_weights(actions)
    for one in actions.choices.values():
        text = "add a plug-in file"
        one.add_argument(
            "--plugin", action="append", default=argparse.SUPPRESS, metavar="FILE", help=text
        )


def results(arguments: argparse.Namespace) -> int:
    """Merge, verify, rescore or share results folders."""
    others = {
        "rescore": _rescore,
        "pack": packs.pack,
        "export-weights": weights.export_weights,
        "import-weights": weights.import_weights,
    }
    if arguments.action in others:
        return others[arguments.action](arguments)

    if arguments.action == "verify":
        refused = _verify(arguments)
    else:
        from gcdbench.runner.merge import merge

        with packs.all_unpacked(arguments.sources) as folders:
            merged = merge(folders, arguments.into)
        refused = merged.refused
        for folder in merged.differing:
            log.warning("%s: two records with one key and different numbers; both are kept", folder)
        counts = len(merged.copied), len(merged.same), len(merged.differing), len(refused)
        say("{} copied, {} already there, {} kept as previous-<n>, {} refused".format(*counts))
    for path, reason in refused:
        log.error("%s %s", path, reason)
    return 1 if refused else 0


def _verify(arguments: argparse.Namespace) -> list[tuple[Path, str]]:
    """Compute the scores of all records again and say what each is worth; return the wrong ones."""
    from gcdbench.runner.merge import valid_records
    from gcdbench.training.scoring.rescore import judge

    if not arguments.folder.exists():
        raise UserError(f"results verify: no folder or pack {arguments.folder}")
    counts = {"recomputed": 0, "consistent": 0}
    words = {"recomputed": "recomputed", "consistent": "only internally consistent"}
    with packs.unpacked(arguments.folder) as (folder, refused):
        for path, record in valid_records(folder, refused):
            verdict = judge(path, record, arguments.data_root)
            place = path.parent.relative_to(folder).as_posix()
            if verdict.kind == "wrong":
                refused.append((path, verdict.reason))
                continue
            counts[verdict.kind] += 1
            why = f" ({verdict.reason})" if verdict.reason else ""
            say(f"{place}: {words[verdict.kind]}{why}")
        refused = [(_below(path, folder, arguments.folder), why) for path, why in refused]
    valid = sum(counts.values())
    say(
        f"{counted(valid, 'valid record')} ({counts['recomputed']} recomputed, "
        f"{counts['consistent']} only internally consistent), {len(refused)} invalid"
    )
    return refused


def _below(path: Path, folder: Path, shown: Path) -> Path:
    """Return a path below a folder as a path below the folder or pack that the user named."""
    return shown / path.relative_to(folder) if path.is_relative_to(folder) else path


def _rescore(arguments: argparse.Namespace) -> int:
    """Score the predictions of all records again, print counts and name what differs."""
    from gcdbench.training.scoring.rescore import rescore

    if not arguments.folder.is_dir():
        raise UserError(f"results rescore: no folder {arguments.folder}")
    unchanged = rescored = different = 0
    impossible: dict[str, list[Path]] = {}
    for one in rescore(arguments.folder, root=arguments.data_root, write=not arguments.check):
        unchanged += one.kind == "unchanged"
        rescored += one.kind == "rescored"
        different += bool(one.differences)
        if one.kind == "impossible":
            impossible.setdefault(one.reason, []).append(one.path)
        if one.differences:
            shown = ", ".join(one.differences[:SHOWN]) + ", ..." * (len(one.differences) > SHOWN)
            log.warning("%s: %s", one.path, shown)
    done = "would be rescored" if arguments.check else "rescored"
    say(
        f"{unchanged} unchanged, {rescored} {done} ({different} with other scores), "
        f"{sum(map(len, impossible.values()))} cannot be rescored"
    )
    for reason, paths in impossible.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        log.warning("cannot be rescored: %s%s: %s", paths[0], more, reason)
    return 1 if arguments.check and different else 0
