"""Wrong files and wrong values: exit code 2, one sentence with the place, nothing trained."""

from __future__ import annotations

import re

import pytest
from helpers.toy import Toy

from gcdbench.cli import main as cli

pytestmark = pytest.mark.faults


def refused(toy: Toy, capsys, *arguments: str) -> str:
    """Ask for a run that is refused and return the sentence."""
    assert cli.main(toy.command("run", "--methods", "simgcd", *arguments)[3:]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.count("\n") == 1
    assert not list(toy.results.glob("*/*"))
    return said


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("class Broken(Method:\n", "line 1: not valid Python"),
        ("x = 1\n", "defines no class derived from Method, Technique, Dataset"),
        ("\0", "not valid Python|cannot be read"),
    ],
    ids=["syntax", "no class", "not text"],
)
def test_a_plugin_that_cannot_be_read(toy, tmp_path, capsys, text, reason):
    path = tmp_path / "broken.py"
    path.write_text(text)
    said = refused(toy, capsys, "--plugin", str(path))
    assert str(path) in said
    assert re.search(reason, said)


def test_a_plugin_that_is_not_there(toy, capsys):
    assert "nowhere.py: no such file" in refused(toy, capsys, "--plugin", "nowhere.py")


def test_a_plugin_that_cannot_be_imported_fails_its_cells_only(toy, tmp_path, capsys):
    path = tmp_path / "needy.py"
    path.write_text(
        "import a_package_that_is_not_there\n"
        "from gcdbench.training.method import Technique\n\n\n"
        "class Needy(Technique):\n    pass\n"
    )
    command = toy.command("run", "--methods", "simgcd+needy", "--datasets", "toy")[3:]
    assert cli.main([*command, "--plugin", str(path)]) == 1
    said = capsys.readouterr().err
    assert "cannot be imported (ModuleNotFoundError" in said
    assert "1 of 1 cells failed" in said


def edited(toy: Toy, tmp_path, before: str, after: str) -> Toy:
    """Return the toy with a line of its suite changed."""
    text = toy.suite.read_text()
    assert before in text
    suite = tmp_path / "edited.yaml"
    suite.write_text(text.replace(before, after))
    return Toy(suite, toy.results)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("seeds:", "seeds: [1]\nseeds:", "line 2: key 'seeds' is given twice"),
        ("seeds:\n- 0", "seeds:\n- -1", "seed -1: expected a whole number from 0 to 4294967295"),
        ("  lr: 0.01", "  lr: 1e-3x", "train.lr: expected a number, got '1e-3x'"),
        ("  epochs: 3", "  epochs: 2.5", "train.epochs: expected a whole number, got 2.5"),
        ("  epochs: 3", "  epochs: yes", "train.epochs: expected a whole number, got 'yes'"),
        ("  epochs: 3", "  epochs: 0", "train: epochs must be at least 1"),
        ("  epochs: 3", "  epoch: 3", "did you mean 'epochs'?"),
        ("train:", "train: [", "not valid YAML"),
        ("seeds:", "seeds: 3\nsedes:", "did you mean 'seeds'?"),
        ("  gcd:", "  gcdd:", "unknown method 'gcdd' in "),
        ("methods:", "techniques: {mccc: {}}\nmethods:", "unknown technique 'mccc' in "),
        ("methods:", "quick: {limit: -5}\nmethods:", "quick.limit: expected at least 1, got -5"),
        ("  epochs: 3", "  epochs: !!int x", "not valid YAML"),
        ("  lr: 0.01", "  lr: .nan", "train: lr must be above 0 and finite"),
        ("  lr: 0.01", "  momentum: -1", "train: momentum must be at least 0"),
        ("  name: test_vit", "  name: 3", "backbone.name: expected a word, got 3"),
        ("tiny.safetensors", "gone.safetensors", "backbone.weights: no file"),
        ("/pictures", "/gone", "no such folder"),
    ],
    ids=lambda value: value if len(value) < 20 else "",
)
def test_a_suite_with_a_mistake(toy, tmp_path, capsys, before, after, reason):
    assert reason in refused(edited(toy, tmp_path, before, after), capsys)


def test_a_number_with_an_exponent_is_a_number(toy, tmp_path):
    (cell, *_) = edited(toy, tmp_path, "  lr: 0.01", "  lr: 1e-3").cells("simgcd")
    assert cell.train.lr == 0.001


def test_weights_that_are_cut_off_fail_the_cell_with_a_sentence(toy, made, tmp_path, capsys):
    weights = made.suite.parent / "tiny.safetensors"
    (tmp_path / "cut.safetensors").write_bytes(weights.read_bytes()[:5000])
    cut = edited(toy, tmp_path, str(weights), str(tmp_path / "cut.safetensors"))
    assert cli.main(cut.command("run", "--methods", "simgcd", "--datasets", "toy")[3:]) == 1
    assert "cut.safetensors: cannot be read as weights" in capsys.readouterr().err
