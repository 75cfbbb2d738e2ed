"""Weights that were exported are loaded back: for evaluate, for plot, and as a backbone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import huggingface_hub
import numpy as np
import pytest
import timm
import torch
from helpers.hub_cache import put_folder_into_cache
from safetensors.torch import load_file

from gcdbench.cell_plots.trained import Trained
from gcdbench.cli.main import main
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.key import key_of
from gcdbench.sharing.exported_weights import MODEL, cell_of, evaluate_again, export, import_weights


@pytest.fixture(scope="module")
def exported(toy, cell, tmp_path_factory):
    out = tmp_path_factory.mktemp("models") / "simgcd"
    export(records.cell_folder(toy.results, cell), out)
    return out


@pytest.fixture
def copy(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "copy")


def test_the_cell_of_a_record_has_its_settings_and_key(toy, cell):
    record = records.read_record(records.cell_folder(toy.results, cell) / records.RECORD)
    again = cell_of(record)
    assert again.settings() == record.settings
    assert again.key == record.key


def test_exported_weights_give_the_recorded_predictions_without_the_first_file(toy, exported):
    moved = (toy.suite.parent / "tiny.safetensors").rename(toy.suite.parent / "away.safetensors")
    try:
        record, found = evaluate_again(str(exported))
    finally:
        moved.rename(toy.suite.parent / "tiny.safetensors")
    recorded = records.read_predictions(exported, record)
    for name, predicted in found.predictions.items():
        np.testing.assert_array_equal(predicted, recorded[name])
    assert {n: s["all"] for n, s in found.scores.sets.items()} == {
        n: s.all for n, s in record.sets.items()
    }


def test_the_exported_backbone_is_the_trained_one_under_timms_names(toy, exported, tmp_path):
    whole, before = load_file(exported / MODEL), load_file(toy.suite.parent / "tiny.safetensors")
    assert whole.keys() == before.keys()
    changed = {name for name in whole if not torch.equal(whole[name], before[name])}
    last = max(name.split(".")[1] for name in whole if name.startswith("blocks."))
    assert changed
    assert all(name.startswith(f"blocks.{last}.") for name in changed)
    for name in (MODEL, "config.json"):  # older timm fails in a folder with two files of weights
        shutil.copy(exported / name, tmp_path)
    vit = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = torch.rand(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    config = json.loads((exported / "config.json").read_text())
    assert config["architecture"] == "test_vit"
    vit2 = timm.create_model("test_vit", num_classes=0).eval()
    vit2.load_state_dict(whole)
    with torch.no_grad():
        assert torch.equal(vit(images), vit2(images))


def test_imported_weights_are_found_by_plot(toy, cell, exported, tmp_path, capsys):
    assert main(["results", "import-weights", str(exported), "--into", str(tmp_path)]) == 0
    there = records.cell_folder(tmp_path, cell)
    assert capsys.readouterr().out == f"written: {there}\n"
    assert records.is_done(tmp_path, cell)
    rows = cell.problem().pool[:4]
    one, other = (Trained.load(cell, place).features(rows) for place in (toy.results, tmp_path))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_a_model_of_the_hub_is_evaluated_from_its_cache(exported, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    put_folder_into_cache(tmp_path, "lab/trained", exported)
    assert main(["evaluate", "--weights", "hf-hub:lab/trained"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == ["domain", "All", "Old", "New", "NMI", "ARI", "images"]
    assert "simgcd on toy, seed 0: the accuracies of its record" in err
    assert main(["evaluate", "--weights", "hf-hub:lab/absent"]) == 2
    assert "hf-hub:lab/absent is not on this machine and cannot be" in capsys.readouterr().err


def test_the_command_exports_what_has_weights_and_writes_a_card(toy, cell, tmp_path, capsys):
    words = ["results", "export-weights", str(toy.results), "--out", str(tmp_path)]
    assert main(words) == 0
    folder = tmp_path / "simgcd-toy-seed0"
    assert capsys.readouterr().out == f"written: {folder}\n"
    card = (folder / "README.md").read_text()
    record = records.read_record(folder / records.RECORD)
    for name, one in record.sets.items():
        assert f"| {name} | {one.role} | {one.n} | {100 * one.all:.1f} |" in card
    assert f"key `{cell.key}`" in card
    assert main([*words, "--methods", "gcd"]) == 2
    assert "has weights; train with gcdbench run ... --keep-weights" in capsys.readouterr().err


def test_weights_of_another_cell_and_altered_records_are_refused(copy, tmp_path):
    content = json.loads((copy / records.RECORD).read_text())
    content["sets"]["ink"]["all"] = 1.0
    (copy / records.RECORD).write_text(json.dumps(content))
    with pytest.raises(UserError, match="does not match its checksum"):
        import_weights(str(copy), tmp_path / "results")
    with pytest.raises(UserError, match="does not match its checksum"):
        evaluate_again(str(copy))


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", "cache"])
def test_a_record_whose_names_leave_the_results_folder_is_refused(copy, tmp_path, name):
    record = records.read_record(copy / records.RECORD)
    settings = {**record.settings, "dataset": name}
    key = key_of(settings, record.fingerprints)
    forged = replace(record, dataset=name, settings=settings, key=key)
    (copy / records.RECORD).write_bytes(records.as_bytes(forged))
    with pytest.raises(UserError):
        import_weights(str(copy), tmp_path / "results")
    assert not (tmp_path / "results").exists()
