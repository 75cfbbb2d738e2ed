"""Records of several machines come together; nothing is mixed and nothing is lost."""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import pytest
from helpers.synthetic_records import PROVENANCE, make_record, set_scores

from gcdbench.cli import results as commands
from gcdbench.errors import UserError
from gcdbench.experiment import heartbeat, records
from gcdbench.runner.merge import merge

K, L = (make_record(settings={"name": name}).key for name in "kl")


def write(results, name: str = "k", accuracy: float = 0.5, **more):
    """Write a record where it belongs."""
    origin = replace(PROVENANCE, platform=str(results))
    sets = {"ink": set_scores("source", accuracy)}
    record = make_record(settings={"name": name}, sets=sets, provenance=origin, **more)
    folder = results / "toy" / "m" / f"seed0-{record.key}"
    records.write_record(folder, record, {"ink": np.arange(10)})
    (folder / heartbeat.LOG).write_text("a line\n")
    return folder


def accuracies(results) -> dict[str, float]:
    return {r.key: r.sets["ink"].all for _, r in records.read_all(results)}


def test_records_of_two_machines_come_together(tmp_path):
    write(tmp_path / "a", "k", 0.1)
    write(tmp_path / "b", "l", 0.2)
    merged = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert accuracies(tmp_path / "all") == {K: 0.1, L: 0.2}
    assert len(merged.copied) == 2
    assert (tmp_path / f"all/toy/m/seed0-{K}" / heartbeat.LOG).exists()


def test_the_same_numbers_from_two_machines_are_one_record(tmp_path):
    write(tmp_path / "a")
    write(tmp_path / "b")
    merged = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert (len(merged.copied), len(merged.same), len(merged.differing)) == (1, 1, 0)


def test_other_numbers_under_one_key_are_kept_beside_and_only_once(tmp_path):
    write(tmp_path / "a", accuracy=0.1)
    write(tmp_path / "b", accuracy=0.2)
    for expected in (1, 0):
        merged = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
        assert len(merged.differing) == expected
    assert accuracies(tmp_path / "all") == {K: 0.1}
    folder = tmp_path / f"all/toy/m/seed0-{K}"
    kept = records.read_record(folder / "previous-1/record.json")
    assert kept.sets["ink"].all == 0.2
    assert records.wrong_predictions(folder / "previous-1", kept) == ""
    assert len(list(folder.glob("previous-*"))) == 1


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda f: (f / "record.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "predictions.npz").write_bytes(b"x"), "do not match their checksum"),
        (lambda f: f.rename(f.with_name("seed1-k")), "belong"),
    ],
    ids=["truncated record", "foreign predictions", "wrong place"],
)
def test_what_cannot_be_trusted_is_refused_with_the_reason(tmp_path, harm, reason):
    harm(write(tmp_path / "a"))
    merged = merge([tmp_path / "a"], tmp_path / "all")
    assert accuracies(tmp_path / "all") == {}
    ((_, said),) = merged.refused
    assert reason in said


def test_a_damaged_record_is_replaced_by_a_valid_one_and_kept(tmp_path):
    write(tmp_path / "a", accuracy=0.1)
    (write(tmp_path / "all", accuracy=0.1) / "record.json").write_text("{")
    merge([tmp_path / "a"], tmp_path / "all")
    assert accuracies(tmp_path / "all") == {K: 0.1}
    assert (tmp_path / f"all/toy/m/seed0-{K}/previous-1/record.json").read_text() == "{"


def test_a_cell_that_is_being_trained_is_left_alone(tmp_path):
    write(tmp_path / "a")
    folder = tmp_path / f"all/toy/m/seed0-{K}"
    with heartbeat.locked(folder):
        merged = merge([tmp_path / "a"], tmp_path / "all")
    assert "is being trained right now" in merged.refused[0][1]
    assert accuracies(tmp_path / "all") == {}


def test_a_folder_is_not_merged_into_itself(tmp_path):
    write(tmp_path / "a")
    with pytest.raises(UserError, match="into itself"):
        merge([tmp_path / "a"], tmp_path / "a")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no folder .*nowhere"):
        merge([tmp_path / "nowhere"], tmp_path / "all")


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    commands.add_results(parser)
    return parser.parse_args(arguments)


def test_the_verb_counts_and_exits_with_one_if_something_was_refused(tmp_path, capsys):
    write(tmp_path / "a", accuracy=0.4)
    (write(tmp_path / "b", "l") / "record.json").write_text("{")
    both = ("merge", str(tmp_path / "a"), str(tmp_path / "b"), "--into", str(tmp_path / "all"))
    assert commands.results(parse(*both)) == 1
    assert capsys.readouterr().out == (
        "1 copied, 0 already there, 0 kept as previous-<n>, 1 refused\n"
    )
    assert commands.results(parse("verify", str(tmp_path / "a"))) == 0
    assert commands.results(parse("verify", str(tmp_path / "b"))) == 1
