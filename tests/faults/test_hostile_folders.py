"""Results folders of somebody else: links, pipes, damaged notes; nothing outside is touched."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest
from helpers.faults import ended, fork, obey_permissions
from helpers.toy import Toy

from gcdbench.cli import main as cli
from gcdbench.cli.run import _rerun_note, _rerun_start
from gcdbench.errors import UserError
from gcdbench.experiment import heartbeat, records
from gcdbench.runner import checkpoint
from gcdbench.runner.launchers import slurm
from gcdbench.runner.merge import merge
from gcdbench.runner.status import states

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def recorded(made) -> tuple[Toy, object]:
    """Return a results folder with one record, to be copied."""
    toy = made.elsewhere("recorded")
    cell = toy.cell()
    toy.run([cell])
    return toy, cell


@pytest.fixture
def source(recorded, tmp_path):
    """Return a copy of the results folder and the cell's folder in it."""
    toy, cell = recorded
    subprocess.run(["cp", "-r", str(toy.results), str(tmp_path / "source")], check=True)
    return tmp_path / "source", records.cell_folder(tmp_path / "source", cell)


@pytest.mark.parametrize("name", ["record.json", "predictions.npz", "log.jsonl"])
def test_merge_does_not_read_through_a_link(source, tmp_path, name):
    results, folder = source
    secret = tmp_path / "secret"
    (folder / name).replace(secret)
    (folder / name).symlink_to(secret)
    merged = merge([results], tmp_path / "into")
    ((_, reason),) = merged.refused
    assert "symbolic link" in reason
    assert not list((tmp_path / "into").rglob(name))


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_merge_does_not_read_or_write_through_a_linked_folder(source, tmp_path, depth):
    results, folder = source
    parts = folder.relative_to(results).parts[: depth + 1]
    linked, elsewhere = results.joinpath(*parts), tmp_path / "elsewhere"
    into = tmp_path / "into"
    elsewhere.mkdir()
    into.joinpath(*parts).parent.mkdir(parents=True)
    into.joinpath(*parts).symlink_to(elsewhere)
    ((_, reason),) = merge([results], into).refused
    assert "cannot be merged" in reason
    assert list(elsewhere.iterdir()) == []
    linked.rename(tmp_path / "moved")
    linked.symlink_to(tmp_path / "moved")
    ((_, reason),) = merge([results], tmp_path / "other").refused
    assert "is reached by the symbolic link" in reason


@pytest.mark.parametrize("name", ["lock", "record.json", "previous-1"])
def test_merge_does_not_write_through_a_link_in_the_target(source, recorded, tmp_path, name):
    results, _ = source
    target = records.cell_folder(tmp_path / "into", recorded[1])
    target.mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (target / name).symlink_to(victim)
    assert len(merge([results], tmp_path / "into").refused) == 1
    assert victim.read_text() == "precious"


def test_merge_and_verify_refuse_a_pipe_in_the_place_of_a_record(source, tmp_path, capsys):
    results, folder = source
    (folder / records.RECORD).unlink()
    os.mkfifo(folder / records.RECORD)
    ((_, reason),) = merge([results], tmp_path / "into").refused
    assert "not an ordinary file" in reason
    assert cli.main(["results", "verify", str(results)]) == 1


NOTES = {
    "a list": [],
    "no pid": {"host": "h", "born": "1", "updated": 1.0, "phase": "x"},
    "a word as pid": {"pid": "12"},
    "a negative pid": {"pid": -1},
    "a huge pid": {"pid": 10**30},
    "an infinite time": {"updated": 1e999},
    "a NaN": {"updated": float("nan")},
    "words as numbers": {"updated": "now"},
    "a list as host": {"host": [1]},
    "a word as loss": {"loss": "low"},
    "a word as epoch": {"epoch": "one", "epochs": 3},
    "null": {"host": None},
}


