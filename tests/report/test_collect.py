"""From files to a table: which records count, and what is said about those that do not."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
from helpers.synthetic_records import TIMING, record_of, scores, set_scores

from gcdbench.errors import UserError
from gcdbench.experiment.key import key_of
from gcdbench.experiment.plan import Request, make_cells
from gcdbench.experiment.records import RECORD, cell_folder, differences, read_record, write_record
from gcdbench.report.collect import Place, collect
from gcdbench.report.correctness import right, right_images
from gcdbench.report.plots import NothingToDraw
from gcdbench.report.plots.sensitivity import sensitivity
from gcdbench.report.sensitivity import collect_varied

REQUEST = Request("drawshift", ("simgcd", "gcd"), ("line+solid",), (0, 1), quick=True)


def write(results, cell, **changes):
    """Write the record of a real cell with invented predictions; return its folder."""
    problem = cell.problem()
    rng = np.random.RandomState(cell.seed)
    preds, sets = {}, {}
    for name, evaluated in problem.sets.items():
        labels = problem.labels[evaluated.rows]
        hit = rng.random_sample(len(labels)) < 0.6
        preds[name] = np.where(hit, labels, rng.randint(problem.num_classes, size=len(labels)))
        sets[name] = scores(preds[name], labels, problem.num_old, evaluated.role)
    folder = cell_folder(results, cell)
    write_record(folder, record_of(cell, **{"sets": sets} | changes), preds)
    return folder


@pytest.fixture
def cells():
    return make_cells(REQUEST)


def test_exactly_the_requested_cells_are_read(cells, tmp_path):
    folders = [write(tmp_path, cell) for cell in cells[:-1]]
    write(tmp_path, make_cells(dataclasses.replace(REQUEST, seeds=(7,)))[0])
    found = collect(REQUEST, tmp_path)
    assert [r.key for r in found.records] == [cell.key for cell in cells[:-1]]
    assert found.missing == [Place("line+solid", cells[-1].spec.text, cells[-1].seed)]
    assert sorted(found.folders.values()) == sorted(folders)
    assert found.left_out == []
    assert set(found.table["set"]) == {"line", "solid"}
    assert len(found.table) == 3 * 2 * 3


def test_a_record_with_a_changed_number_is_damaged_and_left_out(cells, tmp_path):
    for cell in cells:
        folder = write(tmp_path, cell)
    text = (folder / RECORD).read_text()
    (folder / RECORD).write_text(text.replace('"seed": 1', '"seed": 2'))
    found = collect(REQUEST, tmp_path)
    assert len(found.records) == len(cells) - 1
    (left_out,) = found.left_out
    assert left_out.kind == "damaged"
    assert str(left_out) == f"{(folder / RECORD).relative_to(tmp_path)} does not match its checksum"


def test_half_a_record_is_damaged_and_left_out(cells, tmp_path):
    folder = write(tmp_path, cells[0])
    (folder / RECORD).write_bytes((folder / RECORD).read_bytes()[:200])
    found = collect(REQUEST, tmp_path)
    assert found.records == []
    assert [one.kind for one in found.left_out] == ["damaged"]


def test_a_record_of_other_settings_is_stale_and_says_why(cells, tmp_path):
    other = dataclasses.replace(REQUEST, assignments={"train": {"lr": 0.01}})
    write(tmp_path, make_cells(other)[0])
    found = collect(REQUEST, tmp_path)
    assert found.records == []
    (left_out,) = found.left_out
    assert left_out.kind == "stale"
    assert f"train.lr 0.01 instead of {cells[0].train.lr}" in left_out.reason


def test_a_record_of_other_code_is_stale_and_says_why(cells, tmp_path):
    prints = {**cells[0].fingerprints(), "code": "0"}
    write(tmp_path, cells[0], fingerprints=prints)
    (left_out,) = collect(REQUEST, tmp_path).left_out
    assert (left_out.kind, left_out.reason) == ("stale", "is of another version (code changed)")


def write_of_other_code(results, cell, code="0", **changes):
    """Write a record of a cell by another version of the code, under a key of its own."""
    settings = changes.pop("settings", cell.settings())
    prints = {**cell.fingerprints(), "code": code, **changes.pop("prints", {})}
    key = key_of(settings, prints)
    place = cell_folder(results, cell)
    made = write(results, cell, key=key, settings=settings, fingerprints=prints, **changes)
    return made.rename(place.with_name(f"seed{cell.seed}-{key}"))


def test_records_of_any_code_count_if_asked(cells, tmp_path):
    folder = write_of_other_code(tmp_path, cells[0])
    assert collect(REQUEST, tmp_path).records == []
    found = collect(REQUEST, tmp_path, any_code=True)
    (record,) = found.records
    assert found.folders == {record.key: folder}
    assert len(found.missing) == len(cells) - 1
    assert found.left_out == []


def test_of_several_versions_the_own_one_counts_and_else_the_newest(cells, tmp_path):
    for code, started in (("1", 10.0), ("2", 30.0), ("3", 20.0)):
        timing = dataclasses.replace(TIMING, started=started)
        write_of_other_code(tmp_path, cells[0], code, timing=timing)
    found = collect(REQUEST, tmp_path, any_code=True)
    assert [r.fingerprints["code"] for r in found.records] == ["2"]
    assert {one.reason for one in found.left_out} == {
        "is of another version than the record that is used"
    }
    write(tmp_path, cells[0])
    found = collect(REQUEST, tmp_path, any_code=True)
    assert [r.key for r in found.records] == [cells[0].key]
    assert len(found.left_out) == 3


def test_other_settings_or_another_split_do_not_count_whatever_the_code(cells, tmp_path):
    settings = cells[0].settings()
    changed = {**settings, "train": {**settings["train"], "momentum": 0.5}}
    write_of_other_code(tmp_path, cells[0], settings=changed)
    write_of_other_code(tmp_path, cells[0], prints={"problem": "another"})
    found = collect(REQUEST, tmp_path, any_code=True)
    assert found.records == []
    assert len(found.left_out) == 2


def test_settings_that_are_gone_or_new_with_their_default_do_not_matter(cells, tmp_path):
    settings = cells[0].settings()
    train = {name: value for name, value in settings["train"].items() if name != "min_lr_share"}
    old = {**settings, "train": {**train, "long_gone": 1}}
    write_of_other_code(tmp_path, cells[0], settings=old)
    assert len(collect(REQUEST, tmp_path, any_code=True).records) == 1
    given = dataclasses.replace(REQUEST, assignments={"train": {"min_lr_share": 0.5}})
    assert collect(given, tmp_path, any_code=True).records == []


def test_sensitivity_takes_records_of_any_code_if_asked(cells, tmp_path):
    settings = cells[0].settings()
    changed = {**settings, "train": {**settings["train"], "lr": 0.123}}
    write_of_other_code(tmp_path, cells[0], settings=changed)
    with pytest.raises(UserError, match="no record of these cells"):
        collect_varied(REQUEST, tmp_path, "train.lr")
    varied = collect_varied(REQUEST, tmp_path, "train.lr", any_code=True)
    assert set(varied.table["value"]) == {0.123}


def test_a_record_in_the_wrong_place_is_foreign(cells, tmp_path):
    folder = write(tmp_path, cells[0])
    copy = tmp_path / "line+solid" / "gcd" / folder.name
    shutil.copytree(folder, copy)
    found = collect(REQUEST, tmp_path)
    assert len(found.records) == 1
    (left_out,) = found.left_out
    assert left_out.kind == "foreign"
    assert "does not belong there but into line+solid/simgcd/" in left_out.reason


def test_a_record_that_lacks_a_field_is_damaged(cells, tmp_path):
    write(tmp_path, cells[0], sets=None)
    (left_out,) = collect(REQUEST, tmp_path).left_out
    assert (left_out.kind, "sets is missing" in left_out.reason) == ("damaged", True)


def test_records_of_a_method_that_is_not_here_are_foreign(cells, tmp_path):
    write(tmp_path, cells[0])
    folder = tmp_path / "line+solid" / "gone" / f"seed0-{cells[0].key}"
    record = read_record(cell_folder(tmp_path, cells[0]) / RECORD)
    write_record(folder, dataclasses.replace(record, method="gone"), {})
    found = collect(dataclasses.replace(REQUEST, methods=()), tmp_path)
    assert [one.reason for one in found.left_out] == ["is of gone, which is not here"]
    assert [r.method for r in found.records] == ["simgcd"]


def test_without_named_methods_all_recorded_ones_are_read(cells, tmp_path):
    write(tmp_path, cells[0])
    found = collect(dataclasses.replace(REQUEST, methods=()), tmp_path)
    assert {place.method for place in found.planned} == {"simgcd"}
    assert len(found.missing) == 1


def test_no_records_at_all_say_how_to_make_some(tmp_path):
    with pytest.raises(UserError, match="gcdbench run --suite drawshift"):
        collect(dataclasses.replace(REQUEST, methods=()), tmp_path)


def test_a_cell_does_not_differ_from_its_own_record(cells, tmp_path):
    folder = write(tmp_path, cells[0])
    assert differences(read_record(folder / RECORD), cells[0]) == ""


def test_right_images_are_those_that_the_evaluator_counts():
    from gcdbench.ops.metrics import accuracies

    rng = np.random.RandomState(0)
    for _ in range(30):
        preds, labels = rng.randint(9, size=40), rng.randint(7, size=40)
        hit = right(preds, labels)
        found = accuracies(preds=preds, labels=labels, num_old=4)
        assert hit.mean() == pytest.approx(found.all)
        assert hit[labels < 4].mean() == pytest.approx(found.old)
        assert hit[labels >= 4].mean() == pytest.approx(found.new)


def test_predictions_must_be_whole_and_give_the_recorded_accuracy(cells, tmp_path):
    folder = write(tmp_path, cells[0])
    found = collect(REQUEST, tmp_path)
    record, truth = found.records[0], found.truths["line+solid"]
    hits = right_images(record, folder, truth, ["line", "solid"])
    assert {name: hit.mean() for name, hit in hits.items()} == {
        name: pytest.approx(record.sets[name].all) for name in ("line", "solid")
    }
    wrong = dataclasses.replace(record, sets={"line": set_scores("source", 0.123)})
    assert "do not give the recorded accuracy" in right_images(wrong, folder, truth, ["line"])
    file = folder / "predictions.npz"
    file.write_bytes(file.read_bytes()[:-1])
    assert "do not match their checksum" in right_images(record, folder, truth, ["line"])
    file.unlink()
    assert "no readable predictions" in right_images(record, folder, truth, ["line"])


def test_records_that_differ_in_one_setting_only_are_put_side_by_side(cells, tmp_path):
    usual = cells[0].train.lr
    for rate in (usual, 0.01, 0.001):
        request = dataclasses.replace(REQUEST, assignments={"train": {"lr": rate}})
        write(tmp_path, make_cells(request)[0])
    both = {"train": {"lr": 0.5, "momentum": 0.1}}
    write(tmp_path, make_cells(dataclasses.replace(REQUEST, assignments=both))[0])
    varied = collect_varied(REQUEST, tmp_path, "train.lr")
    assert sorted(varied.table["value"].unique()) == [0.001, 0.01, usual]
    assert not varied.defaults  # the two methods have different ones
    alone = dataclasses.replace(REQUEST, methods=("simgcd",))
    assert collect_varied(alone, tmp_path, "train.lr").defaults == {"line+solid": usual}
    figure = sensitivity(varied)
    assert [axis.get_xscale() for axis in figure.axes] == ["log", "log"]
    with pytest.raises(NothingToDraw, match=r"differ in no value of train\.momentum"):
        sensitivity(collect_varied(REQUEST, tmp_path, "train.momentum"))
    with pytest.raises(UserError, match=r"did you mean 'train.lr'"):
        collect_varied(REQUEST, tmp_path, "train.lrr")


def test_the_number_of_classes_can_be_varied_around_the_true_one(tmp_path):
    true = make_cells(REQUEST)[0].problem().num_classes
    for told in (None, true // 2, 2 * true):
        request = dataclasses.replace(REQUEST, assignments={"task": {"num_classes": told}})
        write(tmp_path, make_cells(request)[0])
    varied = collect_varied(REQUEST, tmp_path, "task.num_classes")
    assert sorted(varied.table["value"].unique()) == [true // 2, true, 2 * true]
    assert set(varied.defaults.values()) == {true}
    axis = sensitivity(varied).axes[0]
    assert [line.get_xdata()[0] for line in axis.lines if line.get_linestyle() == ":"] == [true]
