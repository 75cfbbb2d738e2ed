"""Splits that other code bases can use, and theirs."""

from __future__ import annotations

import csv
import json

import pytest
from helpers import more_trees
from helpers.data_verbs import call, problem

from gcdbench.cli.main import main
from gcdbench.data.split_files import same_split
from gcdbench.errors import UserError
from gcdbench.experiment.plan import Request, make_cells


def exported(capsys, *arguments: object) -> list[dict[str, str]]:
    assert call("export-split", *arguments) == 0
    return list(csv.DictReader(capsys.readouterr().out.splitlines()))


def test_every_image_has_its_path_class_and_roles(tmp_path, capsys):
    more_trees.domain_folders(tmp_path, "pacs")
    asked = ("--suite", "pacs", "--dataset", "photo+others", "--data-root", tmp_path)
    rows = exported(capsys, *asked)
    labelled = {row["path"] for row in rows if row["role"] == "labelled"}
    old = ("dog", "elephant", "giraffe", "guitar")
    assert labelled == {f"PACS/photo/{c}/{i:03d}.jpg" for c in old for i in range(4)}
    others = [row for row in rows if row["role"] != "labelled"]
    assert {row["role"] for row in others} == {"unlabelled;scored"}
    assert len(others) == 3 * 7 * 4
    assert {row["sets"] for row in others} == {
        f"{d}=shifted" for d in ("art_painting", "cartoon", "sketch")
    }
    assert all((tmp_path / row["path"]).is_file() for row in rows)
    assert all(row["path"].split("/")[2] == row["class"] for row in rows)
    assert all((row["class"] in old) == (row["old"] == "1") for row in rows)


def test_corrupted_images_are_told_apart_by_their_sets(miniature, capsys):
    asked = ("--suite", "ssb-c", "--dataset", "fgvc-c", "--data-root", miniature)
    rows = exported(capsys, *asked)
    found = problem("aircraft", miniature)
    assert len(rows) == len(found.images)
    fog = [row for row in rows if row["sets"] == "fog/3=shifted"]
    assert len(fog) == 100
    assert all(row["path"].startswith("fgvc-aircraft-2013b/data/images/") for row in fog)


def test_json_holds_the_classes_in_order_and_the_fingerprint(tmp_path, capsys):
    more_trees.clevr4(tmp_path)
    out = tmp_path / "out" / "split.json"
    asked = ("--suite", "clevr-4", "--dataset", "shape", "--data-root", tmp_path)
    assert call("export-split", *asked, "--format", "json", "--out", out) == 0
    read = json.loads(out.read_text())
    found = problem("clevr4", tmp_path, taxonomy="shape")
    assert read["classes"] == list(found.classes)
    assert read["num_old"] == 5
    assert len(read["images"]) == len(found.images)
    assert read["images"][0]["roles"] in (["labelled"], ["unlabelled", "scored"])


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_an_exported_split_comes_back_as_it_was(tmp_path, kind):
    more_trees.domain_folders(tmp_path, "pacs")
    file, suite = tmp_path / f"split.{kind}", tmp_path / "mine.yaml"
    asked = ("--suite", "pacs", "--dataset", "sketch+others", "--data-root", tmp_path)
    call("export-split", *asked, "--format", kind, "--out", file)
    assert call("import-split", file, "--out", suite, "--data-root", tmp_path) == 0
    before = make_cells(Request("pacs", ("simgcd",), ("sketch+others",), data_root=tmp_path))[0]
    after = make_cells(Request(str(suite), ("simgcd",), data_root=tmp_path))[0]
    one, other = before.problem(), after.problem()
    by_id = {name: row for row, name in enumerate(one.images.ids)}
    assert one.classes == other.classes
    for rows, theirs in ((one.labelled, other.labelled), (one.unlabelled, other.unlabelled)):
        assert sorted(rows) == sorted(by_id[other.images.ids[row]] for row in theirs)
    assert {n: s.role for n, s in one.sets.items()} == {n: s.role for n, s in other.sets.items()}
    again = make_cells(Request(str(suite), ("simgcd",), data_root=tmp_path))[0].problem()
    assert same_split(again, other)


