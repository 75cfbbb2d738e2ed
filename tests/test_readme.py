"""Nothing in README is untrue: its commands are run, see ``helpers/documents.py``."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest
import yaml
from helpers.documents import as_run_here, blocks, commands, in_order, make_home
from helpers.paths import ROOT

from gcdbench.cli import completion
from gcdbench.cli.main import _parser, main
from gcdbench.experiment.plan import Request, make_cells

README = ROOT / "README.md"
pytestmark = pytest.mark.skipif(not README.is_file(), reason="needs the source tree")


def text() -> str:
    return README.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def home(tmp_path_factory, miniature):
    """Return a folder with the files that README speaks of."""
    (suite,) = (block for block in blocks(text(), "yaml") if "source: folder" in block)
    return make_home(tmp_path_factory.mktemp("home"), miniature, suite)


def test_the_yaml_for_ones_own_data_describes_what_readme_says(home, miniature):
    suite = str(home / "animals.yaml")
    found = make_cells(Request(suite, ("simgcd",), data_root=miniature))[0].problem()
    assert found.classes[: found.num_old] == ("ant", "bee", "cat")
    assert {name: one.role for name, one in found.sets.items()} == {
        "photo": "source",
        "sketch": "shifted",
        "painting": "unseen",
    }
    assert len(found.labelled) == 6  # half of the old classes' photographs


def test_the_commands_are_found():
    verbs = {words[0] for words in commands(text())}
    assert {"run", "list", "show", "plan", "leaderboard", "report", "evaluate", "check"} <= verbs
    assert ["run", "--methods", "simgcd", "gcd", "--suite", "drawshift"] in commands(text())


def test_every_command_does_what_it_says(home, miniature, monkeypatch, capsys):
    monkeypatch.chdir(home)
    for words in in_order(commands(text())):
        code = main(as_run_here(words, miniature))
        out, err = capsys.readouterr()
        # miniature datasets are valid but smaller than the published ones
        expected = (0, 1) if words[:2] == ["data", "verify"] else (0,)
        assert code in expected, f"gcdbench {shlex.join(words)}\n{out}\n{err}"


def test_every_flag_exists():
    everything = {"--version", "--help", "--watch"}
    waiting = [_parser()]
    while waiting:
        parser = waiting.pop()
        everything |= set(completion.flags(parser))
        verbs = completion.verbs(parser)
        waiting += list(verbs.choices.values()) if verbs else []
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text()))
    foreign = {"--group"}  # of pip
    assert named - foreign - everything == set()


def test_the_python_examples_run():
    rng = np.random.RandomState(0)
    truth = np.repeat(np.arange(200), 4)
    centres = rng.randn(200, 16)
    names = {
        "unlabelled": centres[truth] + 0.1 * rng.randn(800, 16),
        "labelled": centres[:100] + 0.1 * rng.randn(100, 16),
        "targets": np.arange(100),
        "truth": truth,
    }
    assert blocks(text(), "python")
    for block in blocks(text(), "python"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["clusters"].labels.shape == (800,)


def test_links_lead_somewhere():
    places = re.findall(r"\]\(([^)#]+)", text())
    local = [place for place in places if not place.startswith("http")]
    assert local
    assert [place for place in local if not (README.parent / place).exists()] == []


def test_the_workflow_runs_the_two_commands_of_readme():
    first, tests = (b.strip() for b in blocks(text(), "") if b.startswith("python3 -m venv"))
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    run = [
        step["run"].strip()
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    assert first in run
    assert tests in run
    for words in commands("```\n" + "\n".join(run) + "\n```"):
        _parser().parse_args(words)


def test_templates_and_workflows_can_be_read():
    paths = sorted((ROOT / ".github").rglob("*.yml"))
    assert len(paths) == 2
    for path in paths:
        assert yaml.safe_load(path.read_text())["jobs"]
    for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md")):
        _, front, body = path.read_text().split("---", 2)
        assert {"name", "about", "labels"} == set(yaml.safe_load(front))
        assert body.strip()
