"""Compare the records of two results folders cell by cell: accuracies, predictions, curves.

    python benchmarks/compare_records.py results/before results/after
    python benchmarks/compare_records.py results/after results/before --subset

Cells are paired by dataset, method, seed and settings; a setting that only one of two records has
does not keep them apart. Keys, code, provenance and times are not compared. "equal" means equal to
the last bit; otherwise the largest difference is given. The exit code is 1 if anything differs or
is missing, with ``--subset`` only if a cell of the first folder is missing in the second.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gcdbench.experiment import records
from gcdbench.experiment.record import Record

Values = Mapping[str, float | None]  # by what they are called


@dataclass(frozen=True)
class Comparison:
    """How two lists of numbers compare."""

    equal: bool
    largest: float = 0.0  # difference
    where: str = ""  # of the largest difference, or what only one of them has

    def __str__(self) -> str:
        if self.equal:
            return "equal"
        return f"differ by {self.largest:.3g} ({self.where})" if self.largest else self.where


def read(place: Path) -> dict[Path, Record]:
    """Return the records of a folder, or of one file; exit on one that is damaged."""
    paths = [place] if place.is_file() else sorted(place.glob(f"**/seed*/{records.RECORD}"))
    found = {path: records.read_record(path) for path in paths}
    for damaged in (one for one in found.values() if isinstance(one, records.Damaged)):
        sys.exit(f"{damaged.path} {damaged.reason}")
    if not found:
        sys.exit(f"{place}: no records")
    return {path: one for path, one in found.items() if isinstance(one, Record)}


def pairs(
    first: Mapping[Path, Record], second: Mapping[Path, Record]
) -> Iterator[tuple[Path | None, Path | None]]:
    """Yield the paths of records of the same cell; None stands for a missing one."""
    left = dict(second)
    for path, record in first.items():
        fitting = [other for other, one in left.items() if same_cell(record, one)]
        fitting.sort(key=lambda other: left[other].settings != record.settings)  # the same first
        if fitting:
            del left[fitting[0]]
        yield path, fitting[0] if fitting else None
    yield from ((None, path) for path in left)


def same_cell(one: Record, other: Record) -> bool:
    """Tell whether two records are of one dataset, method and seed, with the same settings."""
    if (one.dataset, one.method, one.seed) != (other.dataset, other.method, other.seed):
        return False
    here, there = records.flat(one.settings), records.flat(other.settings)
    return all(here[name] == there[name] for name in here.keys() & there.keys())


def accuracies(record: Record) -> dict[str, float | None]:
    """Return all scores of a record."""
    return {
        f"{name} {rate}": value
        for name, scores in {**record.sets, **record.summary}.items()
        for rate, value in scores.to_json().items()
        if rate != "role"
    }


def curve(record: Record) -> dict[str, float | None]:
    """Return rates, loss terms and accuracies of all epochs."""
    found: dict[str, float | None] = {}
    for point in record.curve:
        start = f"epoch {point.epoch + 1}"
        found[f"{start} lr"] = point.lr
        found |= {f"{start} {term}": value for term, value in point.terms.items()}
        for name, scores in point.sets.items():
            found |= {f"{start} {name} {s}": scores.rate(s) for s in ("all", "old", "new")}
    return found


def compare_values(one: Values, other: Values) -> Comparison:
    """Compare numbers by name."""
    if unmatched := sorted(one.keys() ^ other.keys()):
        return Comparison(False, where=f"only one has {unmatched[0]}")
    gaps = {name: _gap(one[name], other[name]) for name in one if one[name] != other[name]}
    if not gaps:
        return Comparison(True)
    worst = max(gaps, key=lambda name: gaps[name])
    return Comparison(False, gaps[worst], worst)


def _gap(one: float | None, other: float | None) -> float:
    return math.inf if one is None or other is None else abs(one - other)


def compare_predictions(
    one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]
) -> Comparison:
    """Compare predicted clusters; the difference is the share of images in a set."""
    if unmatched := sorted(one.keys() ^ other.keys()):
        return Comparison(False, where=f"only one has {unmatched[0]}")
    for name in one:
        if one[name].shape != other[name].shape:
            return Comparison(False, where=f"{name} has other sizes")
    shares = {name: float((one[name] != other[name]).mean()) for name in one}
    worst = max(shares, key=lambda name: shares[name])
    return Comparison(not shares[worst], shares[worst], f"share of {worst}")


def compare(first: Path, second: Path) -> dict[str, Comparison]:
    """Compare two records and the predictions next to them."""
    one, other = (records.read_record(path) for path in (first, second))
    assert isinstance(one, Record)
    assert isinstance(other, Record)
    predicted = [records.read_predictions(p.parent, r) for p, r in ((first, one), (second, other))]
    here, there = predicted
    if isinstance(here, str) or isinstance(there, str):
        reason = next(found for found in predicted if isinstance(found, str))
        predictions = Comparison(False, where=reason)
    else:
        predictions = compare_predictions(here, there)
    return {
        "accuracies": compare_values(accuracies(one), accuracies(other)),
        "predictions": predictions,
        "curves": compare_values(curve(one), curve(other)),
    }


def main(argv: list[str]) -> int:
    """Print a line for each cell and the counts; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("first", type=Path, help="folder with records, or one record.json")
    parser.add_argument("second", type=Path, help="another one")
    parser.add_argument("--subset", action="store_true", help="the second may have more cells")
    arguments = parser.parse_args(argv)
    first, second = read(arguments.first), read(arguments.second)
    equal = different = missing = 0
    for here, there in pairs(first, second):
        if here is None and arguments.subset:
            continue
        label = (first[here] if here is not None else second[there]).label  # type: ignore[index]
        if here is None or there is None:
            missing += 1
            print(f"{label}: missing in {arguments.first if here is None else arguments.second}")
            continue
        found = compare(here, there)
        same = all(one.equal for one in found.values())
        equal, different = equal + same, different + (not same)
        print(f"{label}: " + ", ".join(f"{what} {one}" for what, one in found.items()))
    print(f"{equal} cells are equal, {different} differ, {missing} are missing")
    return 1 if different or missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
