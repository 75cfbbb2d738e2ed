"""Checks of what a method declares, and of whole runs: phases, resume, banked views, memory."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gcdbench.data.views.kinds import get_kind
from gcdbench.errors import UserError
from gcdbench.training.conformance.bench import EPOCHS, POOL, STEPS, Bench, ContractError
from gcdbench.training.method import Clock, Method, Phase
from gcdbench.training.trainer import Snapshot, StepEvent, trained_parts
from gcdbench.training.weights import trained_state

REQUIREMENTS = frozenset({"images", "patches"})


def check_needs(make: Callable[[], Bench]) -> None:
    """What the method declares is known, and can be read without importing it."""
    bench = make()
    cls: Any = type(bench.model.method)
    for name in ("views", "train_blocks", "requires", "train_defaults", "provides"):
        default = getattr(Method, name)
        read = bench.needs.get(name, default)
        if type(default)(read) != type(default)(getattr(cls, name)):
            raise ContractError(
                f"{name} must be a literal in the class: the plan reads it without importing the "
                f"file, and finds {read!r}"
            )
    for views in (cls.views, bench.kinds):
        if not views or isinstance(views, str):
            raise ContractError(f"views is {views!r}; expected a tuple of kinds, one per view")
    for kind in (*cls.views, *bench.kinds):
        try:
            get_kind(kind)
        except UserError as error:
            raise ContractError(f"views: {error}") from error
    if wrong := sorted(cls.requires - REQUIREMENTS):
        known = ", ".join(sorted(REQUIREMENTS))
        raise ContractError(f"requires names {wrong[0]!r}; known: {known}")
    depth = bench.model.backbone.num_blocks
    if not cls.train_blocks >= 0:
        raise ContractError(f"train_blocks is {cls.train_blocks}; expected 0..{depth}")


def check_sampling(make: Callable[[], Bench]) -> None:
    """Sampling weights of the method's own can be drawn from, in every epoch."""
    bench = make()
    bench.begin()
    for epoch in range(EPOCHS):
        bench.number = epoch * STEPS
        weights = bench.model.begin_epoch(bench.clock(), bench.context)
        good = weights.shape == (POOL,) and weights.isfinite().all() and (weights >= 0).all()
        if not good or not weights.sum() > 0:
            raise ContractError(
                f"begin_epoch returns weights of shape {tuple(weights.shape)}; expected "
                f"({POOL},), one for each image of the pool, finite, none negative, not all zero"
            )


def check_banked_views(make: Callable[[], Bench]) -> None:
    """A step with precomputed views gives the terms of one with images."""
    plain, banked = make(), make()
    if plain.model.cache_depth == "images":
        return
    banked.banked = True
    plain.begin()
    banked.begin()
    expected = plain.loss().terms
    try:
        found = banked.loss().terms
    except Exception as error:
        raise ContractError(
            f"step fails on precomputed views ({type(error).__name__}: {error}), as with "
            "train.view_bank; use self.encode(batch), or requires = frozenset({'images'})"
        ) from error
    for name, value in expected.items():
        if not torch.allclose(value, found[name], rtol=1e-3, atol=1e-4):
            raise ContractError(
                f"term {name!r} is {found[name].item():.6g} with precomputed views and "
                f"{value.item():.6g} with images; what changes images or early blocks must be an "
                "adapter that says its depth, or requires = frozenset({'images'})"
            )


def check_evaluation(make: Callable[[], Bench]) -> None:
    """Evaluation sees the features that training sees: both come from encode."""
    bench = make()
    bench.begin()
    batch = bench.batch(bench.mixed_rows())
    with torch.no_grad():
        shown = bench.model.method.encode(batch.only(0)).cls
    if len(shown) != len(batch) or shown.ndim != 2:
        raise ContractError(
            f"encode returns features {tuple(shown.shape)} for {len(batch)} images in one view; "
            f"evaluation needs one row for each"
        )
    overridden = type(bench.model.method).encode is not Method.encode
    if overridden or bench.model.techniques:
        return
    with torch.no_grad():
        step = bench.model.step(batch, bench.clock())
    if not torch.allclose(step.features[: len(batch)], shown, rtol=1e-3, atol=1e-4):
        raise ContractError(
            "the features of step are not those of encode, which evaluation uses; put what step "
            "does to images and tokens into encode or into an adapter"
        )


