"""Launchers: found by name, chosen by options, and none of them changes a number."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

import pytest
from helpers.toy import Toy, make_toy

from gcdbench.core import extensions
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.outcome import Outcome
from gcdbench.experiment.plan import Cell
from gcdbench.runner.launchers import LAUNCHERS, choose_launcher, get_launcher
from gcdbench.runner.launchers.slurm import Job
from gcdbench.runner.options import RunOptions


class Dry:
    """A third party's launcher, which runs nothing."""

    def run(self, cells: Sequence[Cell], options: RunOptions) -> Outcome:
        return Outcome(submitted=[cell.key for cell in cells])


class Broken:
    def __init__(self) -> None:
        raise RuntimeError("no scheduler here")


@pytest.fixture
def third_party(monkeypatch):
    points = [
        importlib.metadata.EntryPoint(name.lower(), f"{__name__}:{name}", LAUNCHERS.group)
        for name in ("Dry", "Broken")
    ]
    loads = {"dry": Dry, "broken": Broken}
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda self: loads[self.name])
    monkeypatch.setattr(extensions, "entry_points", {LAUNCHERS.group: points}.__getitem__)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("toy"))


def test_every_launcher_can_be_made():
    for name in LAUNCHERS.own:
        assert callable(get_launcher(name).run)


def test_a_third_partys_launcher_is_known_and_runs(third_party, tmp_path, made):
    assert "dry" in LAUNCHERS.names()
    cell = made.cell()
    assert get_launcher("dry").run([cell], RunOptions(tmp_path)).submitted == [cell.key]


def test_a_launcher_that_cannot_be_loaded_is_one_sentence(third_party):
    with pytest.raises(UserError, match=r"--launcher broken: .*no scheduler here"):
        get_launcher("broken")


def test_an_unknown_launcher_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"unknown launcher 'slrum'; did you mean 'slurm'"):
        get_launcher("slrum")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "local"),
        ({"jobs": 1}, "local"),
        ({"jobs": 2}, "pool"),
        ({"processes": 2}, "multiprocess"),
        ({"launcher": "slurm"}, "slurm"),
    ],
)
def test_options_choose_a_launcher(tmp_path, options, name):
    assert choose_launcher(RunOptions(tmp_path, device="cpu", **options)) == name


def test_torchrun_chooses_several_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert choose_launcher(RunOptions(tmp_path, device="cpu")) == "multiprocess"


def test_no_launcher_changes_a_number(made, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cell, found = made.cell("hilo"), {}
    for name in ("local", "pool"):
        place = made.elsewhere(name)
        options = RunOptions(place.results, device="cpu", launcher=name, jobs=2)
        assert get_launcher(choose_launcher(options)).run([cell], options).trained == [cell]
        found[name] = records.read_done(place.results, cell)
    results = made.elsewhere("slurm").results.resolve()
    job = Job(cell, records.cell_folder(results, cell), RunOptions(results, device="cpu"))
    assert job() == "trained"
    found["slurm"] = records.read_done(results, cell)
    assert records.same_numbers(found["local"], found["pool"])
    assert records.same_numbers(found["local"], found["slurm"])
