"""The campaign is large enough, and nothing is lost in it."""

from __future__ import annotations

from collections import Counter

import pytest
from faults import campaign

pytestmark = pytest.mark.faults


def test_the_campaign_is_large_enough_and_no_case_is_there_twice():
    cases = campaign.all_cases()
    counts = Counter(case.kind for case in cases)
    assert counts["fault"] >= 60
    assert counts["attack"] >= 40
    assert len({(case.kind, case.group, case.name) for case in cases}) == len(cases)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_is_lost_in_the_campaign(tmp_path):
    table = tmp_path / "table.md"
    assert campaign.main(["--out", str(table)]) == 0, table.read_text()
