from __future__ import annotations

import io
import tokenize

import pytest

from gcdbench import plan, registry
from gcdbench.errors import UserError
from gcdbench.layout import PACKAGE, shipped
from gcdbench.plan import Request, Spelling, Suite, make_cells

SUITE = """
description: for a test
default_methods: [simgcd]
seeds: [3, 4]
backbone: {name: embedded}
train: {epochs: 7, lr: 0.3}
methods:
  simgcd: {train: {lr: 0.2}, config: {sup_weight: 0.5}}
datasets:
  a: {source: drawshift, train: {epochs: 8}}
  b: {source: drawshift, config: {shifted: [color]}, methods: {simgcd: {train: {lr: 0.1}}}}
"""


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(SUITE)
    return str(path)


def test_cells_come_by_dataset_seed_and_method(suite):
    cells = make_cells(Request(suite, methods=("simgcd", "gcd")))
    names = [(c.dataset, c.seed, c.spelling.text) for c in cells]
    order = [(d, s, m) for d in ("a", "b") for s in (3, 4) for m in ("simgcd", "gcd")]
    assert names == order


def test_later_layers_win(suite):
    a, b = (make_cells(Request(suite, datasets=(d,), seeds=(0,)))[0] for d in ("a", "b"))
    assert (a.train.epochs, b.train.epochs) == (8, 7)  # the dataset over the suite
    assert (a.train.lr, b.train.lr) == (0.2, 0.1)  # the method, for one dataset, over the suite
    assert a.method_config["sup_weight"] == 0.5
    request = Request(suite, assignments={"train": {"lr": 0.9}, "simgcd": {"sup_weight": 0.1}})
    changed = make_cells(request)[0]
    assert (changed.train.lr, changed.method_config["sup_weight"]) == (0.9, 0.1)


def test_a_methods_own_defaults_are_below_the_suite(suite):
    gcd = make_cells(Request(suite, methods=("gcd",)))[0]
    assert gcd.train.decay == "all"
    assert gcd.train.lr == 0.3


@pytest.mark.parametrize(
    "change",
    [
        {"seeds": (9,)},
        {"methods": ("gcd",)},
        {"datasets": ("b",)},
        {"assignments": {"train": {"lr": 0.123}}},
        {"assignments": {"simgcd": {"entropy_weight": 1.0}}},
        {"assignments": {"backbone": {"train_blocks": 2}}},
        {"quick": True},
    ],
)
def test_whatever_can_change_numbers_changes_the_key(suite, change):
    base = {"suite": suite, "seeds": (0,), "datasets": ("a",)}
    assert make_cells(Request(**base))[0].key != make_cells(Request(**(base | change)))[0].key


def test_the_key_is_the_same_when_asked_again(suite):
    first, second = (make_cells(Request(suite))[0].key for _ in range(2))
    assert first == second


def test_comments_do_not_change_the_codes_hash_but_code_does(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x = 1  # one\n\n\n# more\ny = '# not a comment'\n")
    bare = plan._without_comments(path)
    assert bare == "x = 1\ny = '# not a comment'"


def test_every_module_that_makes_numbers_is_part_of_the_codes_hash():
    names = {name for name, _ in plan._core()}
    made = {"trainer.py", "evaluator.py", "metrics.py", "clustering.py", "losses.py", "compose.py"}
    assert made | {"nn/backbone.py", "nn/heads.py", "data/loader.py", "method.py"} <= names
    assert not {"cli.py", "records.py"} & names
    assert not any(name.startswith(("report", "runner")) for name in names)


def test_a_spelling_is_canonical():
    hilo = registry.face("method", "hilo").constants["techniques"]
    assert Spelling.parse("hilo").techniques == hilo
    without = Spelling.parse("hilo-curriculum-patchmix")
    assert without.techniques == ()
    assert without.text == "hilo-patchmix-curriculum"
    assert Spelling.parse("hilo-patchmix+patchmix").text == "hilo"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "write a name"),
        ("+patchmix", "write a name"),
        ("simgcd++", "write a name"),
        ("hilo+patchmix", "already part of it"),
        ("simgcd-patchmix", "not part of simgcd"),
    ],
)
def test_a_wrong_spelling_is_refused(text, sentence):
    with pytest.raises(UserError, match=sentence):
        Spelling.parse(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("datasets: {}", "at least one entry"),
        ("datasets: {a: {}}", "datasets.a needs a 'source'"),
        ("datasets: {a: {source: drawshift, sauce: 1}}", "unknown key 'sauce'"),
        ("epochs: 3\ndatasets: {a: {source: drawshift}}", "unknown key 'epochs'"),
    ],
)
def test_a_malformed_suite_is_refused(tmp_path, text, sentence):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence):
        Suite.load(str(path))


def test_a_suite_may_start_from_the_settings_of_another(tmp_path, suite):
    path = tmp_path / "other.yaml"
    path.write_text(
        f"extends: {suite}\ndefault_methods: [simgcd]\ntrain: {{epochs: 9}}\n"
        "datasets: {c: {source: drawshift}}\n"
    )
    (cell,) = make_cells(Request(str(path)))
    assert (cell.dataset, cell.seed, cell.train.epochs, cell.train.lr) == ("c", 0, 9, 0.2)


@pytest.mark.parametrize("name", plan.suites())
def test_every_shipped_suite_is_well_formed(name):
    suite = Suite.load(name)
    assert suite.description
    for entry in suite.datasets.values():
        registry.face("source", entry["source"])


def test_comments_are_found_as_the_tokenizer_finds_them():
    for path in [*PACKAGE.rglob("*.py"), *shipped("methods").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column]
        expected = "\n".join(line.rstrip() for line in lines if line.strip())
        assert plan._without_comments(path) == expected, path
