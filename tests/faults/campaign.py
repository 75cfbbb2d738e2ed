"""Injects faults and attacks into real runs, one after the other, and prints a table.

    python tests/faults/campaign.py [--only WORD] [--out FILE]

Every case gets a results folder with a finished record in it. It survives if it ends as its
function says: after a fault, the next run finishes the cell with the numbers of an undisturbed run;
an attack is refused. In addition the finished record must be there byte for byte, nothing outside
of the results folder may have changed, and no code of the attacker may have run.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from helpers.faults import ended, fork
from helpers.toy import Toy, make_toy

from gcdbench.core import registry
from gcdbench.experiment import records
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import Record
from gcdbench.runner import cell as cell_module


@dataclass(frozen=True)
class Case:
    """Something that goes wrong, or that somebody does; the function raises if it does harm."""

    kind: str  # fault or attack
    group: str
    name: str
    inject: Callable[[Place], None]


class Place:
    """Where a case happens: a toy suite, a results folder, and a folder that must stay as it is."""

    def __init__(self, made: Toy, folder: Path, expected: Record) -> None:
        self.folder, self.expected = folder, expected
        self.toy = Toy(made.suite, folder / "results")
        self.outside = folder / "outside"
        self.outside.mkdir(parents=True)
        (self.outside / "precious").write_text("precious")
        self.executed = folder / "executed"  # the trap of an attacker leaves it behind
        self.cell: Cell = made.cell()
        self.bystander: Cell = made.cell("gcd")

    @property
    def cell_folder(self) -> Path:
        return records.cell_folder(self.toy.results, self.cell)

    def run(self, arrange: Callable[[], object] = lambda: None, **options: Any) -> int:
        """Run the cell in a process of its own, after some arrangement; return how it ended."""

        def run() -> None:
            silence()
            arrange()
            self.toy.run([self.cell], **options)

        return ended(fork(run))

    def call(self, function: Callable[[], object]) -> int:
        """Call a function in a process of its own; 0 if it does not raise."""

        def call() -> None:
            silence()
            function()

        return ended(fork(call))

    def check_finished(self) -> None:
        """Finish the cell and compare its numbers with those of an undisturbed run."""
        assert self.run() == 0
        found = records.read_done(self.toy.results, self.cell)
        assert isinstance(found, Record), found
        assert records.same_numbers(found, self.expected), "other numbers"


def silence() -> None:
    """Keep the messages of a process that is meant to fail out of the table."""
    null = os.open(os.devnull, os.O_WRONLY)
    for handle in (1, 2):
        os.dup2(null, handle)


def digest(folder: Path) -> dict[str, str]:
    """Return the content of all files below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def undisturbed(made: Toy) -> Record:
    """Return the record of a run without faults, and leave that of the bystander."""
    made.run([made.cell(), made.cell("gcd")])
    record = records.read_done(made.results, made.cell())
    assert isinstance(record, Record)
    return record


def try_case(case: Case, made: Toy, folder: Path, expected: Record) -> tuple[bool, str]:
    """Inject a case; return whether it was survived, and what was lost."""
    place = Place(made, folder, expected)
    bystander = records.cell_folder(made.results, place.bystander)
    kept = records.cell_folder(place.toy.results, place.bystander)
    shutil.copytree(bystander, kept)
    before, outside = digest(kept), digest(place.outside)
    names = {path.name for path in folder.iterdir()}
    reason = ""
    try:
        case.inject(place)
    except BaseException:
        reason = traceback.format_exc().strip().splitlines()[-1][:150] or "failed"
    lost = []
    if {k: v for k, v in digest(kept).items() if k in before} != before:
        lost.append("the finished record")
    if digest(place.outside) != outside:
        lost.append("a file outside")
    if place.executed.exists():
        lost.append("code was executed")
    allowed = names | {"source", "into", "work", "executed"}
    if strange := {path.name for path in folder.iterdir()} - allowed:
        lost.append(f"written outside: {', '.join(sorted(strange))}")
    return not reason and not lost, "; ".join([*lost, *([reason] if reason else [])])


def all_cases() -> list[Case]:
    """Return every fault and every attack."""
    from faults import campaign_attacks, campaign_faults

    return [*campaign_faults.cases(), *campaign_attacks.cases()]


def campaign(chosen: Sequence[Case], folder: Path) -> Iterator[tuple[Case, bool, str, float]]:
    """Inject cases one after the other; yield each with its verdict and its seconds."""
    made = make_toy(folder / "toy")
    expected = undisturbed(made)
    cell_module.CHECKPOINT_SECONDS = 0.0
    for number, case in enumerate(chosen):
        began = time.monotonic()
        registry._plugins = {kind: {} for kind in registry.KINDS}
        survived, lost = try_case(case, made, folder / f"case{number}", expected)
        yield case, survived, lost, time.monotonic() - began


def say(text: str) -> None:
    """Print a line of the table now: the campaign takes minutes."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign and print the table."""
    parser = argparse.ArgumentParser(description="inject faults and attacks")
    parser.add_argument("--only", default="", help="cases whose group or name contains a word")
    parser.add_argument("--out", type=Path, help="write the table to a file as well")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.CRITICAL)
    chosen = [c for c in all_cases() if arguments.only in f"{c.kind} {c.group} {c.name}"]
    lines = [
        "| kind | group | injected | survived | lost | s |",
        "| --- | --- | --- | --- | --- | ---: |",
    ]
    say("\n".join(lines))
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        for case, survived, lost, seconds in campaign(chosen, Path(folder)):
            verdict = "yes" if survived else "NO"
            name = case.name.replace("|", "/").replace("\n", " ")[:70]
            lines.append(
                f"| {case.kind} | {case.group} | {name} | {verdict} | {lost} | {seconds:.1f} |"
            )
            verdicts.append((case.kind, survived))
            say(lines[-1])
    for kind in ("fault", "attack"):
        of_kind = [survived for k, survived in verdicts if k == kind]
        lines.append(f"\n{len(of_kind)} {kind}s injected, {sum(of_kind)} survived.")
        say(lines[-1])
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if all(survived for _, survived in verdicts) else 1


if __name__ == "__main__":
    sys.modules["faults.campaign"] = sys.modules["__main__"]  # the cases import this module
    sys.exit(main())
