"""The training loop: schedule, optimiser, resume, and what happens when a loss is not finite."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from helpers.paths import GOLDEN
from torch import Tensor

from gcdbench.core import registry
from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.settings import TrainConfig
from gcdbench.training.conformance import Bench
from gcdbench.training.method import Batch, Step, seeded
from gcdbench.training.optimizer import learning_rate, make_optimizer
from gcdbench.training.trainer import Diverged, EpochEvent, StepEvent, tabulate, train
from gcdbench.training.weights import trained_state

SMALL = {"hidden_dim": 32, "out_dim": 64, "projection_dim": 16, "bottleneck_dim": 16}
CONFIG = TrainConfig(epochs=4, lr=0.01, batch_size=12)


class Rows:
    """Batches of a toy problem, each a function of its epoch and number alone."""

    steps_per_epoch = 3

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def epoch(self, epoch: int, weights: Tensor) -> Iterator[Batch]:
        generator = seeded(0, "rows", epoch)
        for number in range(self.steps_per_epoch):
            rows = torch.multinomial(weights, 12, generator=generator, replacement=True)
            noise = torch.rand(2, *self.bench.images[rows].shape, generator=generator)
            views = 0.9 * self.bench.images[rows] + 0.1 * noise
            yield Batch(views, self.bench.labels[rows], rows)
            self.bench.number = epoch * self.steps_per_epoch + number + 1


def make(name: str = "simgcd") -> Bench:
    fields = registry.get("method", name).config.__dataclass_fields__
    config = {key: value for key, value in SMALL.items() if key in fields}
    return Bench(MethodSpec.parse(name), {name: config})


def fit(bench: Bench, config: TrainConfig = CONFIG, **more) -> dict[str, Tensor]:
    device = torch.device("cpu")
    train(bench.model, Rows(bench), config, bench.context, seed=0, device=device, **more)
    return {name: value.clone() for name, value in trained_state(bench.model).items()}


def assert_same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize(
    ("name", "lr", "epochs"),
    [("0.1_200", 0.1, 200), ("0.05_200", 0.05, 200), ("0.1_20", 0.1, 20), ("0.01_5", 0.01, 5)],
)
def test_the_learning_rate_is_that_of_the_released_codes(name, lr, epochs):
    with np.load(GOLDEN / "gcd_misc.npz") as arrays:
        expected = arrays[f"lr__{name}"]
    config = TrainConfig(lr=lr, epochs=epochs)
    found = [learning_rate(config, epoch) for epoch in range(epochs)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_the_warm_up_rises_in_a_line_from_the_floor_to_the_full_rate():
    config = TrainConfig(lr=0.4, epochs=10, warmup_epochs=5, min_lr_share=0.0)
    found = [learning_rate(config, epoch) for epoch in range(6)]
    np.testing.assert_allclose(found, [0.0, 0.1, 0.2, 0.3, 0.4, 0.4])


def test_a_step_schedule_falls_to_a_tenth_at_170_of_200_epochs():
    config = TrainConfig(lr=0.1, epochs=200, schedule="step")
    found = [learning_rate(config, epoch) for epoch in (0, 169, 170, 199)]
    np.testing.assert_allclose(found, [0.1, 0.1, 0.01, 0.01])


def test_every_step_has_the_rate_of_its_epoch():
    bench, seen = make(), []

    def look(progress: EpochEvent) -> None:
        seen.append(progress.lr)

    fit(bench, on_epoch=look)
    assert seen == [learning_rate(CONFIG, epoch) for epoch in range(4)]


def test_vectors_are_spared_from_weight_decay_unless_all_parameters_decay():
    model = make().model
    decays = {
        kind: {
            parameter.ndim < 2: group["weight_decay"]
            for group in make_optimizer(model, TrainConfig(decay=kind)).param_groups
            for parameter in group["params"]
        }
        for kind in ("matrices", "all")
    }
    assert decays == {
        "matrices": {True: 0.0, False: 5e-5},
        "all": {True: 5e-5, False: 5e-5},
    }


def test_the_optimiser_holds_each_trainable_parameter_once_and_no_other():
    model = make().model
    held = [p for g in make_optimizer(model, CONFIG).param_groups for p in g["params"]]
    assert len(held) == len(set(map(id, held)))
    assert set(map(id, held)) == {id(p) for p in model.parameters() if p.requires_grad}


def test_a_multiplier_scales_the_learning_rate_of_its_group(monkeypatch):
    bench = make()
    head = list(bench.model.method.classifier.parameters())
    rest = [
        p for p in bench.model.parameters() if p.requires_grad and all(p is not q for q in head)
    ]
    monkeypatch.setattr(bench.model, "param_groups", lambda: [(head, 0.0), (rest, 1.0)])
    before = [p.clone() for p in head]
    fit(bench, dataclasses.replace(CONFIG, epochs=1))
    assert all(torch.equal(p, q) for p, q in zip(head, before, strict=True))


def test_the_state_leaves_out_what_is_frozen():
    model = make().model
    names = set(trained_state(model))
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained <= names
    assert not any(name.startswith("method.backbone.vit.blocks.0") for name in names)


@pytest.mark.parametrize("after", [5, 6], ids=["inside an epoch", "between two epochs"])
@pytest.mark.parametrize("name", registry.available("method"))
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(name, after):
    kept, heard = {}, {"whole": [], "rest": []}

    def keep(event: StepEvent) -> None:
        if event.clock.step + 1 == after and after % 3:
            kept["state"] = copy.deepcopy(event.state())

    def hear(progress: EpochEvent) -> None:
        heard["whole"].append(progress.terms)
        if 3 * (progress.epoch + 1) == after:
            kept["state"] = copy.deepcopy(progress.state())

    expected = fit(make(name), on_step=keep, on_epoch=hear)
    found = fit(make(name), resume=kept["state"], on_epoch=lambda p: heard["rest"].append(p.terms))
    assert_same_bits(found, expected)
    assert heard["rest"] == heard["whole"][after // 3 :]


def test_a_callback_can_stop_between_two_steps():
    class Enough(Exception):
        pass

    def stop(event: StepEvent) -> None:
        if event.clock.step == 4:
            raise Enough

    bench = make()
    with pytest.raises(Enough):
        fit(bench, on_step=stop)


def poisoned(bench: Bench, at: int) -> Bench:
    """Let a term of one step be infinite, without poisoning the weights."""
    step = bench.model.step

    def wrong(batch: Batch, clock) -> Step:
        made = step(batch, clock)
        extra = torch.tensor(float("nan")) if clock.step == at else torch.tensor(0.0)
        return dataclasses.replace(made, terms={**made.terms, "mischief": extra})

    bench.model.step = wrong  # type: ignore[method-assign]
    return bench


def test_a_loss_that_is_not_finite_stops_with_the_step_and_the_terms():
    with pytest.raises(Diverged, match=r"at step 7 \(.*distil -?\d.*, mischief nan\).*train\.lr"):
        fit(poisoned(make(), at=7))


def test_no_snapshot_is_made_of_a_run_that_has_diverged():
    def save(event: StepEvent) -> None:
        if event.clock.step == 4:
            event.state()

    with pytest.raises(Diverged, match="at step 3 "):
        fit(poisoned(make(), at=3), on_step=save)


def test_weights_that_the_last_step_has_broken_are_no_result():
    bench = make()

    def spoil(event: StepEvent) -> None:
        if event.clock.step == CONFIG.epochs * Rows.steps_per_epoch - 1:
            next(p for p in bench.model.parameters() if p.requires_grad).data.fill_(float("inf"))

    with pytest.raises(Diverged, match=r"is not finite after the last step.*train\.lr"):
        fit(bench, on_step=spoil)


def test_a_snapshot_of_another_model_is_refused():
    kept = []
    fit(make(), on_epoch=lambda progress: kept.append(progress.state()))
    with pytest.raises(ValueError, match="other parameters than the model"):
        fit(make("gcd"), resume=kept[0])


def test_a_term_that_is_missing_in_a_step_counts_as_zero():
    one, two = torch.tensor(1.0), torch.tensor(2.0)
    names, table = tabulate([{"a": one}, {"a": two, "b": one}])
    assert names == ["a", "b"]
    assert table.tolist() == [[1.0, 0.0], [2.0, 1.0]]


def test_diagnostics_are_averaged_over_the_steps_that_have_them_and_leave_the_terms_alone():
    plain, watched, heard = make(), make(), {"plain": [], "watched": []}
    step = watched.model.method.step

    def watching(batch, clock):
        seen = {"step": torch.tensor(float(clock.step)), "never": torch.tensor(float("nan"))}
        seen |= {"once": torch.tensor(7.0)} if clock.step % 3 == 1 else {}
        return dataclasses.replace(step(batch, clock), diagnostics=seen)

    watched.model.method.step = watching
    fit(plain, on_epoch=heard["plain"].append)
    fit(watched, on_epoch=heard["watched"].append)
    assert [e.terms for e in heard["plain"]] == [e.terms for e in heard["watched"]]
    found = [e.diagnostics for e in heard["watched"]]
    assert [d["step"] for d in found] == [1, 4, 7, 10]
    assert all(d["once"] == 7 and "never" not in d for d in found)
    assert all(set(e.diagnostics) == {"predicted_new"} for e in heard["plain"])


def test_a_resumed_run_has_the_diagnostics_of_an_uninterrupted_one():
    whole, kept, heard = make(), {}, {"whole": [], "rest": []}

    def keep(event: StepEvent) -> None:
        if event.clock.step == 4:
            kept["state"] = copy.deepcopy(event.state())

    fit(whole, on_step=keep, on_epoch=lambda e: heard["whole"].append(e.diagnostics))
    fit(make(), resume=kept["state"], on_epoch=lambda e: heard["rest"].append(e.diagnostics))
    assert heard["whole"][1:] == heard["rest"]
