"""The scripts that measure speed still run; what they print is for people to read."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from types import ModuleType

import pytest
from helpers.paths import ROOT

from gcdbench.core import registry

SPEED = ROOT / "benchmarks" / "speed"
SCRIPTS = {
    "corruptions": ("--size", "32", "--repeats", "1"),
    "evaluator": (),
    "loading": ("--images", "2", "--rounds", "1"),
    "mutual_information": ("--rounds", "1"),
    "records": ("--records", "30", "--verbs", "status"),
    "report": ("--seeds", "1"),
    "scale": ("--small",),
    "steps": ("simgcd",),
    "training": ("--methods", "simgcd", "--images", "2"),
}
WITH_WEIGHTS = {"half_precision"}  # of cells trained before


@pytest.fixture
def training(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(SPEED)
    return importlib.import_module("training")


def views_of_a_step(training: ModuleType, method: str) -> int:
    seconds, views = training.heads_and_losses(method, training.heads_only(), 20, 1)
    assert seconds > 0
    return views


def test_a_step_without_its_backbone_counts_the_views_that_it_would_encode(training):
    assert views_of_a_step(training, "rlcd") == 2 * training.BATCH  # with an added token
    # PatchMix adds the labelled half of the batch once more
    assert views_of_a_step(training, "hilo") == 3 * training.BATCH


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(registry.available("method")))
def test_every_method_steps_without_its_backbone(training, method):
    assert views_of_a_step(training, method) >= training.BATCH


def test_every_script_is_tried():
    scripts = {path.stem for path in SPEED.glob("*.py")}
    assert scripts == SCRIPTS.keys() | WITH_WEIGHTS


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_a_table(name, tmp_path):
    words = [sys.executable, str(SPEED / f"{name}.py"), *SCRIPTS[name]]
    paths = {"PYTHONPATH": str(ROOT), "GCDBENCH_CACHE": str(tmp_path)}
    ended = subprocess.run(
        words, cwd=ROOT, env=os.environ | paths, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()
