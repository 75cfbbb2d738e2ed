"""Two processes train a model as one does: the same losses, weights and records."""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers.faults import dies_at_step, ended, fork
from helpers.toy import Toy, make_toy
from torch import Tensor

from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.settings import TrainConfig
from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.outcome import Outcome
from gcdbench.experiment.plan import Cell
from gcdbench.nn.parallel import SingleProcess
from gcdbench.runner.cell import RunContext
from gcdbench.runner.launchers.local import run_queue
from gcdbench.runner.launchers.multiprocess import GroupMember
from gcdbench.runner.options import RunOptions
from gcdbench.runner.process_group import TorchProcessGroup
from gcdbench.runner.stop import Stop
from gcdbench.training.assemble import assemble
from gcdbench.training.conformance import Bench
from gcdbench.training.features import pool
from gcdbench.training.features.store import FeatureStore
from gcdbench.training.method import Batch, seeded
from gcdbench.training.trainer import StepEvent, train
from gcdbench.training.weights import trained_state

SMALL = {"hidden_dim": 32, "projection_dim": 16}
CONFIG = TrainConfig(epochs=4, lr=0.02)
CPU = torch.device("cpu")
pytestmark = [
    # the forked processes run on one thread and share nothing that another one could hold
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed package"),
]
DEADLY = """
import os, signal
from dataclasses import dataclass
from gcdbench.training.method import Technique

class Deadly(Technique):
    @dataclass(frozen=True)
    class Config:
        rank: int = 1  # of the process that dies

    def terms(self, model, batch, step, clock):
        if clock.step == 4 and os.environ["RANK"] == str(self.config.rank):
            os.kill(os.getpid(), signal.SIGKILL)
        return {}
"""
MORTAL = """
import os, sys
from helpers.faults import dies_at_step
from gcdbench.cli.main import main
from gcdbench.runner import cell
cell.CHECKPOINT_SECONDS = 0.0  # after every step
if sys.argv.pop(1) == os.environ["RANK"]:
    dies_at_step(4)
sys.exit(main())
"""


class Rows:
    """Batches of an odd size, so that they cannot be shared evenly."""

    steps_per_epoch = 5

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def epoch(self, epoch: int, weights: Tensor) -> Iterator[Batch]:
        generator = seeded(0, "rows", epoch)
        for _ in range(self.steps_per_epoch):
            rows = torch.multinomial(weights, 11, generator=generator, replacement=True)
            noise = torch.rand(2, *self.bench.images[rows].shape, generator=generator)
            views = 0.9 * self.bench.images[rows] + 0.1 * noise
            yield Batch(views, self.bench.labels[rows], rows)


def in_two_processes(folder: Path, function: Callable[[TorchProcessGroup], object]) -> list[int]:
    """Run a function in two processes that have met, and return their exit codes."""

    def member(rank: int) -> None:
        os.environ.update(RANK=str(rank), WORLD_SIZE="2")
        function(TorchProcessGroup(CPU, f"file://{folder / 'rendezvous'}"))

    pids = [fork(lambda rank=rank: member(rank)) for rank in range(2)]
    return [ended(pid) for pid in pids]


def context(toy: Toy, group: TorchProcessGroup, *, stop: Stop | None = None, **more) -> RunContext:
    options = RunOptions(toy.results, device="cpu", **more)
    return RunContext(options, CPU, stop=stop or Stop(), group=group)


def run_together(toy: Toy, cells: list[Cell], group: TorchProcessGroup, **more) -> Outcome:
    return run_queue(cells, GroupMember(context(toy, group, **more), group))


def fit(name: str, group: TorchProcessGroup | SingleProcess) -> dict[str, Tensor]:
    """Train for 20 steps; return the loss of every step and the weights at the end."""
    bench = Bench(MethodSpec.parse(name), {name.split("-")[0]: SMALL})
    losses: list[Tensor] = []

    def keep(event: StepEvent) -> None:
        losses.append(torch.stack(list(event.terms.values())).sum())

    if isinstance(group, TorchProcessGroup):
        bench.model.backbone.group = group
    more = {"seed": 0, "device": CPU, "on_step": keep, "group": group}
    train(bench.model, Rows(bench), CONFIG, bench.context, **more)
    return {"losses": torch.stack(losses), **copy.deepcopy(trained_state(bench.model))}


