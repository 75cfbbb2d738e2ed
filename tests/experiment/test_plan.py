from __future__ import annotations

import pickle

import pytest

from gcdbench.core import registry
from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.paths import bundled
from gcdbench.core.suites import Suite, suites
from gcdbench.errors import UserError
from gcdbench.experiment import plan
from gcdbench.experiment.plan import Request, make_cells

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
    names = [(c.dataset, c.seed, c.spec.text) for c in cells]
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


PRESETS = """
backbone: {name: embedded}
methods:
  legogcd: {config: {threshold: 0.6}, presets: {released: {train: {lr: 0.2}}}}
  hilo: {presets: {released: {train: {batch_size: 150}, techniques: {mcc: {scale: 0.1}}}}}
datasets:
  a:
    source: drawshift
    methods:
      legogcd: {presets: {released: {config: {preset: cars, old_weight: 3.0}, backbone: {train_blocks: 2}}}}
"""  # noqa: E501


def test_a_suite_says_what_a_preset_means_on_its_datasets(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(PRESETS)

    def cell(method, **given):
        name = method.partition("+")[0]
        request = Request(str(path), methods=(method,), assignments={name: given} if given else {})
        return make_cells(request)[0]

    plain = cell("legogcd")
    assert (plain.train.lr, plain.backbone.train_blocks) == (0.1, 1)
    assert plain.method_config["preset"] == "ours"
    lego = cell("legogcd", preset="released")
    assert (lego.train.lr, lego.backbone.train_blocks) == (0.2, 2)
    chosen = ("preset", "old_weight", "entropy_weight", "threshold")
    # the suite's own value of the threshold lies over the method's preset for cars
    assert [lego.method_config[name] for name in chosen] == ["cars", 3.0, 1.0, 0.6]
    assert cell("legogcd", preset="released", old_weight=5.0).method_config["old_weight"] == 5.0
    hilo = cell("hilo+mcc", preset="released")
    assert hilo.train.batch_size == 150
    assert hilo.technique_configs["mcc"]["scale"] == 0.1
    assert cell("hilo+mcc").technique_configs["mcc"]["scale"] == 1.0


def test_a_preset_of_a_suite_is_checked(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(PRESETS.replace("batch_size: 150", "batch: 150"))
    with pytest.raises(UserError, match="batch"):
        make_cells(
            Request(str(path), methods=("hilo",), assignments={"hilo": {"preset": "released"}})
        )
    path.write_text(PRESETS.replace("released: {train: {b", "released: {trains: {b"))
    with pytest.raises(UserError, match=r"trains.*methods\.hilo\.presets\.released"):
        make_cells(Request(str(path), methods=("hilo",)))


def test_every_preset_of_the_projects_suites_can_be_chosen():
    found = 0
    for name in suites():
        suite = Suite.load(name)
        for entry in (suite.data, *suite.datasets.values()):
            for method, settings in entry.get("methods", {}).items():
                for preset in settings.get("presets", {}):
                    given = {method: {"preset": preset}}
                    spec = f"{method}+mcc" if method == "hilo" else method
                    assert make_cells(Request(name, methods=(spec,), assignments=given))
                    found += 1
    assert found > 5


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


def test_a_pickled_cell_makes_its_own_key(suite, monkeypatch):
    cell = make_cells(Request(suite))[0]
    key = cell.key
    again = pickle.loads(pickle.dumps(cell))
    monkeypatch.setattr(plan, "code_hash", lambda *_, **__: "the code of another process")
    assert again.key != key
    assert cell.key == key


def test_a_spec_is_canonical():
    hilo = registry.get("method", "hilo").constants["techniques"]
    assert MethodSpec.parse("hilo").techniques == hilo
    without = MethodSpec.parse("hilo-curriculum-patchmix")
    assert without.techniques == ()
    assert without.text == "hilo-patchmix-curriculum"
    assert MethodSpec.parse("hilo-patchmix+patchmix").text == "hilo"


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
def test_a_wrong_spec_is_refused(text, sentence):
    with pytest.raises(UserError, match=sentence):
        MethodSpec.parse(text)


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


def with_lines(tmp_path, lines: str) -> str:
    """Write a suite of one dataset with some more lines and return its path."""
    path = tmp_path / "mine.yaml"
    path.write_text(f"{lines}\ndatasets: {{a: {{source: drawshift}}}}\n")
    return str(path)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("train: 5", "train: expected a mapping of keys to values, got 5"),
        ("train: [1]", "train: expected a mapping"),
        ("train:", "train: expected a mapping"),
        ("seeds: 3", "seeds: expected a list, got 3"),
        ("seeds: [a]", "seeds[0]: expected a whole number, got 'a'"),
        ("seeds: [1.5]", "seeds[0]: expected a whole number, got 1.5"),
        ("seeds: [0, true]", "seeds[1]: expected a whole number, got True"),
        ("seeds: '012'", "seeds: expected a list, got '012'"),
        ("seeds: []", "seeds needs at least one entry"),
        ("default_methods: 3", "default_methods: expected a list, got 3"),
        ("default_methods: [3]", "default_methods[0]: expected a word, got 3"),
        ("default_methods: simgcd", "default_methods: expected a list, got 'simgcd'"),
        ("quick: 3", "quick: expected a mapping"),
        ("quick: {foo: 3}", "unknown key 'foo' in "),
        ("quick: {limit: abc}", "quick.limit: expected a whole number, got 'abc'"),
        ("quick: {limit: -5}", "quick.limit: expected at least 1, got -5"),
        ("quick: {train: 3}", "quick.train: expected a mapping"),
        ("methods: [simgcd]", "methods: expected a mapping"),
        ("methods: {simgcd: 4}", "methods.simgcd: expected a mapping"),
        ("methods: {simgcd: {trian: {lr: 1}}}", "methods.simgcd; did you mean 'train'?"),
        ("methods: {simgcd: {train: 4}}", "methods.simgcd.train: expected a mapping"),
        ("techniques: 4", "techniques: expected a mapping"),
        ("techniques: {mcc: 4}", "techniques.mcc: expected a mapping"),
        ("description: [a]", "description: expected a word"),
        ("extends: 3", "extends: expected a word, got 3"),
    ],
)
def test_a_section_of_a_wrong_type_is_refused_with_file_and_key(tmp_path, line, sentence):
    path = with_lines(tmp_path, line)
    with pytest.raises(UserError) as refused:
        Suite.load(path)
    assert path in str(refused.value)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("a: {source: 3}", "datasets.a.source: expected a word, got 3"),
        ("a: {source: drawshift, config: 3}", "datasets.a.config: expected a mapping"),
        ("a: {source: drawshift, limit: 0}", "datasets.a.limit: expected at least 1, got 0"),
        ("a: {source: drawshift, task: 0}", "datasets.a.task: expected a mapping"),
        ("3: {source: drawshift}", "a dataset's name: expected a word, got 3"),
        ("a:", "datasets.a: expected a mapping"),
    ],
)
def test_a_dataset_of_a_wrong_type_is_refused_with_file_and_key(tmp_path, entry, sentence):
    path = tmp_path / "mine.yaml"
    path.write_text(f"datasets:\n  {entry}\n")
    with pytest.raises(UserError) as refused:
        Suite.load(str(path))
    assert str(refused.value).startswith(f"{path}: {sentence}")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("methods: {simgcdd: {}}", "unknown method 'simgcdd' in {}: methods; did you mean 'simgcd"),
        (
            "techniques: {mccc: {}}",
            "unknown technique 'mccc' in {}: techniques; did you mean 'm",
        ),
        ("quick: {methods: {gdc: {}}}", "unknown method 'gdc' in {}: quick.methods"),
    ],
)
def test_settings_of_what_nobody_has_are_refused(tmp_path, line, sentence):
    path = with_lines(tmp_path, line)
    with pytest.raises(UserError) as refused:
        make_cells(Request(path, methods=("simgcd",)))
    assert str(refused.value).startswith(sentence.format(path))


