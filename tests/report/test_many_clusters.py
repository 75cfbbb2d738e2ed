"""A hundred thousand clusters need no square table."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from gcdbench.report import correctness
from gcdbench.report.correctness import right
from gcdbench.training.scoring.scores import score


@pytest.fixture(scope="module")
def sample():
    rng = np.random.RandomState(0)
    labels = rng.randint(60, size=2_000)
    guess = np.where(rng.rand(2_000) < 0.4, labels * 1_500, rng.randint(100_000, size=2_000))
    guess[0] = 99_999
    return guess, labels


def test_many_clusters_are_matched_in_little_memory(sample):
    guess, labels = sample
    tracemalloc.start()
    share = right(guess, labels).mean()
    scored = score(preds=guess, labels=labels, num_old=30, num_classes=60)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6
    assert share == pytest.approx(scored.all)


def test_few_rows_give_what_the_square_table_gives(sample, monkeypatch):
    guess, labels = np.unique(sample[0], return_inverse=True)[1] % 200, sample[1]
    square = right(guess, labels).mean()
    monkeypatch.setattr(correctness, "MOST_DENSE", 10)
    assert right(guess, labels).mean() == pytest.approx(square)
