"""The reviewed split of the embedded drawings: pinned, consistent, and large enough."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest

from gcdbench.data.datasets.drawshift import DOMAINS, FOLDER, _index, class_split, drawings

VERSION = 1
CHECKSUM = "ea9d723da891b6d8db86fa690fc85a51ead3e0a28226477e4780f2e32540c269"
SIZES = {"line": 2632, "solid": 2592, "color": 768, "quickdraw": 3842}
EXCLUDED = {"line": 87, "solid": 88, "color": 34, "quickdraw": 58}


def test_a_changed_split_needs_a_new_version():
    assert class_split()["version"] == VERSION
    text = (FOLDER / "split.json").read_text(encoding="utf-8")
    assert hashlib.sha256(text.encode()).hexdigest() == CHECKSUM, (
        "split.json changed: raise its version, then state the new version, checksum and sizes here"
    )


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_domain_holds_its_drawings_without_the_excluded_ones(domain):
    found = drawings(domain)
    assert len(found.images.ids) == len(found.labels) == SIZES[domain]
    assert not set(found.images.ids) & set(class_split()["excluded"])


def test_every_excluded_drawing_exists_and_has_a_reason():
    excluded = class_split()["excluded"]
    assert set(excluded) <= {row["path"] for row in _index()}
    assert all(reason.strip() for reason in excluded.values())
    assert Counter(path.partition("/")[0] for path in excluded) == EXCLUDED


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_class_keeps_four_drawings_in_each_domain(domain):
    split = class_split()
    counts = np.bincount(drawings(domain).labels, minlength=len(split["old"] + split["new"]))
    assert len(counts) == 65
    assert counts.min() >= 4


def test_old_and_new_classes_are_all_classes_and_alternate():
    split = class_split()
    classes = sorted({row["class"] for row in _index()})
    assert (split["old"], split["new"]) == (classes[::2], classes[1::2])
