"""Frozen features are keyed by the weights and modules that compute them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.toy import Toy, make_toy
from torch import nn

from gcdbench.cli.plugins import findings
from gcdbench.core import registry
from gcdbench.core.paths import bundled
from gcdbench.experiment import records
from gcdbench.experiment.plan import Cell
from gcdbench.training.conformance import tiny_backbone
from gcdbench.training.features.trunk import Trunk, trunk_digest

CPU = torch.device("cpu")
CHANGES = {
    "scales a block": "backbone.vit.blocks[0].mlp.fc1.weight.data.mul_(3.0)",
    "replaces a module": "backbone.vit.blocks[0].mlp.act = __import__('torch').nn.Tanh()",
    "adds a hook": "backbone.vit.blocks[0].register_forward_hook(lambda m, x, y: y * 2)",
    "patches a function": "backbone.vit.blocks[0].forward = lambda x: x",
    "changes a buffer": "backbone.mean.add_(0.2)",
}


def write_plugin(folder: Path, change: str, *, declared: bool = False) -> str:
    """Write SimGCD under another name, whose __init__ changes the frozen part of the backbone."""
    text = (bundled("methods") / "simgcd.py").read_text()
    text = text.replace(
        "super().__init__(config, task, backbone)",
        f"super().__init__(config, task, backbone)\n        {change}",
    )
    if declared:
        text = text.replace("    provides:", "    changes_frozen = True\n    provides:", 1)
    (folder / "poison.py").write_text(text)
    assert change in text
    registry.add_plugin(folder / "poison.py")
    return "poison"


@pytest.fixture
def fresh_registry(monkeypatch):
    monkeypatch.setattr(registry, "_plugins", {kind: {} for kind in registry.KINDS})


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("toy"))


def predictions(toy: Toy, cell: Cell) -> dict[str, np.ndarray]:
    folder = records.cell_folder(toy.results, cell)
    with np.load(folder / records.PREDICTIONS) as archive:
        return dict(archive)


def curve(toy: Toy, cell: Cell) -> str:
    return (
        (records.cell_folder(toy.results, cell) / records.RECORD).read_text().split('"dataset"')[0]
    )


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("cache", [False, True])
def test_a_method_that_changes_the_trunk_does_not_reach_the_next_cell(
    made, tmp_path, fresh_registry, change, cache
):
    toy, alone = made.elsewhere(tmp_path.name), made.elsewhere(f"{tmp_path.name}-alone")
    name = write_plugin(tmp_path, change)
    options = {"cache": tmp_path / "cache", "cache_bytes": 10**8} if cache else {}
    poison, simgcd = toy.cell(name), toy.cell("simgcd")
    if cache:  # two runs, as of two processes, with nothing in common but the disk
        assert toy.run([poison], **options).trained == [poison]
        assert toy.run([simgcd], **options).trained == [simgcd]
    else:
        assert toy.run([poison, simgcd]).trained == [poison, simgcd]
    alone.run([simgcd])
    found, expected = predictions(toy, simgcd), predictions(alone, simgcd)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert curve(toy, simgcd) == curve(alone, simgcd)


def test_what_changes_the_trunk_changes_its_own_numbers(made, tmp_path, fresh_registry):
    toy = made.elsewhere(tmp_path.name)
    name = write_plugin(tmp_path, CHANGES["scales a block"])
    cells = [toy.cell("simgcd"), toy.cell(name)]
    toy.run(cells)
    assert curve(toy, cells[0]) != curve(toy, cells[1])


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_check_asks_to_declare_a_changed_trunk(tmp_path, fresh_registry, change):
    write_plugin(tmp_path, change)
    problems = [one.problem for one in findings("poison") if one.problem]
    assert any("declare it (changes_frozen = True)" in problem for problem in problems)


def test_a_declared_change_passes_check(tmp_path, fresh_registry):
    write_plugin(tmp_path, CHANGES["scales a block"], declared=True)
    assert [one.problem for one in findings("poison") if one.problem] == []


def test_the_key_is_shared_until_the_trunk_is_changed():
    backbone = tiny_backbone()
    trunk = Trunk(backbone, CPU, owner="a cell")
    assert trunk.key(backbone) == trunk_digest(tiny_backbone(), CPU)
    backbone.vit.blocks[-1].mlp.fc1.weight.data.mul_(2)  # trained
    assert trunk.key(backbone) == trunk.digest
    backbone.vit.norm.weight.data.mul_(2)  # frozen
    assert trunk.key(backbone) != trunk.digest


def test_two_cells_with_changed_trunks_share_nothing():
    keys = set()
    for owner in ("one", "other"):
        backbone = tiny_backbone()
        trunk = Trunk(backbone, CPU, owner=owner)
        backbone.vit.blocks[0].mlp.act = nn.Tanh()
        keys.add(trunk.key(backbone))
    assert len(keys) == 2


def test_another_backbone_in_place_of_the_loaded_one_is_a_change():
    backbone = tiny_backbone()
    assert Trunk(backbone, CPU, owner="a cell").key(tiny_backbone()) != trunk_digest(backbone, CPU)
