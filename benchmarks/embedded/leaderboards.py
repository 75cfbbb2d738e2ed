"""Make what is in results/drawshift and results/site: the grid, its tables, plots and pages.

    python benchmarks/embedded/leaderboards.py train RUNS      # hours of CPU; can be resumed
    python benchmarks/embedded/leaderboards.py keep RUNS       # copies its records to results/
    python benchmarks/embedded/leaderboards.py write           # tables, plots and pages from these

``results/drawshift/records`` holds the cells with default settings, which the leaderboards show,
``results/drawshift/variants`` those that only the other tables show. To add seeds or a method,
change the constants here, and merge both folders into RUNS first, so that nothing is trained twice:
``gcdbench results merge results/drawshift/records results/drawshift/variants --into RUNS``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import reading

from gcdbench.cli.main import main as gcdbench
from gcdbench.experiment import records
from gcdbench.experiment.plan import Cell, Request, make_cells
from gcdbench.paper_tables.tables import Choice, distinct, load, make_plans

RESULTS = Path(__file__).parents[2] / "results"
RECORDS = RESULTS / "drawshift" / "records"
BASELINES = RESULTS / "drawshift" / "baselines.csv"
TABLE = "<!-- means over seeds, by leaderboards.py -->\n"  # two of these are around a table
METHODS = (
    *("rankstats", "uno", "orca", "gcd", "simgcd", "uniot", "hilo", "ncdd", "pim", "mugcd"),
    *("legogcd", "cms", "selex", "protogcd", "debgcd", "hypcd", "rlcd"),
)
SEEDS = (0, 1, 2, 3, 4)
CORRUPTED = tuple(name for name in METHODS if name != "cms")  # half an hour a cell
GRID = (
    Request("drawshift", METHODS, seeds=SEEDS),
    # ten minutes a cell: its prompts need the gradient through the whole backbone
    Request("drawshift", ("sptnet",), seeds=(0,)),
    Request("drawshift-all", METHODS, seeds=SEEDS),
    Request("drawshift-c", CORRUPTED, seeds=SEEDS),
)
TABLES = (
    *("hilo_parts", "hilo_information", "readings", "sampling", "rates", "tuned", "class_splits"),
)
PLOTS = {
    "drawshift": ("bars", "drop", "errors", "curves", "critical"),
    "drawshift-all": ("bars", "drop"),
    "drawshift-c": ("bars", "corruptions"),
}


def shown(suite: str) -> Request:
    """Return what the leaderboard of a suite shows: its methods, with all seeds."""
    methods = (name for request in GRID if request.suite == suite for name in request.methods)
    return Request(suite, tuple(methods), seeds=SEEDS)


def words(request: Request) -> list[str]:
    """Return the flags of a request."""
    seeds = map(str, request.seeds)
    return ["--suite", request.suite, "--methods", *request.methods, "--seeds", *seeds]


def run(*command: object) -> None:
    """Run a command of gcdbench; end if it fails."""
    line = [str(word) for word in command]
    sys.stderr.write(f"+ gcdbench {' '.join(line)}\n")
    if code := gcdbench(line):
        sys.exit(code)


def train(runs: Path, *, jobs: int) -> None:
    """Train all cells that have no record."""
    how = ["--results", runs, "--jobs", jobs, "--cache-gb", 20]
    for request in GRID:
        run("run", *words(request), *how)
    run("reproduce", *TABLES, *how)


def cells() -> dict[str, list[Cell]]:
    """Return the cells of the leaderboards, and those that are in the other tables alone."""
    usual = distinct(cell for request in GRID for cell in make_cells(request))
    plans = make_plans([load(name) for name in TABLES], Choice())
    varied = distinct(cell for plan in plans for cell in plan.cells.values())
    others = [cell for name, cell in varied.items() if name not in usual]
    return {"records": list(usual.values()), "variants": others}


def keep(runs: Path, into: Path) -> Iterator[str]:
    """Copy records with their predictions, delete what is not shown; yield the missing cells."""
    wanted = cells()
    sources = [runs, *(into / name for name in wanted)]  # a cell may move from one to the other
    for name, chosen in wanted.items():
        for cell in chosen:
            target = records.cell_folder(into / name, cell)
            if records.is_done(into / name, cell):
                continue
            source = next((one for one in sources if records.is_done(one, cell)), None)
            if source is None:
                yield f"{cell.label}: no record in {runs}"
                continue
            target.mkdir(parents=True, exist_ok=True)
            for file in (records.PREDICTIONS, records.RECORD):
                shutil.copy(records.cell_folder(source, cell) / file, target / file)
    for name, chosen in wanted.items():
        there = {path.parent for path in (into / name).rglob(records.RECORD)}
        for folder in there - {records.cell_folder(into / name, cell) for cell in chosen}:
            shutil.rmtree(folder)


def write_leaderboards(into: Path, *, plots: bool = True) -> None:
    """Write Markdown and plots of each suite, and the site, from whatever code the records are."""
    common = ["--results", RECORDS, "--as-recorded"]
    baselines = ["--baselines", BASELINES]
    run("site", *common, *baselines, "--suites", *PLOTS, "--out", into / "site")
    with tempfile.TemporaryDirectory() as folder:
        for suite, plotted in PLOTS.items():
            asked = words(shown(suite))
            run("leaderboard", *asked, *common, *baselines, "--format", "md", "--out", folder)
            shutil.copy(Path(folder) / f"{suite}.md", into / "drawshift")
            if plots:
                run("plot", *plotted, *asked, *common, "--out", folder)
                for name in plotted:
                    shutil.copy(Path(folder) / f"{suite}-{name}.png", into / "drawshift")


def write_tables(into: Path) -> None:
    """Write the other tables, from records of the present code."""
    with tempfile.TemporaryDirectory() as folder:
        both = [RESULTS / "drawshift" / name for name in ("records", "variants")]
        run("results", "merge", *both, "--into", folder)
        run("reproduce", *TABLES, "--show", "--results", folder)
        for name in TABLES:
            shutil.copy(Path(folder) / "reproduce" / f"{name}.md", into / "drawshift")


def write_reading(into: Path) -> None:
    """Write what the records of the leaderboards say together, and their means into README."""
    own = reading.read(RECORDS)
    page = f"# Reading of the leaderboards\n\n{reading.page(own, BASELINES)}"
    (into / "drawshift" / "reading.md").write_text(page, encoding="utf-8")
    before, _, after = (RESULTS / "README.md").read_text(encoding="utf-8").split(TABLE)
    text = TABLE.join([before, reading.means(own, BASELINES), after])
    (into / "README.md").write_text(text, encoding="utf-8")


def main(argv: list[str]) -> None:
    """Train, keep or write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    training = verbs.add_parser("train", help="train the cells that RUNS has no record of")
    training.add_argument("runs", type=Path, metavar="RUNS")
    training.add_argument("--jobs", type=int, default=2)
    keeping = verbs.add_parser("keep", help="copy records and predictions from RUNS to results/")
    keeping.add_argument("runs", type=Path, metavar="RUNS")
    verbs.add_parser("write", help="write tables, plots and the site")
    args = parser.parse_args(argv)
    if args.verb == "train":
        train(args.runs, jobs=args.jobs)
    elif args.verb == "keep":
        sys.exit("\n".join(keep(args.runs, RESULTS / "drawshift")) or None)
    else:
        write_leaderboards(RESULTS)
        write_tables(RESULTS)
        write_reading(RESULTS)


if __name__ == "__main__":
    main(sys.argv[1:])
