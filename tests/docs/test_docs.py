"""Nothing in docs/ is untrue: its commands, examples and notebooks are run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from helpers.documents import as_run_here, blocks, commands, in_order, make_home
from helpers.paths import ROOT

from gcdbench.cli.main import main
from gcdbench.core.paths import PACKAGE
from gcdbench.report.submissions import FILE, read_submissions

DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "pages").glob("*.md"))
EXECUTED = [*PAGES, ROOT / "results" / "CONTRIBUTING.md"]
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="needs the source tree")


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.fixture
def home(tmp_path, miniature, monkeypatch):
    """Return an empty folder with the files that the pages speak of, as the current one."""
    (suite,) = (b for b in blocks(text(DOCS / "pages" / "data.md"), "yaml") if "folder" in b)
    monkeypatch.chdir(make_home(tmp_path, miniature, suite))
    return tmp_path


def named_files(page: Path) -> dict[str, str]:
    """Return the code blocks that are files: their titles and contents."""
    found = re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', text(page), re.M | re.S)
    return dict(found)


@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.stem)
def test_every_command_and_example_of_a_page_works(page, home, miniature, capsys):
    for name, content in named_files(page).items():
        Path(name).write_text(content, encoding="utf-8")
    names: dict[str, object] = {}
    untitled = re.sub(r"^```\w+ title=.*?^```", "", text(page), flags=re.M | re.S)
    for block in blocks(untitled, "python"):
        exec(compile(block, page.name, "exec"), names)
    for words in in_order(commands(text(page))):
        code = main(as_run_here(words, miniature))
        out, err = capsys.readouterr()
        expected = (0, 1) if words[:2] == ["data", "verify"] else (0,)
        assert code in expected, f"gcdbench {shlex.join(words)}\n{out}\n{err}"


@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.stem)
def test_yaml_of_a_page_can_be_read(page):
    for block in blocks(text(page), "yaml"):
        assert isinstance(yaml.safe_load(block), dict)


def test_the_messages_of_the_troubleshooting_page_are_those_of_the_program():
    messages = re.findall(r"^`([^`]+)`$", text(DOCS / "pages" / "troubleshooting.md"), re.M)
    assert len(messages) > 15
    code = "\n".join(p.read_text(encoding="utf-8") for p in sorted(PACKAGE.rglob("*.py")))
    # adjacent parts of a string are joined, and what is filled in becomes ...
    joined = re.sub(r'"\s*\n\s*f?"', "", code)
    said = re.sub(r"\{[^{}]*\}", "...", joined)
    missing = [m for m in messages if re.sub(r" ?\.\.\.$", "", m) not in said]
    assert missing == []


def test_links_between_pages_lead_somewhere():
    for page in EXECUTED:
        for place in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text(page)):
            assert (page.parent / place).exists(), f"{page.name}: {place}"


def test_the_example_of_a_submission_is_one(tmp_path):
    (example,) = blocks(text(ROOT / "results" / "CONTRIBUTING.md"), "yaml")
    (tmp_path / FILE).write_text(example)
    assert read_submissions(tmp_path)["myidea"].status == "self-reported"


def test_the_site_has_every_page():
    config = text(DOCS / "mkdocs.yml")
    assert sorted(re.findall(r": (\w+\.md)$", config, re.M)) == [page.name for page in PAGES]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONWARNINGS", "default")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "outputs are not committed"
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    shown = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert any("text/plain" in out.get("data", {}) or "text" in out for out in shown)
