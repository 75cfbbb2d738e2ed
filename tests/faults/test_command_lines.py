"""Wrong command lines: exit code 2, one sentence, no traceback, nothing written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gcdbench.cli.main import main
from gcdbench.core import registry

pytestmark = pytest.mark.faults
SUITE = "--suite drawshift"
RUN = f"run {SUITE} --quick --methods simgcd --results OUT"
LONG = "x" * 5000
REQUESTS = ("run", "plan", "status", "leaderboard", "report", "plot")

LINES = [
    # verbs
    *(
        "",
        "rum",
        "RUN",
        "--verison",
        "run run",
        "-x",
        "run --help-me",
        "plan extra",
        LONG,
        "--",
        "ru",
    ),
    # requests, for every verb that takes one
    *(f"{verb}" for verb in REQUESTS),
    *(f"{verb} --suite nowhere" for verb in REQUESTS),
    *(f"{verb} --suite nowhere.yaml" for verb in REQUESTS),
    *(f"{verb} {SUITE} --methods simgdc --results OUT" for verb in REQUESTS),
    *(f"{verb} {SUITE} --datasets nowhere --results OUT" for verb in REQUESTS),
    *(f"{verb} {SUITE} --set train.lr --results OUT" for verb in REQUESTS),
    *(f"{verb} {SUITE} --plugin nowhere.py --results OUT" for verb in REQUESTS),
    *(f"{verb} {SUITE} --seeds one --results OUT" for verb in REQUESTS),
    *(f"{verb} {SUITE} --results FILE" for verb in ("plan", "status", "run")),
    f"run {SUITE} --suite",
    f"run --suite {LONG}",
    f"run --suite {LONG}.yaml",
    "run --suite FOLDER.yaml",
    "run --suite BINARY.yaml",
    "run --suite EMPTY.yaml",
    "run --suite LIST.yaml",
    "run --suite ESCAPE.yaml",
    "run --suite CIRCLE.yaml",
    "run --suite /dev/null",
    "run --suite ../drawshift",
    f"run {SUITE} --methods",
    f"run {SUITE} --methods + --results OUT",
    f"run {SUITE} --methods - --results OUT",
    f"run {SUITE} --methods simgcd+ --results OUT",
    f"run {SUITE} --methods simgcd++mcc --results OUT",
    f"run {SUITE} --methods simgcd+mcc+mcc --results OUT",
    f"run {SUITE} --methods simgcd-mcc --results OUT",
    f"run {SUITE} --methods ../../simgcd --results OUT",
    f"run {SUITE} --methods {LONG} --results OUT",
    f"run {SUITE} --methods SIMGCD --results OUT",
    f"{RUN} --datasets ../../x",
    f"{RUN} --datasets {LONG}",
    f"{RUN} --seeds 1.5",
    f"{RUN} --seeds -1",
    f"{RUN} --seeds 4294967296",
    f"{RUN} --seeds 99999999999999999999999999",
    f"{RUN} --seeds -99999999999999999999999999",
    f"{RUN} --seeds {'9' * 5000}",
    f"{RUN} --seeds",
    f"{RUN} --set",
    *(
        f"{RUN} --set {text}"
        for text in (
            *("lr=1", "=", ".=1", "train.=1", ".lr=1", "train.lr=", "train.lr=x", "train.lr=.nan"),
            *("train.lr=-1", "train.lr=0", "train.lr=.inf", "train.lr=1e999", "train.lrr=1"),
            *("train.epochs=0", "train.epochs=1.5", "train.epochs=-3", "train.epochs=true"),
            *("train.batch_size=0", "train.batch_size=big", "train.momentum=-1", "nobody.x=1"),
            *("backbone.name=3", "backbone.train_blocks=-1", "backbone.weights=nowhere.pt"),
            *("task.num_classes=-1", "task.num_classes=x", "task.classes=guess", "hilo.x=1"),
            *("train.lr=[", "train.lr={a", "train.lr=!!python/object/apply:os.system", "train=1"),
            *("simgcd.nothing=1", "train.lr=[1]", "train.epochs=null", f"train.{LONG}=1"),
        )
    ),
    f"{RUN} --set train.lr=1 --set train.lr=2",
    *(
        f"{RUN} {flags}"
        for flags in (
            *("--jobs 0", "--jobs -1", "--jobs x", "--jobs 1.5", "--jobs", f"--jobs {'9' * 5000}"),
            *("--nproc-per-node 0", "--nproc-per-node x", "--jobs 2 --nproc-per-node 2"),
            *("--workers -1", "--workers x", "--cache-gb -1", "--cache-gb nan", "--cache-gb inf"),
            *("--cache-gb x", "--device", "--device gpu", "--device cuda:99", "--device cpu:x"),
            *("--launcher nobody", "--launcher", "--slurm nowhere.yaml", "--slurm"),
            *("--launcher slurm --slurm nowhere.yaml", "--launcher slurm --jobs 2"),
            *("--launcher slurm --slurm BINARY.yaml", "--launcher ray --nproc-per-node 2"),
            *("--cell-timeout 0", "--cell-timeout -1", "--cell-timeout nan", "--cell-timeout x"),
            *("--stall-timeout 0", "--stall-timeout inf", "--stall-timeout", "--plugin FOLDER"),
            *("--plugin BINARY.yaml", "--plugin", "--plugin CRASH.py", "--strict yes", "--rerunn"),
            *("--results", "--results FILE", "--results FILE/x", "--results /proc/x", "--quick 3"),
            *("--results /dev/null", "--data-root"),
        )
    ),
    # reports
    f"leaderboard {SUITE} --results EMPTY",
    f"report {SUITE} --results EMPTY",
    f"plot {SUITE} --results EMPTY",
    f"leaderboard {SUITE} --results OUT --format html",
    f"leaderboard {SUITE} --results OUT --format",
    f"leaderboard {SUITE} --out",
    f"plot pie {SUITE} --results OUT",
    f"plot sensitivity {SUITE} --results OUT",
    f"plot sensitivity {SUITE} --over train.nothing --results OUT",
    f"status {SUITE} --watch x --results OUT",
    f"status {SUITE} --watch 0 --results OUT",
    f"status {SUITE} --watch nan --results OUT",
    # sites
    *("site --results nowhere", "site --results FILE", "site --results EMPTY", "site extra"),
    *("site --results EMPTY --suites nowhere", "site --suites", "site --suites BINARY.yaml"),
    *("site --results EMPTY --suites drawshift", "site --out", "site --data-root", "site --quick"),
    # tuning
    *(
        f"tune {SUITE} --methods simgcd --results OUT {flags}"
        for flags in (
            *("--budget 0", "--budget x", "--criterion guess", "--sampler grid", "--folds 99"),
            *("--folds 0", "--tune-seeds", "--tune-seeds x", "--seeds 0", "--out"),
            *("--datasets nowhere", "--set train.lr", "--results FILE"),
        )
    ),
    f"tune {SUITE} --methods simgcd --results OUT --show --datasets line+solid --tune-seeds 0",
    *("tune", "tune --suite nowhere", f"tune {SUITE} --methods simgdc --results OUT"),
    *("reproduce selection", "reproduce selection --scale embedded --budget 0"),
    # this machine
    *("doctor --nothing", "doctor extra words", "doctor --data-root", "doctor --suite nowhere"),
    # results
    *("results", "results mrege", "results merge", "results merge nowhere --into OUT"),
    *("results merge FILE --into OUT", "results merge FOLDER --into FOLDER", "results verify FILE"),
    *("results merge FOLDER --into FILE", "results merge FOLDER --into FILE/x"),
    *("results verify nowhere", "results verify FOLDER FOLDER", "results merge FOLDER --into"),
    # plug-ins and what is known of them
    *("list", "list nothing", "list methods methods", "show", "show method", "show method nobody"),
    *("show nothing simgcd", "show suite nowhere", "show dataset nowhere", "check", "check nobody"),
    *("check nowhere.py", "check FOLDER", "check BINARY.yaml", "new-method", "new-method 3x"),
    *("new-method A-B", "new-method ../x", "new-method x --from nobody", f"new-method {LONG}"),
    *("new-method simgcd", "completion", "completion tcsh"),
    # scores of a user's own features
    *("evaluate", "evaluate --features", "evaluate --features nowhere.npz", "estimate-k"),
    *("evaluate --features FILE", "evaluate --features FILE --classes 0", "estimate-k --out OUT"),
    *("evaluate --features FILE --classes x", "evaluate --features FILE --seed x"),
    *("evaluate --features FILE --seed 99999999999999999999", "estimate-k --features FILE"),
    *("estimate-k --features FILE --max-k 0", "estimate-k --features FILE --max-k x"),
    *("estimate-k --features FILE --search guess", "estimate-k --features FOLDER"),
    # tables of the paper
    *("reproduce", "reproduce nothing", "reproduce --list --scale huge", "reproduce ../x"),
    *("reproduce nothing --show", "reproduce --seeds x"),
    # data
    *("data", "data nothing", "data info nowhere", "data stats nowhere"),
    *("data download", "data download nowhere", "data verify nowhere", "data sheet nowhere"),
    "data download cub --data-root FILE",
    *(
        f"data download cub --data-root OUT --url {url}"
        for url in (
            *("x", "ssh://h/x.zip", "https://h/", "https://h/%2e%2e", "https://h/a%00.zip"),
            *(f"https://h/{'x' * 400}.zip", "javascript:alert(1)", "https://h/a%0Ab"),
        )
    ),
    "data download cub --data-root OUT --url https://h/a.zip --url https://g/a.zip",
]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """Work in a folder with some files that are wrong."""
    monkeypatch.setattr(registry, "_plugins", {kind: {} for kind in registry.KINDS})
    monkeypatch.delenv("GCDBENCH_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("FOLDER", "FOLDER.yaml", "EMPTY"):
        (tmp_path / name).mkdir()
    (tmp_path / "FILE").write_text("a file")
    (tmp_path / "BINARY.yaml").write_bytes(os.urandom(64) + b"\xff\0")
    (tmp_path / "EMPTY.yaml").write_text("")
    (tmp_path / "LIST.yaml").write_text("[1, 2]\n")
    (tmp_path / "ESCAPE.yaml").write_text('datasets: {"../../x": {source: folder}}\n')
    (tmp_path / "CIRCLE.yaml").write_text("extends: CIRCLE.yaml\ndatasets: {x: {source: cub}}\n")
    (tmp_path / "CRASH.py").write_text("class X(Method):\n    class Config:\n        1 / 0\n")
    return tmp_path


def files(folder: Path) -> set[str]:
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in found if name != "OUT"}  # that it can be written to was tried


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:70] or "nothing")
def test_a_wrong_command_line_gets_one_sentence(place, capsys, line):
    before = files(place)
    assert main(line.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    last = said.err.splitlines()[-1]
    assert last.startswith("gcdbench: ")
    assert "Traceback" not in said.err
    assert said.err.count("\n") <= 3  # a warning may come before the sentence
    assert files(place) == before


def test_the_table_is_large_enough():
    assert len(set(LINES)) >= 150
