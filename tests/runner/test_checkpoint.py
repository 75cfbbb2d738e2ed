"""Checkpoints: whole or absent, checked when read, two of them, and never a reason to run code."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle

import pytest
import torch

from gcdbench.runner import checkpoint

STATE = {"key": "k", "epoch": 2, "model": {"w": torch.arange(6.0)}, "terms": ["a"], "weights": None}


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    checkpoint.save(tmp_path, 7, STATE)
    found = checkpoint.load_latest(tmp_path, "k")
    assert found is not None
    assert torch.equal(found["model"]["w"], STATE["model"]["w"])
    assert {k: found[k] for k in ("epoch", "terms", "weights")} == {
        "epoch": 2,
        "terms": ["a"],
        "weights": None,
    }


def test_the_newest_of_two_is_read_and_older_ones_are_removed(tmp_path):
    for step in (9, 10, 100):
        checkpoint.save(tmp_path, step, {**STATE, "epoch": step})
    assert [path.name for path in checkpoint.files(tmp_path)] == [
        "checkpoint-00000100.pt",
        "checkpoint-00000010.pt",
    ]
    assert checkpoint.load_latest(tmp_path, "k")["epoch"] == 100


def test_without_a_checkpoint_there_is_nothing_to_go_on_from(tmp_path):
    assert checkpoint.load_latest(tmp_path, "k") is None


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_flipped_bit_sends_the_run_back_to_the_checkpoint_before(tmp_path, caplog, where):
    checkpoint.save(tmp_path, 1, {**STATE, "epoch": 1})
    checkpoint.save(tmp_path, 2, {**STATE, "epoch": 2})
    newest = checkpoint.files(tmp_path)[0]
    data = bytearray(newest.read_bytes())
    data[int(where * len(data))] ^= 1
    newest.write_bytes(data)
    assert checkpoint.load_latest(tmp_path, "k")["epoch"] == 1
    assert "checkpoint-00000002.pt is skipped: it does not match its checksum" in caplog.text


@pytest.mark.parametrize("length", [0, 10, 60, 500])
def test_a_truncated_checkpoint_is_passed_over(tmp_path, caplog, length):
    checkpoint.save(tmp_path, 1, STATE)
    path = checkpoint.files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:length])
    assert checkpoint.load_latest(tmp_path, "k") is None
    assert "is skipped" in caplog.text


class Mischief:
    def __reduce__(self):
        return os.mkdir, (os.environ["MISCHIEF"],)


def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("MISCHIEF", str(tmp_path / "harm"))
    payload = pickle.dumps({"key": "k", "model": Mischief()})
    digest = hashlib.sha256(payload).hexdigest().encode()
    (tmp_path / "checkpoint-00000001.pt").write_bytes(
        checkpoint.MAGIC + digest + b"\n" + payload  # all right but for what it holds
    )
    assert checkpoint.load_latest(tmp_path, "k") is None
    assert not (tmp_path / "harm").exists()
    assert "is skipped" in caplog.text


def test_a_checkpoint_of_another_cell_is_passed_over(tmp_path, caplog):
    checkpoint.save(tmp_path, 1, STATE)
    assert checkpoint.load_latest(tmp_path, "another") is None
    assert "it belongs to another cell" in caplog.text


def test_a_full_disk_leaves_the_older_checkpoint_and_says_so(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, STATE)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        checkpoint.NotSaved,
        match=r"after step 2 .*No space left on device.*checkpoint-00000001.pt is kept; make room",
    ):
        checkpoint.save(tmp_path, 2, STATE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-00000001.pt"]
    assert checkpoint.load_latest(tmp_path, "k") is not None


def test_a_cell_that_is_done_keeps_no_checkpoint(tmp_path):
    checkpoint.save(tmp_path, 1, STATE)
    checkpoint.discard(tmp_path)
    assert list(tmp_path.iterdir()) == []