def test_a_split_of_another_code_base_needs_three_columns_only(trees, tmp_path, capsys):
    lines = ["path,class,role"]
    for label, role in (("ant", "labelled"), ("ant", "unlabelled"), ("bee", "unlabelled")):
        for i in range(3):
            trees.image(f"theirs/{label}/{role}{i}.png")
            lines.append(f"{label}/{role}{i}.png, {label}, {role}")
    file = tmp_path / "theirs.csv"
    file.write_text("\n".join(lines))
    assert call("import-split", file, "--images", trees.root / "theirs") == 0
    assert "3 labelled and 6 unlabelled images, 1 of 2 classes old" in capsys.readouterr().out
    found = make_cells(Request(str(tmp_path / "theirs.yaml"), ("simgcd",)))[0].problem()
    assert found.classes == ("ant", "bee")
    assert {n: (s.role, len(s.rows)) for n, s in found.sets.items()} == {"all": ("source", 6)}


FOREIGN = {
    "other names": "filename,species,split\na/1.png,ant,labeled\na/2.png,bee,UNLABELED\n",
    "semicolons": "Path; Class; Role\na/1.png; ant; labelled\na/2.png; bee; unlabelled\n",
    "backslashes": "path,class,role\r\n.\\a\\1.png,ant,labelled\r\na\\2.png,bee,unlabelled\r\n",
    "unknown columns": "x,path,label,role\n3,a/1.png,ant,labelled\n4,./a//2.png,bee,unlabelled\n",
    "columns": '{"path": ["a/1.png", "a/2.png"], "class": {"0": "ant", "1": "bee"}, '
    '"role": ["labelled", "unlabelled"]}',
    "lists by role": '{"labelled": [{"path": "a/1.png", "class": "ant"}], '
    '"unlabelled": [{"image": "a/2.png", "category": "bee"}]}',
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_splits_of_other_code_bases_are_read_as_they_are(trees, text):
    trees.image("a/1.png")
    trees.image("a/2.png")
    (trees.root / "theirs").write_text(text, encoding="utf-8-sig", newline="")
    found = problem("listed", trees.root, file="theirs")
    assert (found.classes, found.num_old) == (("ant", "bee"), 1)
    assert (found.labelled.tolist(), found.unlabelled.tolist()) == ([0], [1])
    assert found.images.open(1).size == (48, 36)


def test_domains_of_a_foreign_split_become_sets(trees, tmp_path):
    lines = ["path\tclass\trole\tdomain"]
    for domain, role in (("a", "labelled"), ("a", "unlabelled;scored"), ("b", "scored")):
        for i in range(2):
            trees.image(f"{domain}/{role[:3]}{i}.png")
            lines.append(f"{domain}/{role[:3]}{i}.png\tcat\t{role}\t{domain}")
    trees.text("split.tsv", *lines)
    found = problem("listed", trees.root, file="split.tsv")
    assert {n: s.role for n, s in found.sets.items()} == {"a": "source", "b": "unseen"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,class\na.png,ant\n", "line 1: no column 'role'"),
        ("path,class,role\na.png,ant,test\n", "line 2: role 'test' is none of labelled, unlab"),
        ("path,class,role\na.png,,labelled\n", "line 2: an image needs a path and a class"),
        ("path,class,role\nb.png,ant,labelled\n", "1 of 1 images are not in .* is b.png"),
        ("path,class,role\na.png,ant,labelled\na.png,bee,scored\n", "a.png is listed twice"),
        ("path,class,role\n", "no image is listed"),
        ("", "no image is listed"),
        ("photo,kind\n", "line 1: no column 'path' among 'photo', 'kind'; a split has path"),
        ("path,class,role\na.png,ant,labelled,x\n", "line 2: more values than there are columns"),
        ("path,class,role\na.png,ant,labelled\n", "no image has the role unlabelled"),
        ('{"images": 3}', "not a split in JSON"),
        ("path,class,role,label\na.png,ant,labelled,x\n", "line 2: label 'x' is no class number"),
    ],
)
def test_a_split_that_cannot_be_used_is_refused_by_its_line(trees, text, message):
    trees.image("a.png")
    (trees.root / "split.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        problem("listed", trees.root, file="split.csv")


def test_a_dataset_must_be_named_where_there_are_several(tmp_path, capsys):
    more_trees.domain_folders(tmp_path, "vlcs")
    arguments = ["data", "export-split", "--suite", "vlcs", "--data-root", str(tmp_path)]
    assert main(arguments) == 2
    assert "name one with --dataset: caltech101+others, labelme" in capsys.readouterr().err
