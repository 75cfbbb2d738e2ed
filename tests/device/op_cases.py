"""Where a GPU takes another way than a CPU: it must arrive at the same place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from device.pretend.counts import counting
from device.pretend.machine import one_gpu
from device.pretend.tensor import CUDA
from device.steps import backbone, count_steps, toy_task
from gcdbench.core import registry
from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.settings import TrainConfig
from gcdbench.ops.random import draw_beta, seeded
from gcdbench.ops.transport import unbalanced_transport
from gcdbench.training.compose import compose
from gcdbench.training.method import Batch
from gcdbench.training.optimizer import make_optimizer

MOST_SYNCS = 2
MOST_LAUNCHES = {"hilo": 900, "hypcd": 1000, "mugcd": 900, "uniot": 1200, "simgcd+pmtrans": 1300}
OTHERS = 800
OLD_TORCH = 1.01 if torch.__version__ < "2.15" else 1.0  # 2.7 takes a few more: 905 for HiLo


def _beta(_: Any) -> None:
    def draw(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.tensor([1.3, 0.7]).to(device).requires_grad_()
        drawn = draw_beta(*both, 6, 5, generator=seeded("beta"), device=device)
        (drawn * torch.arange(5.0).to(device)).sum().backward()
        assert both.grad is not None
        return drawn.detach().cpu(), both.grad.cpu()

    with one_gpu():
        here, there = draw("cpu"), draw("cuda")
    assert torch.equal(here[0], there[0])
    assert torch.allclose(here[1], there[1], rtol=1e-4), (here[1], there[1])


def _transport(_: Any) -> None:
    generator = seeded("transport")
    for n, classes, noise in ((300, 5, 1.0), (300, 20, 0.1), (500, 50, 0.5)):
        centres = torch.nn.functional.normalize(
            torch.randn(classes, 64, generator=generator), dim=1
        )
        rows = centres[torch.randint(classes, (n,), generator=generator)]
        rows = rows + noise * torch.randn(n, 64, generator=generator) / 8
        cosines = torch.nn.functional.normalize(rows, dim=1) @ centres.T
        exact = unbalanced_transport(cosines, tolerance=1e-12, max_sweeps=2000)
        with one_gpu(), counting() as counts:
            plan = unbalanced_transport(cosines.to(CUDA, non_blocking=True))
        assert not counts.syncs, counts.syncs
        assert float((plan.data_on_cpu - exact).abs().sum()) < 1e-4


def _skipped_step(_: Any) -> None:
    """A first step that overflows leaves no trace: torch's fused SGD would keep garbage of it."""
    model = compose(MethodSpec.parse("simgcd"), {}, toy_task(), backbone())
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory with NaN
    try:
        with one_gpu():
            model.to(CUDA)
            optimizer = make_optimizer(model, TrainConfig(lr=0.1))
            scaler = torch.amp.GradScaler("cuda")
            weight = model.method.classifier.weight
            before = weight.detach().clone()
            for factor in (float("inf"), 1.0):
                optimizer.zero_grad()
                scaler.scale(factor * weight.sum()).backward()
                scaler.step(optimizer)
                scaler.update()
            moved = (before - weight).cpu()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.allclose(moved, torch.full_like(moved, 0.1), rtol=1e-3), moved


def _rows(_: Any) -> None:
    labels, index = torch.tensor([3, -1, 0, -1]), torch.tensor([9, 4, 7, 4])
    batch = Batch(torch.zeros(2, 4, 3, 2, 2), labels, index)
    with one_gpu():
        there = batch.to(CUDA)
        with counting() as counts:
            found = [there.labelled_rows, there.unlabelled_rows, there.order]
        assert not counts.syncs
        wanted = [batch.labelled_rows, batch.unlabelled_rows, batch.order]
        assert all(torch.equal(a.cpu(), b) for a, b in zip(found, wanted, strict=True))
        relabelled = replace(there, labels=there.labels + 1)  # the copy on the CPU is not of these
        assert relabelled.labelled_rows.tolist() == [0, 1, 2, 3]


def _step(spec: str) -> Callable[[Any], None]:
    def case(_: Any) -> None:
        counts = count_steps(MethodSpec.parse(spec), steps=1)
        assert sum(counts.syncs.values()) <= MOST_SYNCS, counts.syncs
        most = OLD_TORCH * MOST_LAUNCHES.get(spec, OTHERS)
        assert counts.launches <= most, counts.launches

    return case


def op_cases() -> dict[str, Callable[[Any], None]]:
    """Return the cases of operations that have a way of their own on a GPU."""
    return {
        "a Beta for concentrations on the device": _beta,
        "transport without a look at its change": _transport,
        "the rows of a batch are known": _rows,
        "a first step that is skipped": _skipped_step,
    }


def step_cases() -> dict[str, Callable[[Any], None]]:
    """Return the cases that count launches and synchronisations of every method's step."""
    techniques = [f"simgcd+{name}" for name in registry.available("technique")]
    specs = [*registry.available("method"), *techniques]
    return {f"a step of {spec} hardly waits": _step(spec) for spec in specs}
