"""What ``gcdbench doctor`` finds and computes."""

from __future__ import annotations

import json

import pytest

from gcdbench.cli.doctor import advise, describe
from gcdbench.cli.doctor.machine import cores, free_space, memory
from gcdbench.cli.doctor.measure import CellTime, Speed, cell_time, rate
from gcdbench.cli.main import main
from gcdbench.nn import hub
from gcdbench.runner.cost import backbone_size
from tests.helpers.toy import BATCH, EPOCHS, STEPS, Toy, make_toy


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("doctor"))


def test_a_machine_is_described_and_measured(toy, capsys):
    words = ["doctor", "--suite", str(toy.suite), "--methods", "simgcd", "cms", "--device", "cpu"]
    words += ["--results", str(toy.results), "--seconds", "1"]
    assert main(words) == 0
    text = capsys.readouterr().out
    for line in ("versions  gcdbench ", "memory    ", "data      toy: there", "loading   "):
        assert line in text
    assert "weights   test_vit: there" in text
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["speed"]["loading"] > 0
    assert set(facts["speed"]["step"]) == {"simgcd", "cms"}
    assert [one["method"] for one in facts["cells"]] == ["simgcd", "cms"]
    assert all(one["seconds"] > 0 and one["limit"] in one["parts"] for one in facts["cells"])


def test_missing_data_and_weights_are_told_without_a_measurement(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "find_weights", lambda config: hub.Weights("timm/some", False))
    monkeypatch.setattr(hub, "unreachable", lambda found: ConnectionError("no network"))
    words = ["doctor", "--suite", "ssb-c", "--data-root", str(tmp_path), "--seconds", "0"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "data      cub-c: CUB-200-2011 is not there: " in text
    assert "the hub (timm/some) cannot be reached (ConnectionError)" in text
    assert "measured" not in text


def test_without_data_the_drawings_stand_in_and_loading_is_not_measured(toy, capsys, tmp_path):
    suite = tmp_path / "absent.yaml"
    suite.write_text(toy.suite.read_text().replace("pictures", "no-pictures"))
    words = ["doctor", "--suite", str(suite), "--methods", "simgcd", "--seconds", "1", "--json"]
    assert main([*words, "--device", "cpu"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["speed"]["loading"] is None
    assert facts["speed"]["step"]["simgcd"] > 0


@pytest.mark.parametrize("bank", [0, 2])
def test_the_time_of_a_cell_is_the_sum_of_its_passes(toy, bank):
    cell = toy.cell("simgcd", train={"view_bank": bank})
    assert backbone_size(cell.backbone.name) is not None
    speed = Speed(loading=50.0, trunk=10.0, step={"simgcd": 4.0}, batch=8, random_weights=False)
    views, pool = 2 * EPOCHS * STEPS * BATCH, len(cell.problem().pool)
    found = cell_time(cell, speed)
    if bank:
        passed = bank * pool + pool
        expected = passed / 50 + passed / 10 + views / 4
    else:
        expected = (views + pool) / 50 + views / 4 + pool / 10
    assert found.seconds == pytest.approx(expected)
    assert found.limit == "heads and losses"


def test_a_rate_counts_rows_per_second(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    assert rate(lambda: 6, 3.0) == 6.0


def test_advice_names_what_disturbs_and_what_is_needed():
    slow = CellTime("cub-c", "hilo", {"loading": 1e6, "frozen blocks": 1.0})
    facts = {"load": 9.0, "cores": 2.0, "gpus": [], "suite": "ssb-c"}
    assert len(advise(facts, [slow])) == 3
    fast = CellTime("toy", "hilo", {"loading": 1.0, "frozen blocks": 2.0})
    assert advise({**facts, "load": 1.0}, [fast]) == []


def test_a_containers_limits_count(tmp_path):
    quota, listed, limit = (tmp_path / name for name in ("cpu.max", "meminfo", "memory.max"))
    quota.write_text("50000 100000\n")
    assert cores(quota) == 0.5
    quota.write_text("max 100000\n")
    assert cores(quota) == cores(tmp_path / "no-such-file")
    listed.write_text("MemTotal: 2000 kB\nMemFree: 1 kB\nMemAvailable:  1000 kB\n")
    assert memory(listed, limit) == {"total": 2_048_000, "available": 1_024_000}
    limit.write_text("1500000")
    assert memory(listed, limit) == {"total": 1_500_000, "available": 1_024_000}
    assert memory(tmp_path / "no-such-file") is None


def test_a_folder_that_is_not_there_yet_has_the_space_of_its_disk(tmp_path):
    assert free_space(tmp_path / "a" / "b") > 0


def test_a_gpu_that_torch_cannot_use_is_told():
    facts = {
        "versions": dict.fromkeys(("gcdbench", "python", "torch", "timm", "faiss-gpu", "cuda"), 1),
        **{"gpus": [], "driver_without_torch": True, "cores": 2, "processor": "", "load": 0},
        **{"memory": None, "disk": {}, "data": {}, "weights": {}},
    }
    assert "install a build of torch with CUDA" in describe(facts)
