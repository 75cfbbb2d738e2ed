"""A record as a value: its parts, its JSON, and what earlier formats become."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.synthetic_records import SETTINGS, make_record, set_scores

from gcdbench.experiment import records
from gcdbench.experiment.record import (
    FORMAT,
    CurvePoint,
    ProblemFacts,
    Record,
    SetScores,
    SplitAccuracies,
    Unreadable,
    migrated,
    part,
)
from gcdbench.experiment.typed_json import Mismatch

COMMITTED = ROOT / "results" / "drawshift"


def whole() -> Record:
    """Return a record in which every part has a value."""
    rates = {"nmi": 0.5, "false_negative_rate": None}
    return make_record(
        problem=ProblemFacts(4, 2, 5, 3, 7, {"split": "v1"}, Unreadable(1, {"a.png": "broken"})),
        sets={"ink": set_scores("source", 0.5, new=None, rates=rates)},
        summary={"pooled": set_scores("", 0.4)},
        curve=(
            CurvePoint(0, 0.1, {"loss": 1.5}),
            CurvePoint(1, 0.05, {"loss": None}, {"ink": SplitAccuracies(0.4, 0.5, None)}),
        ),
    )


def test_json_and_back_is_the_same_record():
    assert Record.from_json(whole().to_json()) == whole()


def test_scores_are_flat_in_json_and_rates_are_found_by_name():
    scores = whole().sets["ink"]
    flat = {"role": "source", "all": 0.5, "old": 0.5, "new": None, "n": 10, "n_old": 5}
    assert scores.to_json() == {**flat, "nmi": 0.5, "false_negative_rate": None}
    assert [scores.rate(name) for name in ("All", "new", "nmi", "ari")] == [0.5, None, 0.5, None]
    assert "role" not in whole().summary["pooled"].to_json()


def test_computed_scores_enter_without_nan():
    values = {"role": "source", "all": 1.0, "old": 1.0, "new": math.nan, "n": 2, "n_old": 2}
    assert part(SetScores, {**values, "ari": math.nan}) == SetScores(
        1.0, 1.0, None, 2, 2, "source", {"ari": None}
    )


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("key",), 7, "key is not a text"),
        (("seed",), True, "seed is not a whole number"),
        (("curve",), {}, "curve is not a list"),
        (("curve", 1, "lr"), "fast", r"curve\[1\]\.lr is not a number"),
        (("sets", "ink", "all"), None, r"sets\.ink\.all is not a number"),
        (("sets", "ink", "nmi"), math.inf, r"sets\.ink\.nmi is inf, which is not a finite"),
        (("sets", "ink", "n"), 1.5, r"sets\.ink\.n is not a whole number"),
        (("provenance", "git", "dirty"), "no", r"provenance\.git\.dirty is not true or false"),
        (("timing",), None, "timing is missing"),
        (("timing", "colour"), 1, r"timing\.colour is not known"),
        (("settings", "train"), {}, r"settings\.train\.epochs is missing"),
        (("settings", "source"), {}, "settings.source does not name one source"),
        (("format",), 3, "format 3 is not known"),
    ],
)
def test_a_wrong_value_is_named_by_its_place(path, value, reason):
    data = copy.deepcopy(whole().to_json())
    inner = data
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(Mismatch, match=reason):
        Record.from_json(data)


@pytest.mark.parametrize("name", [n for n in whole().to_json() if n != "predictions_sha256"])
def test_every_field_is_needed(name):
    data = whole().to_json()
    del data[name]
    with pytest.raises(Mismatch, match=name):
        Record.from_json(data)


def test_the_first_format_lacks_the_version_of_scores_and_may_say_how_cells_were_run():
    old = {**whole().to_json(), "format": 1}
    del old["scores"]
    old["provenance"] = {**old["provenance"], "side_by_side": True}
    assert migrated(old) == {**whole().to_json(), "scores": "", "format": FORMAT}
    assert migrated({**old, "scores": "a1"})["scores"] == "a1"  # the last files of format 1


def test_settings_that_several_places_read_have_names():
    settings = {**SETTINGS, "limit": 64, "config": {"hilo": {"k": 1}}}
    record = make_record(method="hilo", settings=settings)
    assert (record.epochs, record.backbone_name, record.limit) == (8, "embedded", 64)
    assert record.source == ("drawshift", {})
    assert (record.config("hilo"), record.config("patchmix")) == ({"k": 1}, {})
    assert record.label == "hilo on toy, seed 0"
    assert make_record().limit is None


@pytest.mark.parametrize(
    "path", sorted(COMMITTED.glob("*/line*/hilo/seed0-*/record.json")), ids=str
)
def test_committed_records_are_valid(path: Path):
    assert records.invalid(path, records.read_record(path)) == ""
