"""What is asked of a cluster is checked before anything is submitted; a real one: tests/slurm."""

from __future__ import annotations

import sys

import pytest
from helpers.toy import make_toy

from gcdbench.cli.main import main
from gcdbench.errors import UserError
from gcdbench.runner.launchers import slurm


def config(tmp_path, text: str) -> slurm.SlurmConfig:
    path = tmp_path / "slurm.yaml"
    path.write_text(text, encoding="utf-8")
    return slurm.read_config(path)


def test_the_file_becomes_what_a_job_asks_for(tmp_path):
    text = "partition: gpu\ngpus: 1\ncpus: 8\nmemory_gb: 1.5\nhours: 0.5\nsbatch: {nice: 100}\n"
    asked = config(tmp_path, text).parameters(processes=2)
    expected = {"partition": "gpu", "gpus_per_node": 2, "cpus_per_task": 16, "mem": "1536M"}
    assert {name: asked[name] for name in expected} == expected
    assert asked["time"] == 30
    assert asked["additional_parameters"] == {"requeue": True, "nice": 100}


def test_a_cluster_without_gpus_is_not_asked_for_any(tmp_path):
    assert "gpus_per_node" not in config(tmp_path, "gpus: 0\n").parameters(processes=2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("partion: gpu\n", "partion"),
        ("gpus: two\n", "expected a whole number"),
        ("hours: 1\nhours: 2\n", "given twice"),
        ("sbatch: [nice]\n", "must be a mapping"),
        ("cpus: 0\n", "at least 1"),
    ],
)
def test_a_mistake_in_the_file_is_refused_with_its_place(tmp_path, text, reason):
    with pytest.raises(UserError, match=reason) as caught:
        config(tmp_path, text)
    assert "slurm.yaml" in str(caught.value)


def test_without_submitit_one_sentence_names_the_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert (
        main([*make_toy(tmp_path).command("run", "--methods", "simgcd")[3:], "--launcher", "slurm"])
        == 2
    )
    assert "pip install 'gcdbench[slurm]'" in capsys.readouterr().err


def test_a_scheduler_that_cannot_be_asked_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="the scheduler cannot be queried"):
        slurm.queue()
