"""What is part of a cell's key: every line that makes its numbers, and nothing else."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.paths import PACKAGE, bundled
from gcdbench.core.settings import BackboneConfig
from gcdbench.experiment import key, same_numbers

HASHES = """
import sys
from gcdbench.core.method_spec import MethodSpec
from gcdbench.experiment.key import code_hash, score_version
for word in sys.argv[1:]:
    method, _, dataset = word.partition("@")
    print(code_hash(MethodSpec.parse(method), dataset))
print(score_version())
assert "torch" not in sys.modules
"""
CELLS = ("gcd@drawshift", "simgcd@drawshift", "uniot@drawshift", "hilo@drawshift_c", "orca@cub")


class Copy:
    """A copy of the project whose files can be changed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        ignored = shutil.ignore_patterns("__pycache__", "*.zip", "*.safetensors")
        shutil.copytree(PACKAGE, folder / "gcdbench", ignore=ignored)
        for name in ("methods", "benchmarks"):
            if not (folder / "gcdbench" / name).exists():
                shutil.copytree(bundled(name), folder / name, ignore=ignored)

    def path(self, name: str) -> Path:
        inside = self.root / "gcdbench" / name
        return inside if name.startswith("methods/") and inside.exists() else self.root / name

    def change(self, name: str, pattern: str, replacement: str) -> None:
        """Change the first match of a pattern in a file, which must have one."""
        path = self.path(name)
        text, count = re.subn(pattern, replacement, path.read_text(), count=1, flags=re.M | re.S)
        assert count == 1, f"{name} has no {pattern}"
        path.write_text(text)

    def hashes(self, *cells: str) -> dict[str, str]:
        """Return the code hashes of cells, and the version of the scores."""
        env = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        words = [sys.executable, "-c", HASHES, *(cells or CELLS)]
        done = subprocess.run(words, env=env, cwd=self.root, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return dict(zip((*(cells or CELLS), "scores"), done.stdout.split(), strict=True))


@pytest.fixture
def copy(tmp_path):
    return Copy(tmp_path)


def changed(copy: Copy, name: str, pattern: str, replacement: str) -> set[str]:
    """Return which hashes a change of a file touches."""
    before = copy.hashes()
    copy.change(name, pattern, replacement)
    after = copy.hashes()
    return {cell for cell, value in before.items() if after[cell] != value}


def test_a_changed_line_of_a_method_touches_its_own_cells_only(copy):
    assert changed(
        copy, "methods/gcd.py", r"hidden_dim: int = (\d+)", r"hidden_dim: int = 1\1"
    ) == {"gcd@drawshift"}


def test_what_only_uniot_uses_does_not_touch_the_others(copy):
    touched = changed(copy, "gcdbench/ops/universal_adaptation.py", r"return ", "return 0 + ")
    assert touched == {"uniot@drawshift"}


def test_a_loss_touches_the_methods_that_use_it(copy):
    touched = changed(copy, "gcdbench/ops/pair_losses.py", r"return ", "return 0 + ")
    assert touched == {"orca@cub"}


@pytest.mark.parametrize(
    "name", ["training/assemble.py", "training/trainer.py", "training/loader.py", "nn/backbone.py"]
)
def test_what_trains_every_cell_touches_all_of_them(copy, name):
    assert changed(copy, f"gcdbench/{name}", r"    return ", "    0\n    return ") >= set(CELLS)


def test_a_corruption_touches_corrupted_datasets_only(copy):
    touched = changed(copy, "gcdbench/data/corruptions/noise.py", r"return ", "return 0 + ")
    assert touched == {"hilo@drawshift_c", "orca@cub"}


def test_a_dataset_touches_its_own_cells(copy):
    touched = changed(copy, "gcdbench/data/datasets/cub.py", r"return ", "return 0 or ")
    assert touched == {"orca@cub"}


def test_a_new_score_leaves_records_valid_and_changes_the_version_of_scores(copy):
    assert changed(
        copy, "gcdbench/training/scoring/scores.py", r"    return ", "    0\n    return "
    ) == {"scores"}


@pytest.mark.parametrize(
    ("name", "pattern", "replacement"),
    [
        ("gcdbench/training/trainer.py", r'^"""The training', '"""The one training'),
        ("gcdbench/training/batch.py", r'    """Repeat a per-image', '    """Copy a per-image'),
        ("gcdbench/ops/losses.py", r"^import math$", "import math  # of the standard library"),
        ("methods/simgcd.py", r'^"""', '"""A mended docstring. '),
        ("gcdbench/runner/cell.py", r"return ", "return 0 or "),
        ("gcdbench/report/collect.py", r"return ", "return 0 or "),
        ("gcdbench/core/config.py", r"return ", "return 0 or "),
        ("gcdbench/training/conformance/bench.py", r"return ", "return 0 or "),
    ],
)
def test_prose_and_code_that_makes_no_numbers_touch_nothing(copy, name, pattern, replacement):
    assert changed(copy, name, pattern, replacement) == set()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ops/transport", "ops/optimal_transport"),
        ("training/trainer", "training/loop"),
        ("nn/heads", "nn/head_modules"),
    ],
)
def test_a_renamed_module_touches_nothing(copy, old, new):
    before = copy.hashes()
    package = copy.root / "gcdbench"
    (package / f"{old}.py").rename(package / f"{new}.py")
    old_name, new_name = (f"gcdbench.{name.replace('/', '.')}" for name in (old, new))
    for path in copy.root.rglob("*.py"):
        text = path.read_text()
        text = text.replace(f"from {old_name} import", f"from {new_name} import")
        path.write_text(text.replace(f'"{old}.py"', f'"{new}.py"'))
    assert copy.hashes() == before


