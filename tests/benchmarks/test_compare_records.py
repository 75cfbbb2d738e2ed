"""Two results folders are compared cell by cell; every kind of difference is found."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.synthetic_records import SETTINGS, TIMING, make_record, set_scores

from gcdbench.experiment import records
from gcdbench.experiment.record import CurvePoint, SplitAccuracies

SCRIPT = ROOT / "benchmarks" / "compare_records.py"
PREDICTED = {"ink": np.arange(10)}
CURVE = (CurvePoint(0, 0.1, {"loss": 0.5}, {"ink": SplitAccuracies(0.2, 0.2, None)}),)
USUAL = {"sets": {"ink": set_scores("source", 0.5, new=None)}, "curve": CURVE}


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module("compare_records")


def write(results, predicted=PREDICTED, **given):
    record = make_record(**USUAL | given)
    folder = results / record.dataset / record.method / f"seed{record.seed}-{record.key}"
    return records.write_record(folder, record, predicted)


@pytest.fixture
def compare(script, tmp_path, capsys):
    """Return a function that compares two folders and returns exit code and lines."""

    def run(*flags: str) -> tuple[int, list[str]]:
        code = script.main([str(tmp_path / "a"), str(tmp_path / "b"), *flags])
        return code, capsys.readouterr().out.splitlines()

    return run


def test_cells_that_differ_in_code_and_time_only_are_equal(compare, tmp_path):
    write(tmp_path / "a")
    slower = replace(TIMING, wall_seconds=100.0)
    write(tmp_path / "b", fingerprints={"code": "newer"}, timing=slower, scores="newer")
    assert compare() == (
        0,
        [
            "m on toy, seed 0: accuracies equal, predictions equal, curves equal",
            "1 cells are equal, 0 differ, 0 are missing",
        ],
    )


LOSS = (replace(CURVE[0], terms={"loss": 0.75}),)
SCORED = (replace(CURVE[0], sets={"ink": SplitAccuracies(0.2, 0.45, None)}),)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sets": {"ink": set_scores("source", 0.5, old=0.25, new=None)}}, "0.25 (ink old)"),
        ({"sets": {"ink": set_scores("source", 0.5)}}, "accuracies differ by inf (ink new)"),
        ({"summary": {"pooled": set_scores("", 0.5)}}, "accuracies only one has pooled all"),
        ({"curve": LOSS}, "curves differ by 0.25 (epoch 1 loss)"),
        ({"curve": SCORED}, "curves differ by 0.25 (epoch 1 ink old)"),
        ({"curve": ()}, "curves only one has epoch 1 ink all"),
        ({"predicted": {"ink": np.arange(10) // 9}}, "predictions differ by 0.9 (share of ink)"),
        ({"predicted": {"ink": np.arange(9)}}, "predictions ink has other sizes"),
        ({"predicted": {}}, "predictions only one has ink"),
    ],
)
def test_a_difference_is_named_with_its_size(compare, tmp_path, change, said):
    write(tmp_path / "a")
    write(tmp_path / "b", **change)
    code, lines = compare()
    assert code == 1
    assert said in lines[0]
    assert lines[1] == "0 cells are equal, 1 differ, 0 are missing"


def test_the_last_bit_counts(compare, tmp_path):
    write(tmp_path / "a")
    write(
        tmp_path / "b", sets={"ink": set_scores("source", np.nextafter(0.5, 1), old=0.5, new=None)}
    )
    assert compare()[0] == 1


def test_cells_of_one_folder_only_are_missing(compare, tmp_path):
    write(tmp_path / "a")
    for seed in (0, 1):
        write(tmp_path / "b", seed=seed)
    code, lines = compare()
    assert (code, lines[1]) == (1, f"m on toy, seed 1: missing in {tmp_path / 'a'}")
    assert compare("--subset")[0] == 0
    write(tmp_path / "a", seed=2)
    code, lines = compare("--subset")
    assert (code, lines[1]) == (1, f"m on toy, seed 2: missing in {tmp_path / 'b'}")


def test_settings_tell_cells_apart_unless_only_one_has_them(compare, tmp_path):
    train = SETTINGS["train"]
    for rate in (0.1, 0.2):
        write(tmp_path / "a", settings={"train": {**train, "lr": rate}})
        new = {**train, "lr": rate, "added_later": 1}
        write(tmp_path / "b", settings={"train": new})
    assert compare()[0] == 0
    write(tmp_path / "a", settings={"train": {**train, "lr": 0.3}})
    assert compare()[1][-1] == "2 cells are equal, 0 differ, 1 are missing"


def test_two_files_are_compared_and_damaged_ones_refused(script, tmp_path):
    one, other = write(tmp_path / "a"), write(tmp_path / "b")
    assert script.main([str(one), str(other)]) == 0
    other.write_text("{")
    with pytest.raises(SystemExit, match="cannot be read"):
        script.main([str(one), str(other)])
    with pytest.raises(SystemExit, match="no records"):
        script.main([str(tmp_path / "nowhere"), str(one)])


def test_comparing_does_not_import_torch(tmp_path):
    path = str(write(tmp_path))
    code = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import compare_records as c; "
    code += f"sys.exit(c.main([{path!r}, {path!r}]) or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
