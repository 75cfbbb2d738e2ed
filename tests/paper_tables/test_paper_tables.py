"""The paper's tables as commands: what they plan, and how measured numbers meet the printed."""

from __future__ import annotations

import csv
import io
import math
import re
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from helpers.synthetic_records import make_record, record_of, set_scores

from gcdbench.cli.main import main
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.plan import Request, make_cells
from gcdbench.experiment.record import SetScores, Timing
from gcdbench.paper_tables.render import markdown, to_csv
from gcdbench.paper_tables.results import columns_of, gather
from gcdbench.paper_tables.tables import (
    SCALES,
    Choice,
    distinct,
    identity,
    load,
    make_plan,
    make_plans,
    tables,
)
from gcdbench.report import paper_numbers

OF_THE_PAPER = [name for name in tables() if load(name).paper]


def plan(name: str, **choice):
    return make_plan(load(name), Choice(**choice))


def write(results, cell, *, shares, **more):
    """Write a record of a cell in which every set has the given fractions (all, old, new)."""
    scores = SetScores(*shares, n=10, n_old=5)
    sets = {n: replace(scores, role=s.role) for n, s in cell.problem().sets.items()}
    summary = {"others": scores, "corrupted": scores}
    record = record_of(cell, sets=sets, summary=summary, **more)
    folder = records.cell_folder(results, cell)
    records.write_record(folder, record, {"all": np.zeros(1)})


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", tables())
def test_every_table_plans_into_cells(name, scale):
    made = plan(name, scale=scale)
    assert made.cells
    assert len(made.cells) <= sum(len(cells) for e in made.entries for cells in e.cells.values())
    if scale == "embedded":
        assert {cell.backbone.name for cell in made.cells.values()} == {"embedded"}


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_every_row_and_dataset_of_a_table_is_one_of_the_papers(name):
    table = load(name)
    printed = {
        (t.dataset, t.method, t.variant)
        for file in table.paper
        for t in paper_numbers.triples(file)
    }
    named = {(panel.paper, *row.paper) for panel in table.panels for row in panel.rows}
    assert named <= printed
    # and no row of the paper is forgotten, but for one that it prints twice
    assert {row for row in printed - named if row[2] != "reference (repeated)"} == set()


def test_nothing_is_planned_twice_across_tables():
    plans = make_plans(map(load, tables()), Choice())
    together = distinct(cell for one in plans for cell in one.cells.values())
    asked = sum(len(one.cells) for one in plans)
    assert max(len(one.cells) for one in plans) < len(together) < asked
    main_table = set(plan("ssb_c").cells)
    assert set(plan("per_corruption").cells) < main_table
    reference = next(e for e in plan("ablation_step").entries if e.row.name == "SimGCD")
    (cell,) = reference.cells[0]
    assert identity(cell) in plan("domainnet").cells


def test_a_cell_of_a_table_is_the_cell_of_an_ordinary_run():
    from gcdbench.experiment.plan import Request, make_cells

    (ordinary,) = make_cells(
        Request("drawshift", ("hilo",), ("line+solid",), (0,), {"hilo": {"semantic_block": 1}})
    )
    made = plan("ablation_step", scale="embedded", seeds=(0,))
    assert ordinary.key in {cell.key for cell in made.cells.values()}


def test_settings_of_a_row_and_of_the_command_line_reach_the_cells():
    made = plan("learning_rates", seeds=(0,), assignments={"hilo": {"num_domains": 7}})
    hilo = [c for c in made.cells.values() if c.spec.method == "hilo"]
    assert {c.train.lr for c in hilo} == {0.1, 0.05, 0.01}
    assert {c.method_config["num_domains"] for c in hilo} == {7}
    deep = plan("ablation_step", scale="embedded", seeds=(0,)).entries[6]
    assert deep.cells[0][0].method_config["domain_block"] == 4


def test_what_has_no_place_at_a_scale_is_named():
    assert plan("domainnet", scale="embedded").left_out == [
        "real+clipart: nothing stands for it at this scale",
        "real+infograph: nothing stands for it at this scale",
    ]
    assert len(plan("clip", scale="embedded").left_out) == 2
    assert plan("domainnet").left_out == []


def test_measured_numbers_stand_below_the_papers(trees, tmp_path):
    trees.domainnet()
    made = plan("ablation_step", data_root=trees.root, seeds=(0, 1))
    first, *_, hilo = (made.entries[i] for i in (0, 1, 5))
    for seed, all_ in ((0, 0.60), (1, 0.62)):
        write(tmp_path, first.cells[seed][0], shares=(all_, 0.7, 0.5))
    write(tmp_path, hilo.cells[0][0], shares=(0.5, 0.5, 0.5))
    result = gather(made, tmp_path)
    (block,) = result.blocks
    assert block.columns == {"real": "Real", "painting": "Painting"}
    number = block.lines[0].numbers["real", "All"]
    assert (number.paper, number.mean) == (61.3, pytest.approx(61.0))
    assert number.std == pytest.approx(2**0.5)
    assert number.delta == pytest.approx(-0.3)
    text = markdown(result)
    assert "3 of 18 cells are recorded" in text
    assert "measured (1 of 2 seeds)" in text
    rows = list(csv.DictReader(io.StringIO(to_csv(result))))
    assert len(rows) == 9 * 2 * 3
    assert (rows[0]["row"], rows[0]["paper"], rows[0]["measured"]) == (
        "SimGCD",
        "61.3000",
        "61.0000",
    )


