"""Nothing in README is untrue: its commands are run.

The rule: every ``gcdbench`` command of a code block or in backticks is run as it stands in an empty
folder, with these changes, so that nothing is trained long and nothing has to be downloaded:

- a request for cells ends with ``--quick``, one dataset, one seed and a few batches; the same end
  for all of them, so that ``leaderboard`` and ``report`` find what ``run`` recorded;
- where README reads datasets from ``/data``, miniature ones in the exact layouts stand there, and
  cells on them are planned instead of trained: their backbone would be fetched from timm's hub;
- ``doctor`` measures for a second instead of a minute;
- tables of the paper are listed with their cells and cost, not run: they are many cells;
- creating an environment, installing and ``tox`` are left to the continuous integration, which
  runs README's test command, and to ``test_newcomer.py``;
- files that README invents (``f.npz``, ``mine.yaml``) are made first.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from helpers.more_trees import picture
from helpers.paths import ROOT

from gcdbench.cli import completion
from gcdbench.cli.main import _parser, main
from gcdbench.experiment.plan import Request, make_cells

README = ROOT / "README.md"
END = [
    *("--quick", "--datasets", "line+solid", "--seeds", "0"),
    *("--set", "train.draws_per_epoch=32", "--set", "train.batch_size=16"),
]
CELLS = ("run", "plan", "status", "leaderboard", "plot", "report")
pytestmark = pytest.mark.skipif(not README.is_file(), reason="needs the source tree")


def text() -> str:
    return README.read_text(encoding="utf-8") if README.is_file() else ""


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", text(), re.M | re.S)
    return [body for name, body in found if re.fullmatch(language, name)]


def commands() -> list[list[str]]:
    """Return the words after ``gcdbench`` of all commands, in order, each once."""
    lines = [line for block in blocks("(?:sh|bash)?") for line in block.splitlines()]
    outside = re.sub(r"^```.*?^```", "", text(), flags=re.M | re.S)
    lines += re.findall(r"`(gcdbench [^`]+)`", outside)
    found = [
        shlex.split(match[1], comments=True)
        for line in lines
        for match in re.finditer(r"(?:^|/|-m )gcdbench ((?:(?!&&).)*)", line)
    ]
    return [list(words) for words in dict.fromkeys(map(tuple, found))]


def as_run_here(words: list[str], data: Path) -> list[str]:
    if "/data" in words:
        words = [word if word != "/data" else str(data) for word in words]
        words = ["plan", *words[1:]] if words[0] == "run" else words
    if words[0] == "reproduce":
        return [*words, "--list"]
    if words[0] == "doctor":
        return [*words, "--seconds", "1"]
    own = {"ssb-c", "domainnet", "animals.yaml"}  # suites with other datasets than END names
    if words[0] in CELLS and not own & set(words):
        return [*words, *END]
    return words


@pytest.fixture(scope="module")
def home(tmp_path_factory, miniature):
    """Return a folder with the files that README speaks of."""
    folder = tmp_path_factory.mktemp("home")
    rng = np.random.RandomState(0)
    labels = np.repeat(np.arange(4), 20)
    np.savez(
        folder / "f.npz",
        features=rng.randn(4, 8)[labels] * 3 + rng.randn(80, 8),
        labels=labels,
        labelled=(labels < 2) & (rng.rand(80) < 0.5),
    )
    (folder / "mine.yaml").write_text(
        "description: mine\nextends: drawshift\ndatasets:\n"
        "  line+solid: {source: drawshift, config: {shifted: [solid]}}\n"
    )
    (suite,) = (block for block in blocks("yaml") if "source: folder" in block)
    (folder / "animals.yaml").write_text(suite)
    for domain in ("photo", "sketch", "painting"):
        for name in ("ant", "bee", "cat", "dog", "elk"):
            for i in range(4):
                picture(miniature / "animals" / domain / name / f"{i}.png")
    rows = ["path,class,role"]
    for i in range(8):
        picture(folder / "theirs" / f"{i}.png")
        rows.append(f"theirs/{i}.png,{'ab'[i % 2]},{'labelled' if i in (0, 2) else 'unlabelled'}")
    (folder / "theirs.csv").write_text("\n".join(rows))
    return folder


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
    verbs = {words[0] for words in commands()}
    assert {"run", "list", "show", "plan", "leaderboard", "report", "evaluate", "check"} <= verbs
    assert ["run", "--methods", "simgcd", "gcd", "--suite", "drawshift"] in commands()


def test_every_command_does_what_it_says(home, miniature, monkeypatch, capsys):
    monkeypatch.chdir(home)
    order = sorted(commands(), key=lambda words: words[0] not in ("run", "new-method"))
    for words in order:
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
    assert blocks("python")
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["clusters"].labels.shape == (800,)


def test_links_lead_somewhere():
    places = re.findall(r"\]\(([^)#]+)", text())
    local = [place for place in places if not place.startswith("http")]
    assert local
    assert [place for place in local if not (README.parent / place).exists()] == []