@pytest.mark.parametrize("name", ["simgcd", "hilo", "uno"])
def test_two_processes_train_as_one_does_over_twenty_steps(tmp_path, name):
    def member(group: TorchProcessGroup) -> None:
        torch.save(fit(name, group), tmp_path / f"{group.rank}.pt")

    assert in_two_processes(tmp_path, member) == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    expected = fit(name, SingleProcess())
    assert len(expected["losses"]) == 20
    for key, value in expected.items():
        torch.testing.assert_close(first[key], value, rtol=1e-5, atol=1e-5, msg=key)
        torch.testing.assert_close(second[key], first[key], rtol=0, atol=0, msg=key)


@pytest.mark.parametrize("name", ["simgcd", "hilo"])
def test_each_process_encodes_half_of_the_rows(tmp_path, name):
    def member(group: TorchProcessGroup) -> None:
        bench = Bench(MethodSpec.parse(name), {name: SMALL})
        tail, seen = bench.model.backbone.tail, []
        bench.model.backbone.tail = lambda tokens: (seen.append(len(tokens)), tail(tokens))[1]
        bench.begin()
        seen.clear()
        bench.loss()
        whole, seen[:] = seen[:], []
        bench.model.backbone.group = group
        bench.loss()
        assert seen == [-(-rows // 2) for rows in whole]

    assert in_two_processes(tmp_path, member) == [0, 0]


def assert_same_results(alone: Toy, toy: Toy, cell: Cell) -> None:
    """Compare what one process and two have recorded of a cell."""
    one, two = (records.read_done(t.results, cell) for t in (alone, toy))
    first, second = (
        records.read_predictions(records.cell_folder(t.results, cell), record)
        for t, record in ((alone, one), (toy, two))
    )
    assert first.keys() == second.keys() == one.sets.keys() == two.sets.keys()
    for name in one.sets:
        assert first[name].tolist() == second[name].tolist()
        scores, others = one.sets[name].to_json(), two.sets[name].to_json()
        # It is a mean of distances: two processes add their gradients in another order than one,
        # which changes the last bits of weights and features. The other scores come from
        # counts or from probabilities rounded to half precision.
        assert others.pop("silhouette") == pytest.approx(scores.pop("silhouette"), abs=1e-6)
        assert others == scores
    for row, other in zip(one.curve, two.curve, strict=True):
        assert other.terms == pytest.approx(row.terms, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("bank", [0, 2])
def test_a_cell_run_by_two_processes_has_the_record_of_one(tmp_path, bank):
    toy = make_toy(tmp_path)
    settings = {"view_bank": bank, "batch_size": 7, "draws_per_epoch": 21}
    cells = [toy.cell(name, train=settings) for name in ("simgcd", "gcd", "simgcd+patchmix")]
    alone = toy.elsewhere("alone")
    alone.run(cells)

    def member(group: TorchProcessGroup) -> None:
        gather, seen = group.gather, []
        group.gather = lambda part, number: (seen.append(part.ndim), gather(part, number))[1]
        assert len(run_together(toy, cells[:2], group).trained) == 2
        assert set(seen) == {2}  # features, and neither images nor patches
        assert run_together(toy, cells[2:], group).trained

    assert in_two_processes(tmp_path, member) == [0, 0]
    for cell in cells:
        assert records.read_done(toy.results, cell).provenance.processes == 2
        assert_same_results(alone, toy, cell)


def test_an_image_that_one_process_cannot_read_is_replaced_as_by_a_single_process(tmp_path):
    toy = make_toy(tmp_path)
    settings = {"view_bank": 0, "batch_size": 7, "draws_per_epoch": 21}
    cell, alone = toy.cell(train=settings), toy.elsewhere("alone")
    assert cell.key
    for name in ("ink/cross/1.png", "chalk/cross/0.png"):
        assert (tmp_path / "pictures" / name).exists()
        (tmp_path / "pictures" / name).write_text("no picture")
    alone.run([cell])

    def member(group: TorchProcessGroup) -> None:
        assert run_together(toy, [cell], group).trained == [cell]

    assert in_two_processes(tmp_path, member) == [0, 0]
    assert_same_results(alone, toy, cell)
    one, two = (records.read_done(t.results, cell) for t in (alone, toy))
    assert one.problem.unreadable == two.problem.unreadable
    assert two.problem.unreadable.count == 2


def pool_features(toy: Toy, group: TorchProcessGroup | SingleProcess, seen: list) -> list[Tensor]:
    """Sweep all images in chunks of four; note which images this process loads."""
    cell = toy.cell("hilo")  # it taps a block
    parts = assemble(cell, device=CPU, group=group, store=FeatureStore())
    serve = parts.loader.serve
    parts.loader.serve = lambda asked: serve([(seen.extend(one.rows), one)[1] for one in asked])
    found = parts.encoder.compute_features()
    parts.encoder.forget()
    rest = (parts.encoder.compute_unlabelled(), parts.encoder.compute_views("plain", 2))
    return [found.features, *found.taps.values(), *rest]


def test_a_sweep_is_split_over_the_processes_and_has_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "CHUNK", 4)
    toy, whole = make_toy(tmp_path), []
    expected = pool_features(toy, SingleProcess(), whole)

    def member(group: TorchProcessGroup) -> None:
        mine: list[int] = []
        found = pool_features(toy, group, mine)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        assert sorted(row for part in group.gather_objects(mine) for row in part) == sorted(whole)
        assert abs(len(mine) - len(whole) / 2) <= 8

    assert in_two_processes(tmp_path, member) == [0, 0]


def test_processes_that_see_different_cells_refuse_to_go_on(tmp_path):
    toy = make_toy(tmp_path)

    def member(group: TorchProcessGroup) -> None:
        lr = 0.01 * (1 + group.rank)
        with pytest.raises(ValueError, match="do not see the same cell"):
            run_together(toy, [toy.cell(train={"lr": lr})], group)

    assert in_two_processes(tmp_path, member) == [0, 0]


def test_a_diverged_cell_fails_alone(tmp_path):
    toy = make_toy(tmp_path)
    cells = [toy.cell(train={"lr": 1e30}), toy.cell()]

    def member(group: TorchProcessGroup) -> None:
        outcome = run_together(toy, cells, group)
        assert [cell for cell, _ in outcome.failed] == cells[:1]
        assert outcome.trained == cells[1:]

    assert in_two_processes(tmp_path, member) == [0, 0]


def test_an_error_of_one_process_is_what_its_cell_failed_of(tmp_path):
    toy = make_toy(tmp_path)
    cell = toy.cell()

    def member(group: TorchProcessGroup) -> None:
        average = group.all_reduce_mean

        def starve(parameters) -> None:
            if group.rank == 1:
                raise MemoryError("no more")
            average(parameters)

        group.all_reduce_mean = starve
        run_together(toy, [cell], group)

    assert in_two_processes(tmp_path, member) == [1, 1]
    failure = heartbeat.read(records.cell_folder(toy.results, cell), heartbeat.FAILURE)
    assert failure["message"].startswith("process 1 of 2: the machine is out of memory")


def test_an_image_that_one_process_cannot_read_fails_a_strict_cell_by_its_path(tmp_path):
    toy = make_toy(tmp_path)
    picture = tmp_path / "pictures/ink/cross/1.png"
    cell = toy.cell("simgcd", train={"view_bank": 0})
    assert cell.key
    picture.write_text("no picture")
    assert in_two_processes(tmp_path, lambda group: run_strictly(toy, cell, group)) == [1, 1]
    failure = heartbeat.read(records.cell_folder(toy.results, cell), heartbeat.FAILURE)
    assert f"{picture}: cannot be read as an image" in failure["message"]


def run_strictly(toy: Toy, cell: Cell, group: TorchProcessGroup) -> None:
    run_together(toy, [cell], group, strict=True)


def test_a_folder_that_cannot_be_used_fails_its_cell_in_all_processes(tmp_path):
    toy = make_toy(tmp_path)
    cells = [toy.cell("gcd"), toy.cell()]
    folder = records.cell_folder(toy.results, cells[0])
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where a folder should be")

    def member(group: TorchProcessGroup) -> None:
        outcome = run_together(toy, cells, group)
        assert [cell for cell, _ in outcome.failed] == cells[:1]
        assert outcome.trained == cells[1:]

    assert in_two_processes(tmp_path, member) == [0, 0]


@pytest.mark.parametrize("rank", [0, 1])
def test_nobody_waits_for_a_killed_process(tmp_path, rank):
    toy = make_toy(tmp_path)
    cell = toy.cell()

    def member(group: TorchProcessGroup) -> None:
        if group.rank == rank:
            dies_at_step(4)
        run_together(toy, [cell], group)

    codes = in_two_processes(tmp_path, member)
    assert codes[rank] == -signal.SIGKILL
    assert codes[1 - rank] == 1
    assert heartbeat.read(records.cell_folder(toy.results, cell), heartbeat.FAILURE)
    assert toy.run([cell]).trained == [cell]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_fails_its_cell_with_a_sentence_and_the_others_are_trained(tmp_path, rank):
    toy = make_toy(tmp_path)
    plugin = tmp_path / "deadly.py"
    plugin.write_text(DEADLY, encoding="utf-8")
    methods = ("--methods", "simgcd+deadly", "simgcd", "--set", f"deadly.rank={rank}")
    process = toy.start("run", *methods, "--plugin", str(plugin), "--nproc-per-node", "2")
    _, messages = process.communicate(timeout=300)
    assert process.returncode == 1, messages
    assert f"process {rank} of 2: its process was ended by SIGKILL" in messages
    (record,) = toy.results.glob(f"*/simgcd/*/{records.RECORD}")
    assert json.loads(record.read_text(encoding="utf-8"))["provenance"]["processes"] == 2


def torchrun(toy: Toy, program: list[str]) -> tuple[int, str, str]:
    """Let torchrun start two processes of a program; return exit code, output and messages."""
    with socket.create_server(("localhost", 0)) as server:
        port = f"--master-port={server.getsockname()[1]}"
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", port, *program]
    command = [*start, *toy.command("run", "--methods", "simgcd")[3:]]
    process = toy.start("run", args=command, env={"PYTHONPATH": os.pathsep.join(sys.path)})
    out, messages = process.communicate(timeout=300)
    return process.returncode, out, messages


@pytest.mark.slow
def test_torchrun_may_start_the_processes(tmp_path):
    toy = make_toy(tmp_path)
    code, out, messages = torchrun(toy, ["-m", "gcdbench"])
    assert code == 0, messages
    assert out.count("clustering accuracy in percent") == 1  # one leaderboard
    assert records.read_done(toy.results, toy.cell()).provenance.processes == 2


@pytest.mark.slow
def test_what_torchrun_has_started_goes_on_from_its_checkpoint_after_a_kill(tmp_path):
    toy = make_toy(tmp_path)
    program = tmp_path / "mortal.py"
    program.write_text(MORTAL, encoding="utf-8")
    code, _, messages = torchrun(toy, [str(program), "1"])
    assert code == 1
    assert "SIGKILL" in messages
    code, _, messages = torchrun(toy, [str(program), "nobody"])
    assert code == 0, messages

    cell, alone = toy.cell(), toy.elsewhere("alone")
    alone.run([cell])
    two = records.read_done(toy.results, cell)
    assert two.timing.restarts == 1
    assert two.provenance.processes == 2
    assert_same_results(alone, toy, cell)