@pytest.mark.parametrize("name", NOTES)
def test_a_damaged_note_of_progress_is_passed_over(toy, name):
    cell = toy.cell()
    folder = records.cell_folder(toy.results, cell)
    folder.mkdir(parents=True)
    note = NOTES[name]
    if isinstance(note, dict) and name != "no pid":
        good = {"host": "h", "pid": 1, "born": "1", "updated": 1.0, "phase": "x"}
        note = {**good, **note}
    (folder / heartbeat.PROGRESS).write_text(json.dumps(note))
    (state,) = states([cell], toy.results)
    assert state.kind == "waiting"


@pytest.mark.parametrize("text", ["[" * 100_000, "\0", "", '{"pid": 1' + "0" * 5000 + "}"])
def test_a_note_that_is_no_json_is_passed_over(toy, text):
    cell = toy.cell()
    folder = records.cell_folder(toy.results, cell)
    folder.mkdir(parents=True)
    for name in (heartbeat.PROGRESS, heartbeat.FAILURE, heartbeat.JOB):
        (folder / name).write_text(text)
    assert states([cell], toy.results)[0].kind == "waiting"


def test_a_pipe_in_the_place_of_a_note_holds_nobody_up(toy):
    cell = toy.cell()
    folder = records.cell_folder(toy.results, cell)
    folder.mkdir(parents=True)
    os.mkfifo(folder / heartbeat.PROGRESS)
    assert states([cell], toy.results)[0].kind == "waiting"


def test_files_that_are_called_like_checkpoints_are_left_alone(toy, undisturbed):
    cell = toy.cell()
    folder = records.cell_folder(toy.results, cell)
    folder.mkdir(parents=True)
    (folder / "checkpoint-abc.pt").write_text("mine")
    (folder / "checkpoint-99999999.pt").mkdir()
    os.mkfifo(folder / "checkpoint-88888888.pt")
    assert states([cell], toy.results)[0].detail == "starts again"
    for step in (1, 2, 3):
        checkpoint.save(folder, step, {"key": "k"})
    assert [path.name for path in checkpoint.files(folder)] == [
        "checkpoint-00000003.pt",
        "checkpoint-00000002.pt",
    ]
    assert undisturbed.met(toy, cell)
    assert (folder / "checkpoint-abc.pt").read_text() == "mine"


@pytest.mark.parametrize("started", ["1e999", "-1e999", "NaN", '"soon"', "1e18", "null", "[]"])
def test_a_damaged_note_of_a_rerun_begins_it_anew(toy, started):
    cells = [toy.cell()]
    toy.results.mkdir()
    _rerun_note(toy.results, cells).write_text(f'{{"started": {started}}}')
    assert 1.7e9 < _rerun_start(toy.results, cells) < 1e11


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that puts a shell script into the place of a program."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def write(name: str, script: str) -> None:
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return write


def test_odd_lines_of_the_scheduler_are_passed_over(program):
    lines = r"slurm: maintenance at noon\n12_1 RUNNING\n\n13 PENDING extra\n14\n15 PENDING\n"
    program("squeue", rf"printf '{lines}\0\n\377\376\n[[[ ]]] (\n'")
    assert slurm.queue() == {"12_1": "RUNNING", "15": "PENDING"}


@pytest.mark.parametrize("script", [r"printf 'down\377\n' >&2; exit 3", "exit 1", "kill -9 $$"])
def test_a_scheduler_that_fails_is_one_line(program, script):
    program("squeue", script)
    with pytest.raises(UserError, match=r"the scheduler cannot be queried: .") as found:
        slurm.queue()
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("script", ["echo 'Submitted whatever'", "exit 1", r"printf '\377'"])
def test_a_submission_that_fails_is_one_line_and_leaves_no_job(toy, program, capsys, script):
    pytest.importorskip("submitit")
    for name, text in (("squeue", ""), ("srun", ""), ("sbatch", script)):
        program(name, text)
    assert cli.main(command(toy, "run", "--launcher", "slurm")) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("gcdbench: --launcher slurm: sbatch has refused the jobs (")
    assert len(said) == 2
    assert not list(toy.results.glob(f"*/*/*/{heartbeat.JOB}"))


