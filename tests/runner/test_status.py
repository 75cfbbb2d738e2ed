"""What status says of a cell in each of its states, and what plan expects of its cost."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from helpers.toy import BATCH, EPOCHS, STEPS, Toy, make_toy

from gcdbench.cli import plan as commands
from gcdbench.experiment import heartbeat, records
from gcdbench.runner import checkpoint
from gcdbench.runner.cost import CostModel
from gcdbench.runner.status import State, render, settled, states


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Toy:
    toy = make_toy(tmp_path_factory.mktemp("toy"))
    toy.elsewhere("recorded").run([toy.cell()])
    return toy


@pytest.fixture
def toy(made, request) -> Toy:
    return made.elsewhere(f"results-{request.node.name}")


def folder(toy: Toy):
    place = records.cell_folder(toy.results, toy.cell())
    place.mkdir(parents=True, exist_ok=True)
    return place


def progress(**more) -> dict:
    facts = {"pid": os.getpid(), "born": heartbeat.process_birth(os.getpid()), "host": "far-away"}
    facts["phase"] = "training"
    known = {"epoch": 2, "epochs": 3, "loss": 1.5, "eta": 600.0, "updated": time.time()}
    return {**facts, **known, **more}


def look(toy: Toy, **more) -> State:
    (state,) = states([toy.cell()], toy.results, **more)
    return state


def test_a_recorded_cell_is_done(made):
    assert look(made.elsewhere("recorded")).kind == "done"


def test_a_cell_without_a_folder_waits(toy):
    assert (look(toy).kind, look(toy).detail) == ("waiting", "")


def test_a_cell_with_a_heart_in_this_machine_runs_here(toy):
    with heartbeat.Heartbeat(folder(toy), epoch=2, epochs=3, loss=1.5, eta=600.0):
        state = look(toy)
    assert state.kind == "running here"
    assert state.detail.startswith(f"epoch 2 of 3, loss 1.500, 10 min left (process {os.getpid()}")
    assert state.as_dict()["epoch"] == 2
    assert look(toy).kind == "waiting"  # the heart has stopped


def test_a_fresh_sign_of_life_from_another_machine_means_running_elsewhere(toy):
    (folder(toy) / heartbeat.PROGRESS).write_text(json.dumps(progress()))
    assert look(toy).kind == "running elsewhere"


def test_an_old_sign_of_life_from_another_machine_means_that_it_died(toy):
    old = progress(updated=time.time() - 1000)
    (folder(toy) / heartbeat.PROGRESS).write_text(json.dumps(old))
    state = look(toy)
    assert state.kind == "waiting"
    assert state.detail == f"process {os.getpid()} on far-away died; starts again"


def test_a_process_with_the_number_of_a_dead_one_does_not_pass_for_it(toy):
    with heartbeat.Heartbeat(folder(toy)) as heart:
        heart.update(born="12345")
        heart.beat()
        assert look(toy).kind == "waiting"


def test_a_failed_cell_says_why(toy):
    heartbeat.note_failure(folder(toy), "the loss is not finite at step 7", "Traceback ...")
    state = look(toy)
    assert (state.kind, state.detail) == ("failed", "the loss is not finite at step 7")
    assert (folder(toy) / "error.log").read_text() == "Traceback ..."


def test_an_interrupted_cell_says_where_it_goes_on(toy):
    checkpoint.save(folder(toy), 4, {"key": "k"})
    assert (look(toy).kind, look(toy).detail) == ("waiting", "resumes after step 4")


def test_a_cell_with_an_older_record_is_stale_and_says_what_has_changed(made):
    toy = made.elsewhere("recorded")
    (state,) = states([toy.cell(train={"lr": 0.5})], toy.results)
    assert state.kind == "stale"
    assert state.detail == "recorded with train.lr 0.01 instead of 0.5"


def test_a_damaged_record_is_named(made, toy):
    record, predictions = (
        (records.cell_folder(made.elsewhere("recorded").results, made.cell()) / name).read_bytes()
        for name in ("record.json", "predictions.npz")
    )
    records.put(folder(toy), record[:-10], predictions)
    assert look(toy).kind == "damaged"


def test_a_job_in_the_queue_is_queued_and_one_that_left_it_is_lost(toy):
    (folder(toy) / heartbeat.JOB).write_text(json.dumps({"job": "12_3"}))
    state = look(toy, queue=lambda: {"12_3": "PENDING"})
    assert (state.kind, state.detail) == ("queued", "as job 12_3 (pending); starts again")
    state = look(toy, queue=lambda: {})
    assert (state.kind, state.detail) == (
        "waiting",
        "job 12_3 left the queue without a record; starts again",
    )


def test_the_table_ends_with_counts():
    rows = [State("toy", "gcd", 0, "k", "done", "in 3 s"), State("toy", "a", 1, "l", "waiting")]
    assert render(rows).splitlines() == [
        "toy  gcd  seed 0    done     in 3 s",
        "toy  a    seed 1    waiting",
        "2 cells: 1 done, 1 waiting",
    ]
    assert settled(rows)
    assert not settled([State("toy", "a", 1, "l", "running here")])


def test_a_plan_counts_images_and_takes_the_time_from_records(made):
    toy = made.elsewhere("recorded")
    (record,) = (record for _, record in records.read_all(toy.results))
    swept = record.problem.labelled + record.problem.unlabelled
    longer = toy.cell(train={"epochs": 10 * EPOCHS})
    estimate = CostModel([record], "cpu").estimate(longer)
    assert estimate.images == 2 * 10 * EPOCHS * STEPS * BATCH + swept
    per_image = record.timing.wall_seconds / (2 * EPOCHS * STEPS * BATCH + swept)
    assert estimate.seconds == pytest.approx(per_image * estimate.images)
    assert estimate.basis == "by 1 record of this method"
    other = CostModel([record], "cpu").estimate(toy.cell("gcd"))
    assert other.basis == "by 1 record of other methods"


def test_where_nothing_similar_is_recorded_a_plan_counts_images_and_tells_no_time(toy):
    estimate = CostModel([], "cpu").estimate(toy.cell())
    assert estimate.images > 0
    assert (estimate.seconds, estimate.basis) == (None, "nothing like it is recorded")


def test_a_record_of_older_scores_counts_as_done_and_says_so(made, toy):
    place = records.cell_folder(made.elsewhere("recorded").results, made.cell())
    shutil.copytree(place, records.cell_folder(toy.results, toy.cell()))
    path = records.cell_folder(toy.results, toy.cell()) / records.RECORD
    assert "rescore" not in look(toy).detail
    records.rewrite(path, replace(records.read_record(path), scores="older"))
    assert look(toy).kind == "done"
    assert look(toy).detail.endswith("; scored by other code (gcdbench results rescore)")


@pytest.mark.parametrize("form", ["", "cells", "json"])
def test_plan_prints_costs(made, capsys, form):
    toy = made.elsewhere("recorded")
    flags = {"json": form == "json", "cells": form == "cells", "on": "cpu"}
    arguments = argparse.Namespace(results=toy.results, **flags)
    assert commands.plan(arguments, toy.request("simgcd", "gcd")) == 0
    text = capsys.readouterr().out
    if form == "json":
        assert [row["done"] for row in json.loads(text)] == [True, False]
    elif form == "cells":
        _, done, to_do, total, _ = text.splitlines()
        assert done.endswith("done")
        assert to_do.endswith("by 1 record of other methods")
        assert total == "2 cells, 1 done"
    else:
        _, done, to_do, _, total, basis = text.splitlines()
        assert done.split() == ["toy", "simgcd", "1", "1", "-", "-", "-", "-"]
        assert to_do.split()[:4] == ["toy", "gcd", "1", "0"]
        assert total.startswith("2 cells, 1 done; ")
        assert " on one cpu" in total
        assert basis.startswith("cpu: from records made on it")


def test_status_prints_states_for_programs(made, capsys):
    toy = made.elsewhere("recorded")
    arguments = argparse.Namespace(results=toy.results, json=True, watch=None)
    assert commands.status(arguments, toy.request("simgcd", "gcd")) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in rows] == ["done", "waiting"]


def test_watching_looks_again_until_nothing_runs(toy, capsys, monkeypatch):
    heart = heartbeat.Heartbeat(folder(toy), epoch=1, epochs=3)
    monkeypatch.setattr(time, "sleep", lambda seconds: heart.__exit__())
    with heart:
        arguments = argparse.Namespace(results=toy.results, json=False, watch=0.1)
        commands.status(arguments, toy.request())
    text = capsys.readouterr().out
    assert text.index("1 running here") < text.index("1 waiting")


def test_plan_and_status_do_not_import_torch():
    code = "import sys, gcdbench.cli.run, gcdbench.runner.status, gcdbench.runner.cost"
    modules = "gcdbench.runner.merge, gcdbench.experiment.heartbeat"
    check = f"{code}, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
