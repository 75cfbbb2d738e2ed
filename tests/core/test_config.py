from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from gcdbench.core.config import build, load_yaml, merge, parse_assignments, parse_yaml, plain
from gcdbench.errors import UserError


@dataclass(frozen=True)
class Sample:
    rate: float = 0.1
    count: int = 1
    name: str = "a"
    flag: bool = False
    kind: Literal["x", "y"] = "x"
    limit: int | None = None
    items: tuple[str, ...] = ()


def test_numbers_and_words_are_read_as_people_write_them():
    text = "a: 1e-3\nb: no\nc: 010\nd: .5\ne: true\nf:\ng: 1.\nh: on"
    expected = {"a": 1e-3, "b": "no", "c": 10, "d": 0.5, "e": True, "f": None, "g": 1.0, "h": "on"}
    assert parse_yaml(text, "x") == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3", "x.yaml, line 3: key 'a' is given twice"),
        ("a: [1", "x.yaml, line 1: not valid YAML"),
        ("a: {b: 1, b: 2}", "key 'b' is given twice"),
    ],
)
def test_broken_yaml_is_refused_with_its_place(text, sentence):
    with pytest.raises(UserError, match=sentence.replace("[", r"\[")):
        parse_yaml(text, "x.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "a: \x07",
        "[1]: 2",
        "? {a: 1}\n: 2",
        "!!int abc",
        "!!float abc",
        "!!bool abc",
        "!!timestamp abc",
        "9" * 5000,
        "[" * 5000,
        "&a [*b]",
    ],
    ids=lambda text: text[:16],
)
def test_what_yaml_cannot_hold_is_one_sentence_in_files_and_on_the_command_line(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"x\.yaml.*: not valid YAML \(.+\)$"):
        load_yaml(path)
    with pytest.raises(UserError, match=r"--set train\.lr.*: not valid YAML \(.+\)$"):
        parse_assignments([f"train.lr={text}"])


def test_a_number_that_no_rate_can_be_is_refused():
    with pytest.raises(UserError, match="the number is too large"):
        build(Sample, {"rate": 10**400}, "s")


def test_a_file_that_is_missing_or_no_mapping_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        load_yaml(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(UserError, match="expected a mapping"):
        load_yaml(tmp_path / "list.yaml")


def test_a_whole_number_serves_as_a_rate_and_a_list_as_a_tuple():
    made = build(Sample, {"rate": 1, "items": ["a", "b"], "limit": None}, "s")
    assert (made.rate, made.items, made.limit) == (1.0, ("a", "b"), None)
    assert isinstance(made.rate, float)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"rat": 1}, "unknown key 'rat' in s; did you mean 'rate'"),
        ({"rate": "1e-3x"}, "s.rate: expected a number, got '1e-3x'"),
        ({"count": 1.5}, "s.count: expected a whole number, got 1.5"),
        ({"count": True}, "s.count: expected a whole number, got True"),
        ({"flag": 1}, "s.flag: expected true or false, got 1"),
        ({"kind": "z"}, "s.kind: expected one of x, y, got 'z'"),
        ({"items": "a"}, "s.items: expected a list, got 'a'"),
        ({"items": [1]}, r"s.items\[0\]: expected a word, got 1"),
    ],
)
def test_a_wrong_key_or_type_is_refused_with_its_place(values, sentence):
    with pytest.raises(UserError, match=sentence):
        build(Sample, values, "s")


def test_assignments_are_typed_and_grouped():
    assert parse_assignments(["train.lr=1e-3", "train.strict=false", "hilo.preset=released"]) == {
        "train": {"lr": 0.001, "strict": False},
        "hilo": {"preset": "released"},
    }


@pytest.mark.parametrize("text", ["lr=1", "train.lr", ".lr=1", "train.=1"])
def test_a_malformed_assignment_says_how_to_write_it(text):
    with pytest.raises(UserError, match=r"section\.key=value"):
        parse_assignments([text])


def test_later_layers_win_and_nested_mappings_are_merged():
    assert merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}) == {"a": {"x": 1, "y": 3}}


def test_a_config_survives_the_way_through_plain_values():
    sample = Sample(rate=0.5, items=("a",))
    assert build(Sample, plain(sample), "s") == sample
