"""A record that is a pipe, a device, too deep or too long is named; all others are still shown."""

from __future__ import annotations

import hashlib
import json
import os

import pytest
from faults.test_forged import FLAGS, cells, honest  # noqa: F401  # fixtures

from gcdbench.cli.main import main
from gcdbench.experiment import records

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]
COMMAND = [*FLAGS, "--methods", "gcd", "simgcd"]


def with_checksum(content):
    """Return a record's text, with a checksum that fits whatever is in it."""
    content.pop("sha256", None)
    text = json.dumps(content, sort_keys=True)
    return json.dumps({**content, "sha256": hashlib.sha256(text.encode()).hexdigest()})


def deep(levels):
    value = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def changed(path, **changes):
    path.write_text(with_checksum({**json.loads(path.read_text()), **changes}))


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def folder(path):
    path.unlink()
    path.mkdir()


def sparse(path):
    with path.open("r+b") as file:
        file.truncate(1 << 40)


def twice(path):
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 7, "seed": 0'))


HARM = {
    "pipe": (pipe, "not an ordinary file"),
    "device": (device, "not an ordinary file"),
    "folder": (folder, "cannot be read|not an ordinary file"),
    "a terabyte": (sparse, "larger than"),
    "a name twice": (twice, "'seed' twice"),
    "100,000 levels": (lambda p: p.write_text("[" * 100_000), "nested too deeply"),
    "900 levels": (lambda p: changed(p, settings=deep(900)), "nested too deeply|format"),
    "30 levels": (lambda p: changed(p, settings=deep(30)), "nested too deeply"),
    "5,000 digits": (lambda p: p.write_text('{"format": ' + "9" * 5000 + "}"), "cannot be read"),
    "400 digits": (
        lambda p: changed(p, timing={**json.loads(p.read_text())["timing"], "started": 10**400}),
        "timing.started is inf",
    ),
    "NaN": (lambda p: p.write_text('{"format": NaN}'), "NaN is not a number"),
    "not UTF-8": (lambda p: p.write_bytes(b"\xff\xfe{}"), "cannot be read"),
    "newer": (lambda p: changed(p, format=9), "of a newer gcdbench"),
    "a list": (lambda p: p.write_text("[]"), "is not a record"),
    "wrong types": (lambda p: changed(p, seed="0", sets=[]), "is not a"),
}


@pytest.mark.parametrize("kind", HARM)
def test_every_verb_names_a_hostile_record_and_shows_the_others(honest, capsys, kind):  # noqa: F811
    harm, reason = HARM[kind]
    harm(honest[1])
    results = honest[0].parents[3]
    damaged = records.read_record(honest[1])
    assert isinstance(damaged, records.Damaged)
    assert any(part in damaged.reason for part in reason.split("|")), damaged.reason
    for verb in ("plan", "status", "leaderboard"):
        assert main([verb, *COMMAND, "--results", str(results)]) == 0
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert "GCD" in said.out if verb == "leaderboard" else "gcd" in said.out
    assert main(["results", "verify", str(results)]) == 1
    assert "1 valid record" in capsys.readouterr().out
    assert main(["results", "merge", str(results), "--into", str(results.parent / "all")]) == 1
    assert "1 copied" in capsys.readouterr().out
    assert main(["results", "rescore", str(results), "--check"]) == 0
    assert "1 cannot be rescored" in capsys.readouterr().out
