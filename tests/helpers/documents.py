"""Read README and the pages of docs/, and run the commands in them.

The rule: every ``gcdbench`` command of a code block or in backticks is run as it stands in a folder
of its own, with these changes, so that nothing is trained long and nothing has to be downloaded:

- a request for cells ends with ``--quick``, one dataset, one seed and a few batches; the same end
  for all of them, so that ``leaderboard`` and ``report`` find what ``run`` recorded;
- where a document reads datasets from ``/data``, miniature ones in the exact layouts stand there,
  and cells on them are planned instead of trained: their backbone would be fetched from timm's hub;
- ``doctor`` measures for a second instead of a minute, ``tune`` tries the defaults only;
- tables of the paper are listed with their cells and cost, not run: they are many cells;
- creating an environment, installing and ``tox`` are left to the continuous integration, which
  runs README's test command, and to ``test_newcomer.py``; so are blocks marked as text, which need
  a cluster or other machines;
- files that a document invents (``f.npz``, ``mine.yaml``) are made first.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np

from helpers.more_trees import picture

END = [
    *("--quick", "--datasets", "line+solid", "--seeds", "0"),
    *("--set", "train.draws_per_epoch=32", "--set", "train.batch_size=16"),
]
CELLS = ("run", "plan", "status", "leaderboard", "plot", "report")


def blocks(text: str, language: str) -> list[str]:
    """Return the code blocks whose language matches a regular expression."""
    found = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", text, re.M | re.S)
    return [body for name, body in found if re.fullmatch(language, name)]


def commands(text: str) -> list[list[str]]:
    """Return the words after ``gcdbench`` of all commands, in order, each once."""
    lines = [line for block in blocks(text, "(?:sh|bash)?") for line in block.splitlines()]
    outside = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    lines += re.findall(r"`(gcdbench [^`]+)`", outside)
    found = [
        shlex.split(match[1], comments=True)
        for line in lines
        for match in re.finditer(r"(?:^|/|-m )gcdbench ((?:(?!&&).)*)", line)
    ]
    return [list(words) for words in dict.fromkeys(map(tuple, found))]


def as_run_here(words: list[str], data: Path) -> list[str]:
    """Return the command that is run in place of one of a document."""
    if "/data" in words:
        words = [word if word != "/data" else str(data) for word in words]
        words = ["plan", *words[1:]] if words[0] == "run" else words
    if words[0] == "reproduce":
        return [*words, "--list"]
    if words[0] == "tune":
        words[words.index("--budget") + 1] = "1"
        return [*words, *END, "--tune-seeds", "0"]
    if words[0] == "doctor":
        return [*words, "--seconds", "1"]
    own = {"ssb-c", "domainnet", "animals.yaml"}  # suites with other datasets than END names
    if words[0] in CELLS and not own & set(words):
        return [*words, *END]
    return words


def in_order(found: list[list[str]]) -> list[list[str]]:
    """Return commands in an order in which they work: what others read is made first."""
    return sorted(found, key=lambda words: words[0] not in ("run", "new-method"))


def make_home(folder: Path, data: Path, suite: str) -> Path:
    """Write the files that documents speak of into a folder and below a data root."""
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
    (folder / "animals.yaml").write_text(suite)
    for domain in ("photo", "sketch", "painting"):
        for name in ("ant", "bee", "cat", "dog", "elk"):
            for i in range(4):
                picture(data / "animals" / domain / name / f"{i}.png")
    rows = ["path,class,role"]
    for i in range(8):
        picture(folder / "theirs" / f"{i}.png")
        rows.append(f"theirs/{i}.png,{'ab'[i % 2]},{'labelled' if i in (0, 2) else 'unlabelled'}")
    (folder / "theirs.csv").write_text("\n".join(rows))
    return folder