def test_a_table_shows_the_median_time_of_its_cells_if_it_asks_for_it(tmp_path):
    made = plan("newer_methods")
    first = made.entries[0]
    for seed, seconds in ((0, 40.0), (1, 50.0), (2, 90.0)):
        timing = Timing(0.0, 0, 1000.0, seconds, 1.0)
        write(tmp_path, first.cells[seed][0], shares=(0.6, 0.7, 0.5), timing=timing)
    result = gather(made, tmp_path)
    lines = result.blocks[0].lines
    assert lines[0].cpu_seconds == 50.0
    assert math.isnan(lines[1].cpu_seconds)
    head, _, simgcd, gcd, *_ = markdown(result).partition("\n| ")[2].splitlines()
    assert head.rstrip(" |").endswith("CPU s per cell")
    assert simgcd.rstrip(" |").endswith("50")
    assert gcd.rstrip(" |").endswith("–")
    rows = list(csv.DictReader(io.StringIO(to_csv(result))))
    assert (rows[0]["cpu_seconds"], rows[-1]["cpu_seconds"]) == ("50.0000", "")
    other = markdown(gather(plan("readings", seeds=(0,)), tmp_path))
    assert "CPU s per cell" not in other


def test_a_printed_triple_that_cannot_be_right_is_flagged(miniature, tmp_path):
    made = plan("ssb_c", data_root=miniature, datasets=("fgvc-c",), seeds=(0,))
    text = markdown(gather(made, tmp_path))
    assert "44.2 †" in text
    assert "† As printed" in text


def test_a_mean_over_datasets_needs_all_of_them(miniature, tmp_path):
    made = plan("vanilla_gcd", data_root=miniature, datasets=("cub", "scars", "fgvc"), seeds=(0,))
    entry = made.entries[0]
    *some, last = entry.cells[0]
    for cell, share in zip(some, (0.2, 0.3), strict=True):
        write(tmp_path, cell, shares=(share,) * 3)
    assert gather(made, tmp_path).blocks[0].lines[0].seeds == 0
    write(tmp_path, last, shares=(0.4,) * 3)
    line = gather(made, tmp_path).blocks[0].lines[0]
    assert line.numbers["original", "All"].mean == pytest.approx(30.0)
    assert (
        line.numbers["original", "All"].paper
        == paper_numbers.triples("vanilla_gcd")[1].values["All"]
    )


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_every_column_of_the_paper_is_scored(name, trees):
    for make in (trees.cub, trees.cars, trees.aircraft, trees.domainnet, trees.imagenet100):
        make()
    made = plan(name, data_root=trees.root, seeds=(0,))
    one = set_scores("", 0.5)
    for entry in {e.panel.title: e for e in made.entries}.values():
        sets = entry.cells[0][0].problem().sets
        summary = dict.fromkeys((*(s.partition("/")[0] for s in sets), "corrupted", "others"), one)
        roles = {name: set_scores(s.role, 0.5) for name, s in sets.items()}
        scored = make_record(sets=roles, summary=summary)
        printed = [t for f in made.table.paper for t in paper_numbers.triples(f)]
        domains = [t.domain for t in printed if t.dataset == entry.panel.paper]
        assert set(domains) == set(columns_of(scored, made.table.columns))


