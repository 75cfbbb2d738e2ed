"""Pictures of single cells, from a tiny run to files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.toy import make_toy, run_cells
from PIL import Image

from gcdbench.cell_plots import CELL_PLOTS, choice
from gcdbench.cell_plots.attention import TOP, threshold
from gcdbench.cell_plots.clusters import SAME, WRONG, _every_kind, find
from gcdbench.cell_plots.pca import neighbours, project
from gcdbench.cell_plots.trained import Trained
from gcdbench.cli.main import main
from gcdbench.cli.run import without_weights
from gcdbench.core import registry
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.plan import Request, make_cells
from gcdbench.training import weights

PROBES = Path(__file__).parents[1] / "plugins"
CELL = ["--suite", "drawshift", "--quick", "--datasets", "line+solid", "--methods", "hilo"]
TINY = ["--set", "train.draws_per_epoch=64", "--set", "train.batch_size=32"]


@pytest.fixture(scope="module")
def results(tmp_path_factory, cell):
    folder = tmp_path_factory.mktemp("runs")
    run_cells([cell], folder, keep_weights=True)
    return folder


@pytest.fixture(scope="module")
def cell():
    tiny = {"draws_per_epoch": 64, "batch_size": 32}
    request = Request("drawshift", ("hilo",), ("line+solid",), (), {"train": tiny}, quick=True)
    return make_cells(request)[0]


@pytest.fixture(scope="module")
def trained(cell, results):
    return Trained.load(cell, results)


@pytest.mark.parametrize(
    ("kind", "files"),
    [("pca", [""]), ("attention", [""]), ("clusters", ["-line", "-solid"])],
)
def test_a_picture_of_a_cell_is_written_as_png_and_pdf(kind, files, results, tmp_path, capsys):
    words = ["plot", kind, *CELL, *TINY, "--results", str(results), "--out", str(tmp_path)]
    assert main(words) == 0
    name = f"drawshift-quick-{kind}-line+solid-hilo-seed0"
    expected = {f"{name}{file}.{suffix}" for file in files for suffix in ("png", "pdf")}
    assert {path.name for path in tmp_path.iterdir()} == expected
    assert len(capsys.readouterr().out.splitlines()) == len(expected)
    for path in tmp_path.glob("*.png"):
        pixels = np.asarray(Image.open(path).convert("RGB"))
        assert min(pixels.shape[:2]) > 500
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 100


def test_modules_that_were_built_in_begin_fit_are_restored(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_plugins", {kind: {} for kind in registry.KINDS})
    registry.add_plugin(PROBES / "probe_head.py")
    toy = make_toy(tmp_path)
    cell = toy.cell("probe_head")
    run_cells([cell], toy.results, keep_weights=True)
    kept = weights.read(records.cell_folder(toy.results, cell), cell.key)
    model = Trained.load(cell, toy.results).model
    assert "method.second.weight" in kept.tensors
    assert torch.equal(model.method.second.weight, kept.tensors["method.second.weight"])
    untrained = Trained.begun(cell).model.method.second.weight
    assert not torch.equal(model.method.second.weight, untrained)


def test_the_kept_weights_are_those_that_made_the_predictions(trained, cell, results):
    problem, folder = cell.problem(), records.cell_folder(results, cell)
    recorded = np.load(folder / records.PREDICTIONS)["solid"]
    rows = problem.sets["solid"].rows
    features = trained.features(rows)
    assert list(features) == ["domain features (block 1)", "semantic features (block 4)"]
    semantic = torch.from_numpy(features["semantic features (block 4)"])
    with torch.no_grad():
        predicted = trained.model.classify(semantic).argmax(1)
    assert (predicted.numpy() == recorded).mean() > 0.97  # batches differ in the last bits
    untrained = Trained.fresh(cell, problem.num_classes).model
    with torch.no_grad():
        fresh = untrained.classify(semantic).argmax(1)
    assert (fresh.numpy() == recorded).mean() < 0.9


def test_frozen_weights_are_not_kept(cell, results):
    path = records.cell_folder(results, cell) / records.WEIGHTS
    model = Trained.fresh(cell, cell.problem().num_classes).model
    everything = sum(t.numel() for t in model.state_dict().values())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert path.stat().st_size < 4 * (trained + everything) / 2


def test_a_method_without_taps_has_semantic_features_only():
    cell = make_cells(Request("drawshift", ("gcd",), ("line+solid",), quick=True))[0]
    untrained = Trained.fresh(cell, cell.problem().num_classes)
    features = untrained.features(cell.problem().pool[:3])
    assert list(features) == ["semantic features (block 4)"]


def test_weights_that_are_missing_damaged_or_foreign_get_a_sentence(cell, results, tmp_path):
    with pytest.raises(UserError, match="train the cell again and keep them"):
        weights.read(tmp_path, cell.key)
    kept = records.cell_folder(results, cell) / records.WEIGHTS
    (tmp_path / records.WEIGHTS).write_bytes(kept.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be read as weights"):
        weights.read(tmp_path, cell.key)
    (tmp_path / records.WEIGHTS).write_bytes(kept.read_bytes())
    with pytest.raises(UserError, match="of another cell"):
        weights.read(tmp_path, "another")
    with pytest.raises(UserError, match="do not fit the method"):
        weights.read(tmp_path, cell.key).restore(Trained.fresh(cell, 99).model)


def test_weights_move_aside_with_the_record_that_they_belong_to(tmp_path):
    for name in (records.RECORD, records.PREDICTIONS, records.WEIGHTS):
        (tmp_path / name).write_bytes(b"x")
    place = records.set_aside(tmp_path)
    assert (place / records.WEIGHTS).exists()
    assert not (tmp_path / records.WEIGHTS).exists()


def test_recorded_cells_without_weights_are_known(cell, results, tmp_path):
    assert without_weights([cell], results) == []
    assert without_weights([cell], tmp_path) == [cell]


def test_clusters_need_a_record_and_known_sets(results, tmp_path, capsys):
    words = ["plot", "clusters", *CELL, *TINY]
    assert main([*words, "--results", str(tmp_path)]) == 2
    assert "hilo on line+solid, seed 0 has no record; train it first" in capsys.readouterr().err
    assert main([*words, "--results", str(results), "--sets", "solidd"]) == 2
    assert "unknown evaluation set 'solidd'" in capsys.readouterr().err


def test_unknown_plots_get_a_suggestion(capsys):
    assert main(["plot", "atention", *CELL]) == 2
    assert "did you mean 'attention'?" in capsys.readouterr().err


def test_a_block_that_is_not_there_is_refused(trained):
    with pytest.raises(UserError, match="--block 5: the backbone has blocks 1 to 4"):
        trained.attention(trained.problem.pool[:1], 5)


def test_attention_is_a_share_per_head_and_its_outline_holds_a_tenth(trained):
    maps = trained.attention(trained.problem.pool[:2], None)
    assert maps.shape == (2, 3, 64, 64)
    inside = (maps[0, 0] >= threshold(maps[0, 0])).mean()
    assert inside == pytest.approx(TOP, abs=0.01)


def test_principal_components_are_those_of_the_covariance():
    rng = np.random.RandomState(0)
    points = rng.randn(200, 5) * [5, 3, 1, 0.5, 0.1]
    plane, shares = project(points)
    values = np.linalg.eigvalsh(np.cov(points.T))[::-1]
    np.testing.assert_allclose(shares, values[:2] / values.sum())
    np.testing.assert_allclose(np.var(plane, axis=0, ddof=1), values[:2])
    np.testing.assert_allclose(project(points)[0], plane)


def test_neighbours_are_counted_and_compared_with_chance():
    unit = np.array([[1.0, 0], [0.99, 0.1], [0, 1], [0.1, 0.99]])
    text = neighbours(unit, "class", np.array([0, 0, 1, 1]))
    assert text == "nearest image of the same class: 100% (by chance 33%)"


def test_clusters_come_worst_first_with_their_mistakes_by_frequency():
    labels = np.array([0, 0, 0, 1, 1, 1, 2, 2, 0])
    predicted = np.array([7, 7, 7, 7, 4, 4, 7, 7, 4])
    rows = np.arange(100, 109)
    worst, other = find(predicted, labels, rows)
    assert (worst.number, worst.label, worst.size, worst.sought) == (7, 0, 6, 4)
    assert worst.right.tolist() == [100, 101, 102]
    assert worst.wrong.tolist() == [106, 107, 103]  # two of class 2, then one of class 1
    assert (other.number, other.label, other.wrong.tolist()) == (4, 1, [108])


def test_one_wrong_class_does_not_hide_the_others():
    labels = np.array([5] * 20 + [6, 7])
    chosen = _every_kind(np.arange(22), labels)
    assert len(chosen) == WRONG
    assert set(labels[chosen]) == {5, 6, 7}
    assert (labels[chosen[:SAME]] == 5).all()


def test_severities_of_a_corruption_are_one_domain():
    problem = make_cells(Request("drawshift-c", ("gcd",), quick=True))[0].problem()
    found = choice.domains(problem, 5)
    assert next(iter(found)) == next(n for n, s in problem.sets.items() if s.role == "source")
    assert not any("/" in name for name in found)
    assert max(map(len, found.values())) == 5


def test_the_farthest_points_are_chosen():
    points = np.array([[0.0, 0], [1, 1], [10, 0], [10.1, 0], [0, 9]])
    assert set(choice.spread(points, 3)) == {0, 3, 4}


@pytest.mark.parametrize("name", CELL_PLOTS)
def test_every_picture_offered_has_a_module_that_draws_it(name):
    assert callable(import_module(f"gcdbench.cell_plots.{name}").draw)