def test_a_suite_may_have_settings_for_a_plugged_method(tmp_path):
    copy = tmp_path / "mine_too.py"
    copy.write_text((bundled("methods") / "simgcd.py").read_text())
    path = with_lines(tmp_path, "methods: {mine_too: {train: {lr: 0.25}}}")
    registry.add_plugin(copy)
    assert make_cells(Request(path, methods=("mine_too",)))[0].train.lr == 0.25


def test_suites_that_extend_each_other_are_refused(tmp_path):
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    one.write_text(f"extends: {other}\ndatasets: {{a: {{source: drawshift}}}}\n")
    other.write_text(f"extends: {one}\ndatasets: {{a: {{source: drawshift}}}}\n")
    with pytest.raises(UserError, match="extend each other in a loop"):
        Suite.load(str(one))


def test_a_suite_may_start_from_the_settings_of_another(tmp_path, suite):
    path = tmp_path / "other.yaml"
    path.write_text(
        f"extends: {suite}\ndefault_methods: [simgcd]\ntrain: {{epochs: 9}}\n"
        "datasets: {c: {source: drawshift}}\n"
    )
    (cell,) = make_cells(Request(str(path)))
    assert (cell.dataset, cell.seed, cell.train.epochs, cell.train.lr) == ("c", 0, 9, 0.2)


@pytest.mark.parametrize("name", suites())
def test_every_shipped_suite_is_well_formed(name):
    suite = Suite.load(name)
    assert suite.description
    for entry in suite.datasets.values():
        registry.get("dataset", entry["source"])