def test_a_note_gives_no_orders_to_the_terminal(toy, capsys):
    folder = records.cell_folder(toy.results, toy.cell())
    folder.mkdir(parents=True)
    note = {"message": "\x1b[2Jall is well\r\udcff", "time": 1.0}
    (folder / heartbeat.FAILURE).write_text(json.dumps(note))
    assert cli.main(command(toy, "status")) == 0
    assert r"\x1b[2Jall is well\r\udcff" in capsys.readouterr().out


def test_the_name_of_a_record_gives_no_orders_to_the_terminal(source, capsys):
    results, folder = source
    folder.parent.rename(folder.parent.with_name("\x1b]0;title\x07"))
    assert cli.main(["results", "verify", str(results)]) == 1
    assert r"\x1b]0;title\x07" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        *("hours: .nan", "hours: -1", "hours: .inf", "hours: 1e300", "memory_gb: .nan"),
        *(
            "memory_gb: -3",
            "memory_gb: 0",
            "memory_gb: 0.0001",
            "notice_seconds: -1",
            "gpus: -1",
            "cpus: 0",
        ),
        'sbatch: {"x\\n#SBATCH --uid": 0}',
        'sbatch: {mail-user: "x\\n#SBATCH --uid=0"}',
        'partition: "a\\nb"',
        "sbatch: {1: 2}",
        "sbatch: {x: [1]}",
    ],
)
def test_a_wrong_request_to_the_cluster_is_refused(tmp_path, line):
    path = tmp_path / "cluster.yaml"
    path.write_text(f"{line}\n")
    with pytest.raises(UserError, match=r"cluster\.yaml"):
        slurm.read_config(path)


def command(toy: Toy, verb: str, *more: str) -> list[str]:
    return toy.command(verb, "--methods", "simgcd", "--datasets", "toy", *more)[3:]


@pytest.mark.parametrize("verb", ["leaderboard", "report", "plot"])
@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/x", "a file", "/dev/full"])
def test_a_report_to_a_bad_place_is_one_sentence(recorded, tmp_path, capsys, verb, place):
    if place == "a file":
        (tmp_path / "file").touch()
        place = str(tmp_path / "file")
    kinds = ["bars"] if verb == "plot" else []
    given = command(recorded[0], verb, "--out", place)
    assert cli.main([given[0], *kinds, *given[1:]]) == 2
    said = capsys.readouterr().err
    assert f"{place}: the report cannot be written" in said
    assert "--out" in said
    assert said.count("\n") == 1


READING = {
    "leaderboard": (0, r"SimGCD +\d+\.\d", "not written: .*: the report cannot be written .*--out"),
    "report": (2, "", "gcdbench: .*: the report cannot be written .* another folder with --out"),
    "plot": (2, "", "gcdbench: .*: the report cannot be written .* another folder with --out"),
    "status": (0, "1 cells: 1 done", ""),
    "plan": (0, "1 cell, 1 done", ""),
    "run": (2, "", "gcdbench: --results .*: cannot be written to"),
    "results verify": (0, "1 valid record", ""),
    "results rescore": (0, "1 unchanged", ""),
}


@pytest.mark.parametrize("verb", READING)
def test_results_of_another_user_can_be_read(source, recorded, tmp_path, capfd, verb):
    results, _ = source
    for path in (results, *results.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    given = command(Toy(recorded[0].suite, results), verb)
    words = [*verb.split(), str(results)] if " " in verb else given
    before = sorted(results.rglob("*"))

    def read() -> None:
        obey_permissions()
        os._exit(cli.main(words))

    code, out, err = READING[verb]
    assert ended(fork(read)) == code
    said = capfd.readouterr()
    assert re.search(out, said.out)
    assert re.search(err, said.err)
    assert "Traceback" not in said.err
    assert sorted(results.rglob("*")) == before
    for path in (results, *results.rglob("*")):
        path.chmod(0o755)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ZeroDivisionError("x")])
def test_a_report_that_fails_does_not_fail_the_run(toy, recorded, capsys, monkeypatch, error):
    def refuse(*rest, **more):
        raise error

    monkeypatch.setattr("gcdbench.report.formats.write_all", refuse)
    assert cli.main(command(recorded[0], "run")) == 0
    assert "the cells are recorded, but there is no report" in capsys.readouterr().err