def test_columns_are_chosen_by_the_roles_of_the_sets():
    one = set_scores("", 0.1)
    roles = {"original": "source", "fog/1": "shifted", "fog/2": "shifted", "x": "unseen"}
    record = make_record(
        sets={name: set_scores(role, 0.1) for name, role in roles.items()},
        summary={"corrupted": one, "fog": one, "others": one},
    )
    assert list(columns_of(record, ["source", "shifted"])) == ["original", "corrupted"]
    assert list(columns_of(record, ["corruptions"])) == ["fog"]
    assert list(columns_of(record, ["others", "unseen"])) == ["others", "x"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["ablation_steps"], "did you mean 'ablation_step'"),
        ([], "name a table"),
        (["ssb_c", "--datasets", "cub"], "unknown dataset 'cub'"),
        (["uda", "--set", "uniot.x=1"], "unknown section 'uniot'"),
        (["uda", "--set", "hilo.colour=1"], "unknown key 'colour'"),
        (["uda"], "DomainNet (cleaned) is needed on disk"),
    ],
)
def test_a_wrong_request_gets_one_sentence_and_exit_code_2(
    arguments, sentence, tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("GCDBENCH_DATA", raising=False)
    assert main(["reproduce", *arguments, "--results", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert out == ""


def test_the_list_tells_cells_cost_and_the_total_after_sharing(tmp_path, capsys):
    assert main(["reproduce", "--list", "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split() for line in out[1 : 1 + len(tables())]}
    assert set(rows) == set(tables())
    assert (rows["ssb_c"][1], rows["ssb_c"][2]) == ("7", "63")
    assert all(re.search(r" (M|bn)  +[\d.]+e\d+ ", line) for line in out[1 : 1 + len(tables())])
    assert any("estimate, not measured" in line for line in out)
    total = next(line for line in out if "different ones" in line).split()
    asked, shared = int(total[0]), int(total[total.index("different") - 1])
    assert asked == sum(int(row[2]) for row in rows.values()) > shared


def test_tables_are_planned_and_listed_without_torch(tmp_path):
    code = f"""
        import sys
        from gcdbench.cli.main import main
        main(["reproduce", "--list", "--results", {str(tmp_path)!r}])
        sys.exit("torch" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True)
    assert done.returncode == 0, done.stderr


def test_a_table_is_run_printed_and_written_and_a_second_time_nothing_is_trained(tmp_path, capsys):
    arguments = ["reproduce", "clip", "--scale", "embedded", "--quick", "--seeds", "0"]
    arguments += ["--results", str(tmp_path), "--set", "task.num_classes=80"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "# clip" in out
    assert "2 of 2 cells are recorded" in out
    assert "| measured" not in out  # nothing of the paper to tell it from
    assert (tmp_path / "reproduce" / "clip-embedded-quick.md").read_text() in out
    assert (tmp_path / "reproduce" / "clip-embedded-quick.csv").exists()
    found = [record for _, record in records.read_all(tmp_path)]
    assert {record.problem.assumed_classes for record in found} == {80}
    assert main(arguments) == 0
    assert "nothing was trained" in capsys.readouterr().err


MINE = """
title: mine
seeds: [7]
panels: [{suite: drawshift, datasets: [line+color]}]
rows: {a: {method: simgcd}, b: {method: simgcd, set: {train: {lr: 0.3}}}}
"""


def test_a_table_of_ones_own_is_given_by_its_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    cells = plan(str(path)).cells.values()
    (usual, *_) = make_cells(Request("drawshift", ("simgcd",)))
    assert [(c.dataset, c.seed, c.train.lr) for c in cells] == [
        ("line+color", 7, usual.train.lr),
        ("line+color", 7, 0.3),
    ]
    assert [c.label for c in cells][1] == "simgcd (b) on line+color, seed 7"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("title", "titel", "did you mean 'title'"),
        ("title: mine", "", "the key 'title' is missing"),
        ("{method: simgcd}", "{}", "the key 'method' is missing"),
        ("suite: drawshift, ", "", "the key 'suite' is missing"),
        ("rows:", "columns: [shfited]\nrows:", "did you mean 'shifted'"),
        ("rows: {", "note: {", "a table needs 'rows'"),
        ("{method: simgcd}", "simgcd", "rows.a: expected a mapping"),
    ],
)
def test_a_malformed_table_is_refused_with_a_sentence(tmp_path, old, new, sentence):
    path = tmp_path / "mine.yaml"
    path.write_text(MINE.replace(old, new, 1))
    with pytest.raises(UserError, match=sentence):
        load(str(path))


def test_rows_of_a_method_are_compared_with_its_first_row_on_equal_seeds(tmp_path):
    made = plan("readings", datasets=("line+solid",), seeds=(0, 1, 2))
    natural, balanced = (
        next(e for e in made.entries if e.row.name == f"ORCA, {kind} sampling")
        for kind in ("natural", "balanced")
    )
    for entry, shares in ((natural, (0.5, 0.6, 0.7)), (balanced, (0.51, 0.62, 0.73))):
        for seed, share in enumerate(shares):
            write(tmp_path, entry.cells[seed][0], shares=(share, share, share))
    found = gather(made, tmp_path).differences
    assert [one.set for one in found] == ["line", "solid"]
    for one in found:  # points 1, 2 and 3: t = 3.4641 with two degrees of freedom
        assert (one.row, one.first) == (balanced.row.name, natural.row.name)
        assert (one.mean, one.std, one.seeds) == (pytest.approx(2), pytest.approx(1), 3)
        assert one.p == pytest.approx(2 * 0.0741799, abs=1e-6)  # two tests, by Holm
    text = markdown(gather(made, tmp_path))
    assert re.search(r"ORCA, balanced sampling - ORCA, natural sampling .*\+2\.0 ± 1\.0", text)


def test_a_single_seed_is_not_compared(tmp_path):
    made = plan("readings", datasets=("line+solid",), seeds=(0,))
    for entry in made.entries:
        write(tmp_path, entry.cells[0][0], shares=(0.5, 0.5, 0.5))
    assert gather(made, tmp_path).differences == []