def test_moving_a_name_to_other_code_is_a_change(copy):
    before = copy.hashes("simgcd@drawshift")
    same = "def full_precision(function):\n    return function\n"
    copy.path("gcdbench/ops/other.py").write_text(same)
    copy.change(
        "gcdbench/nn/heads.py", "gcdbench.ops.precision import", "gcdbench.ops.other import"
    )
    after = copy.hashes("simgcd@drawshift")
    assert after["simgcd@drawshift"] != before["simgcd@drawshift"]


def test_the_modules_of_a_third_partys_package_count(tmp_path):
    package = tmp_path / "gcdbench_mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helpers.py").write_text("X = 1\n")
    imports = ("gcdbench.plugin import Method", "gcdbench_mine.helpers import X", ".more import Y")
    (package / "mine.py").write_text("".join(f"from {line}\n" for line in imports))
    (package / "more.py").write_text("Y = 1\n")

    def digest() -> str:
        key.forget_code()
        return key._hash_of([package / "mine.py"])

    hashes = {digest()}
    (package / "helpers.py").write_text("X = 2\n")
    hashes.add(digest())
    (package / "more.py").write_text("Y = 2\n")
    hashes.add(digest())
    assert len(hashes) == 3


def test_strings_that_are_not_statements_stay():
    text = 'x = {\n    "a":\n    "b"\n}\ny = \\\n    "kept"\n"""gone"""\nf("""kept""")\n'
    bare = key.without_comments(text)
    assert "gone" not in bare
    assert bare.count("kept") == 2
    assert '"b"' in bare


def test_comments_are_found_as_the_tokenizer_finds_them():
    for path in [*PACKAGE.rglob("*.py"), *bundled("methods").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        found = key.without_comments(text)
        tokens = list(tokenize.generate_tokens(io.StringIO(found).readline))
        assert not [token for token in tokens if token.type == tokenize.COMMENT], path
        assert _code(found) == _code(text), path


def _code(text: str) -> list[str]:
    """Return what Python compiles, without lines that are nothing but a string."""
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    words: list[str] = []
    line: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NEWLINE:
            alone = [one.type for one in line] == [tokenize.STRING]
            words += [] if alone else [one.string for one in line]
            line = []
        elif token.type not in layout:
            line.append(token)
    return words


def test_a_backbone_counts_by_the_model_that_its_name_stands_for():
    assert key.weights_hash(BackboneConfig("dino-vitb16")) == "timm:vit_base_patch16_224.dino"


def test_every_method_and_technique_has_a_code_hash():
    specs = [MethodSpec.parse(name) for name in ("hilo", "simgcd+mixup", "gcd")]
    assert len({key.code_hash(spec, "drawshift") for spec in specs}) == 3


@pytest.mark.parametrize("change", same_numbers.CHANGES)
def test_a_declared_change_is_in_its_module_once(change):
    text = key.without_comments((PACKAGE / change.module).read_text())
    assert text.count(change.now) == 1
    assert change.before not in text
    assert change.shown


def test_a_change_that_is_declared_to_leave_numbers_as_they_are_touches_nothing(copy):
    before = copy.hashes()
    copy.change("gcdbench/ops/losses.py", r"per_row\.numel\(\)", "len(per_row)")
    undeclared = copy.hashes()
    assert undeclared["simgcd@drawshift"] != before["simgcd@drawshift"]
    entry = """CHANGES: tuple[SameNumbers, ...] = (
    SameNumbers("ops/losses.py", before="per_row.numel()", now="len(per_row)", shown="x"),"""
    declared = r"CHANGES: tuple\[SameNumbers, \.\.\.\] = \("
    copy.change("gcdbench/experiment/same_numbers.py", declared, entry)
    assert copy.hashes() == before
