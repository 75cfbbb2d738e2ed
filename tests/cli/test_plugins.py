from __future__ import annotations

import ast
import re

import numpy as np
import pytest

from gcdbench import plugin
from gcdbench.cli.main import main
from gcdbench.cli.plugins import write_method
from gcdbench.core import registry
from gcdbench.core.paths import bundled
from gcdbench.errors import UserError


@pytest.mark.parametrize("base", [None, "simgcd"])
def test_a_new_method_is_a_file_that_can_be_read_at_once(tmp_path, base):
    path = write_method("my_idea", tmp_path, base=base)
    info = registry.add_plugin(path)
    assert (info.name, info.class_name) == ("my_idea", "MyIdea")
    assert registry.load("method", "my_idea").__name__ == "MyIdea"


def test_a_new_method_shows_each_need_in_a_few_lines(tmp_path):
    text = write_method("my_idea", tmp_path).read_text()
    shown = text.partition("# What else a method may need")[2]
    for need in (
        *("views =", "train_blocks", "optimizer", "requires", "param_groups", "Phase("),
        *("AddedTokens", "DeepPrompts", "LoRA", "PixelPrompt", "deepcopy", "def encode"),
        *("begin_fit", "EpochPlan(", "register_buffer", "diagnostics"),
    ):
        assert need in shown
    examples = shown.split("\n#\n")[1:]
    trees = [ast.parse(re.sub("^# ?", "", block, flags=re.M)) for block in examples]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {n.id for n in nodes if isinstance(n, ast.Name) and n.id[0].isupper()}
    assert names - set(plugin.__all__) == {"Iterable"}
    assert "What else" not in write_method("other", tmp_path, base="simgcd").read_text()


def test_a_new_method_passes_the_checks(tmp_path, capsys):
    path = write_method("fresh", tmp_path)
    assert main(["check", str(path)]) == 0
    assert "all checks passed" in capsys.readouterr().out


def test_a_package_has_an_entry_point_and_a_test(tmp_path):
    folder = write_method("myidea", tmp_path, package=True)
    assert 'myidea = "gcdbench_myidea.myidea:Myidea"' in (folder / "pyproject.toml").read_text()
    assert (folder / "gcdbench_myidea" / "myidea.py").is_file()
    assert (folder / "tests" / "test_myidea.py").is_file()


@pytest.mark.parametrize("name", ["My-Idea", "class", "simgcd", "1st"])
def test_a_name_that_cannot_be_used_is_refused(tmp_path, name):
    with pytest.raises(UserError):
        write_method(name, tmp_path)


def test_nothing_is_overwritten(tmp_path):
    write_method("myidea", tmp_path)
    with pytest.raises(UserError, match="exists already"):
        write_method("myidea", tmp_path)


TEMPLATE = (bundled("methods") / "_template.py").read_text()
BROKEN = {
    "nan": (
        '"classify": cross_entropy_on(logits, labels)',
        '"classify": logits[labels >= 0].mean() * cross_entropy_on(logits, labels)',
        "a batch without labelled rows gives term 'classify' = nan",
    ),
    "no_terms": ("return Step(terms,", "return Step({},", "gives no loss terms"),
    "global_draw": (
        "return Step(terms,",
        "import torch\n        terms['noise'] = features.square().mean() * torch.rand(())\n"
        "        return Step(terms,",
        "two runs with the same seed differ",
    ),
    "row_order": (
        "return Step(terms,",
        "terms['first'] = features[0, 0]\n        return Step(terms,",
        "term 'first' depends on the order of the rows",
    ),
    "idle_head": (
        '"contrast": c.contrast_weight * info_nce(self.project(features)),',
        "",
        "no gradient reaches method.projector",
    ),
    "hidden_state": (
        "return Step(terms,",
        "self.count = getattr(self, 'count', 0) + 1\n"
        "        terms['age'] = self.count * features.square().mean()\n"
        "        return Step(terms,",
        "keep all state in parameters and registered buffers",
    ),
    "vector_term": (
        "return Step(terms,",
        "terms['many'] = features.mean(1)\n        return Step(terms,",
        "term 'many' = a tensor; expected a finite scalar",
    ),
    "writes_into_the_batch": (
        "return Step(terms,",
        "batch.labels.clamp_(min=0)\n        return Step(terms,",
        "step changes the batch in place",
    ),
    "wrong_predictions": (
        "    def project(",
        "    def predict(self, store, services):\n"
        "        return self.classify(store.features)\n\n    def project(",
        "one for each query",
    ),
    "unfreezes": (
        'generator = task.generator("heads")',
        'backbone.requires_grad_(True)\n        generator = task.generator("heads")',
        r"no gradient reaches method\.backbone",
    ),
    "crash": ("logits = self.classify(features)", "logits = self.clasify(features)", r"line \d+"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_gets_its_sentence(tmp_path, capsys, name):
    old, new, sentence = BROKEN[name]
    assert old in TEMPLATE
    path = tmp_path / f"broken_{name}.py"
    path.write_text(TEMPLATE.replace(old, new))
    assert main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert re.search(sentence, out), out
    assert "Traceback" not in out


def test_features_are_scored_per_domain(tmp_path, capsys):
    rng = np.random.RandomState(0)
    labels = np.repeat(np.arange(4), 30)
    centres = rng.randn(4, 16) * 3
    np.savez(
        tmp_path / "f.npz",
        features=centres[labels] + rng.randn(120, 16),
        labels=np.array(["w", "x", "y", "z"])[labels],
        labelled=(labels < 2) & (rng.rand(120) < 0.5),
        domains=np.where(rng.rand(120) < 0.5, "photo", "sketch"),
    )
    assert main(["evaluate", "--features", str(tmp_path / "f.npz")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines[1:]} == {"photo", "sketch"}
    assert all(float(line.split()[1]) > 90 for line in lines[1:])


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"features": np.ones((3, 2))}, "the array 'labelled' is missing"),
        (
            {"features": np.ones((3, 2)), "labels": np.arange(2), "labelled": np.ones(3, bool)},
            "labels has 2 entries, features has 3 rows",
        ),
    ],
)
def test_a_feature_file_that_does_not_fit_is_refused(tmp_path, capsys, arrays, sentence):
    np.savez(tmp_path / "f.npz", **arrays)
    assert main(["evaluate", "--features", str(tmp_path / "f.npz")]) == 2
    assert sentence in capsys.readouterr().err