def check_phases(make: Callable[[], Bench]) -> None:
    """In every phase, gradients reach what it trains and nothing else changes."""
    bench = make()
    if not bench.model.has_phases:
        return
    bench.begin()
    trainable = set(bench.loop.trainable)
    expected: dict[str, frozenset[str]] = {}
    reached: dict[str, set[str]] = {}
    for _ in range(EPOCHS * STEPS):
        phase, before = _phase_at(bench, bench.clock()), _values(bench)
        chosen = expected.setdefault(phase.name, _parts(bench, phase))
        bench.update()
        got = {n for n, p in bench.model.named_parameters() if p.grad is not None}
        reached.setdefault(phase.name, set()).update(got)
        moved = {n for n, p in bench.model.named_parameters() if not torch.equal(p, before[n])}
        if wrong := sorted((moved & trainable) - chosen):
            raise ContractError(f"phase {phase.name!r} does not train {wrong[0]}, but it changes")
    for name, chosen in expected.items():
        if idle := sorted(chosen - reached[name]):
            raise ContractError(
                f"in phase {name!r} no gradient reaches {idle[0]}; leave it out of the phase's "
                "train, or use it in step"
            )


def _phase_at(bench: Bench, clock: Clock) -> Phase:
    first, second = (bench.model.phase(clock) for _ in range(2))
    if first != second or first != copy.deepcopy(bench.model).phase(clock):
        raise ContractError("phase gives another answer when asked again; use the clock alone")
    return first


def _parts(bench: Bench, phase: Phase) -> frozenset[str]:
    try:
        return trained_parts(bench.model, bench.loop.trainable, phase.train, phase.name)
    except UserError as error:
        raise ContractError(str(error)) from error


def _values(bench: Bench) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in bench.model.named_parameters()}


def check_whole_run(make: Callable[[], Bench]) -> None:
    """A run of several epochs can be resumed in each phase, inside and between epochs."""
    whole, kept = make(), {}
    names: set[str] = set()

    def keep(event: StepEvent) -> None:
        done = event.clock.step + 1
        phase = whole.model.phase(event.clock).name
        if done in (STEPS + 1, 2 * STEPS) or phase not in names:
            kept[done] = copy.deepcopy(event.state())
        names.add(phase)

    expected = whole.run(on_step=keep)
    for done, snapshot in kept.items():
        resumed = make()
        found = _resumed(resumed, snapshot, done)
        wrong = [n for n in expected if n not in found or not _same(found[n], expected[n])]
        if wrong or len(found) != len(expected):
            raise ContractError(
                f"a run resumed after step {done} ends with another {[*wrong, 'state'][0]}; "
                "keep all state in parameters and registered buffers"
            )


def _resumed(bench: Bench, snapshot: Snapshot, done: int) -> dict[str, Tensor]:
    try:
        return bench.run(resume=snapshot)
    except (ValueError, RuntimeError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise ContractError(
            f"a run cannot be resumed after step {done} ({reason}); build modules in __init__, or "
            "in begin_fit from the seed and the features alone"
        ) from error


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), atol=1e-6)


def check_memory(make: Callable[[], Bench]) -> None:
    """Steps leave nothing behind: memory does not grow."""
    bench = make()
    bench.begin()
    for _ in range(EPOCHS * STEPS if bench.model.has_phases else STEPS):
        bench.update()
    before, steps = _tensors(), 2 * STEPS
    bench.number = max(bench.number - steps, 0)  # once more, to the same phase
    for _ in range(steps):
        bench.update()
    more = _tensors() - before
    if more >= steps:
        raise ContractError(
            f"{more} more tensors are held after {steps} steps; detach what is remembered, and "
            "keep it in buffers of a fixed size"
        )


def _tensors() -> int:
    gc.collect()
    return sum(issubclass(type(one), Tensor) for one in gc.get_objects())


def check_loaded_state(make: Callable[[], Bench]) -> None:
    """What is kept of a model determines its features and predictions."""
    bench = make()
    bench.run()
    state = {name: value.clone() for name, value in trained_state(bench.model).items()}
    other = make()
    other.model.begin_fit(other.context)
    other.model.load_state_dict(state, strict=False)
    for one in (bench, other):
        one.model.eval()
    first, second = (one.compute_features().features for one in (bench, other))
    if not torch.allclose(first, second, rtol=1e-4, atol=1e-5):
        raise ContractError(
            "a model with the weights of another one gives other features; "
            "keep all that encode uses in parameters and registered buffers"
        )


RUN_CHECKS = (
    check_needs,
    check_sampling,
    check_banked_views,
    check_evaluation,
    check_phases,
    check_whole_run,
    check_loaded_state,
    check_memory,
)
