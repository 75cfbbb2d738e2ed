"""Names that become folders: those that could leave the results folder are refused."""

from __future__ import annotations

import pytest

from gcdbench.core.names import OWN, check_name
from gcdbench.core.suites import Suite
from gcdbench.errors import UserError

BAD = (
    *("../../x", "..", ".", "/etc/passwd", "a/b", "C:\\x", "C:", "a\\b", "x\0y", "x\ny", "\ud800"),
    *("", " ", "x ", ".hidden", "x.", "nul", "COM1", "aux.txt", "x" * 5000, "é" * 90, "a|b", "<b>"),
)


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_cannot_be_a_folder_everywhere_is_refused(name):
    with pytest.raises(UserError, match="the place: the name") as caught:
        check_name(name, "the place")
    assert len(str(caught.value)) < 250
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "name", ["line+solid", "cub-c", "DomainNet (real)", "Vögel", "a.b", "nuls"]
)
def test_an_ordinary_name_is_not(name):
    assert check_name(name, "the place", own=OWN) == name


def test_a_suite_cannot_name_a_dataset_out_of_the_results_folder(tmp_path):
    for number, name in enumerate(("../../x", "/tmp/x", "leaderboard", "x" * 500)):
        path = tmp_path / f"suite{number}.yaml"
        path.write_text(f'datasets: {{"{name}": {{source: folder}}}}\n')
        with pytest.raises(UserError, match="datasets: the name"):
            Suite.load(str(path))
