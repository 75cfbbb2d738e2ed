from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from gcdbench.core import registry
from gcdbench.errors import UserError

PLUGIN = '''
"""A method that learns nothing (Nobody, 2026)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gcdbench.training.method import Method, Step


class Idle(Method):
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})
    train_defaults: ClassVar[dict[str, Any]] = {"lr": 0.5}

    @dataclass(frozen=True)
    class Config:
        strength: float = 0.25  # ours
        mode: Literal["a", "b"] = "a"  # paper

    def step(self, batch, clock):
        features = self.encode(batch).cls
        return Step({"idle": features.mean()}, features)
'''


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "idle.py"
    path.write_text(PLUGIN)
    return path


def test_a_plugin_file_is_known_by_its_name(plugin):
    registry.add_plugin(plugin)
    info = registry.get("method", "idle")
    assert info.summary == "A method that learns nothing (Nobody, 2026)."
    assert info.constants["provides"] == {"logits"}
    assert info.constants["train_defaults"] == {"lr": 0.5}
    assert info.config().strength == 0.25
    assert info.notes == {"strength": "ours", "mode": "paper"}


def test_a_plugin_class_is_imported_when_it_is_asked_for(plugin):
    registry.add_plugin(plugin)
    assert registry.load("method", "idle").__name__ == "Idle"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def broken(:", "line 1: not valid Python"),
        ("x = 1", "defines no class derived from Method, Technique, Dataset"),
        (PLUGIN.replace("0.25", "math.log(2)"), "Config needs literal defaults"),
        (PLUGIN.replace("    @dataclass(frozen=True)\n", ""), "must be a frozen dataclass"),
    ],
)
def test_a_broken_plugin_is_refused_with_a_sentence(plugin, source, sentence):
    plugin.write_text(source)
    with pytest.raises(UserError, match=sentence):
        registry.add_plugin(plugin)


def test_a_plugin_that_fails_to_import_is_refused_with_a_sentence(plugin):
    plugin.write_text(PLUGIN.replace("from typing", "import no_such_module\nfrom typing"))
    registry.add_plugin(plugin)
    with pytest.raises(UserError, match=r"cannot be imported \(ModuleNotFoundError"):
        registry.load("method", "idle")


def test_a_plugin_cannot_take_the_name_of_a_shipped_method(plugin):
    taken = plugin.with_name("simgcd.py")
    taken.write_text(PLUGIN)
    with pytest.raises(UserError, match="the name 'simgcd' is taken"):
        registry.add_plugin(taken)


def test_a_file_dropped_into_the_folder_appears_at_once(plugin, monkeypatch, tmp_path):
    base, _, prefix, group = registry.KINDS["method"]
    monkeypatch.setitem(registry.KINDS, "method", (base, tmp_path, prefix, group))
    assert list(registry.available("method")) == ["idle"]
    plugin.with_name("broken.py").write_text("def (")
    assert list(registry.available("method")) == ["idle"]
    assert "not valid Python" in registry.broken("method")["broken"]


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(UserError, match="did you mean 'simgcd'"):
        registry.get("method", "simgdc")


def test_listing_planning_and_reporting_do_not_import_torch():
    code = """
        import sys
        from gcdbench.cli.main import main
        main(["list", "methods"])
        main(["plan", "--suite", "drawshift", "--methods", "simgcd"])
        import gcdbench.report.collect, gcdbench.report.formats
        sys.exit("torch" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True)
    assert done.returncode == 0, done.stderr
