"""Checks of the contract that every method must fulfil; failures are reported as sentences.

The project's tests run them on the whole registry, so a new method is tested without a new test.
Each check builds the method on a tiny random backbone and a toy problem; all of them together take
seconds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from gcdbench.training.batch import Batch
from gcdbench.training.conformance.bench import (
    EPOCHS,
    POOL,
    STEPS,
    Bench,
    ContractError,
    require_finite_gradients,
)
from gcdbench.training.conformance.runs import RUN_CHECKS
from gcdbench.training.method import seeded
from gcdbench.training.weights import trained_state


def check_terms_are_finite(make: Callable[[], Bench]) -> None:
    """The terms of a typical batch are named, scalar and finite."""
    bench = make()
    bench.begin()
    for _ in range(STEPS):
        bench.update()


def check_odd_batches(make: Callable[[], Bench]) -> None:
    """Batches without labels, without unlabelled rows, and of one row work."""
    bench = make()
    bench.begin()
    rows = torch.arange(POOL)
    odd = {
        "a batch without labelled rows": rows[bench.labels < 0][:8],
        "a batch without unlabelled rows": rows[bench.labels >= 0][:8],
        "a batch of one labelled row": rows[bench.labels >= 0][:1],
        "a batch of one unlabelled row": rows[bench.labels < 0][:1],
    }
    for name, chosen in odd.items():
        bench.update(chosen, what=name)
        require_finite_gradients(bench, name)


def check_mixed_precision(make: Callable[[], Bench]) -> None:
    """Terms and gradients are finite when matrix products have half precision."""
    bench, what = make(), "a batch in mixed precision"
    bench.begin()
    for _ in range(STEPS):
        bench.update(what=what, half=True)
        require_finite_gradients(bench, what)


def check_gradients(make: Callable[[], Bench]) -> None:
    """Gradients reach all trainable parameters and no frozen one."""
    bench = make()
    bench.begin()
    reached: set[str] = set()
    for _ in range(EPOCHS * STEPS if bench.model.has_phases else STEPS):
        bench.update()
        reached |= {n for n, p in bench.model.named_parameters() if p.grad is not None}
    trainable = set(bench.loop.trainable)
    optimised = {id(p) for group in bench.optimizer.param_groups for p in group["params"]}
    left_out = [
        n for n, p in bench.model.named_parameters() if n in reached and id(p) not in optimised
    ]
    if frozen := reached - trainable:
        raise ContractError(f"a gradient reaches the frozen parameter {min(frozen)}")
    if idle := trainable - reached:
        raise ContractError(
            f"no gradient reaches {min(idle)}; freeze it (requires_grad_(False)) or use it in step"
        )
    if left_out:
        raise ContractError(f"param_groups leaves out {left_out[0]}, which has a gradient")


def check_row_order(make: Callable[[], Bench]) -> None:
    """The order of the rows of a batch does not change the terms."""
    bench, other = make(), make()
    bench.begin()
    other.begin()
    rows = bench.mixed_rows()
    shuffled = rows[torch.randperm(len(rows), generator=seeded("rows"))]
    first, second = bench.loss(rows).terms, other.loss(shuffled).terms
    for name, value in first.items():
        if not torch.allclose(value, second[name], rtol=1e-3, atol=1e-4):
            raise ContractError(
                f"term {name!r} depends on the order of the rows "
                f"({value.item():.6g} and {second[name].item():.6g})"
            )


def check_frozen_part(make: Callable[[], Bench]) -> None:
    """The frozen part of the backbone is left alone, or declared to be changed."""
    bench = make()
    changed = bench.has_changed_frozen()
    if changed and not bench.model.method.changes_frozen:
        raise ContractError(
            "__init__ changes weights or modules of the backbone below its trained blocks; "
            "declare it (changes_frozen = True), so that the frozen features are not shared"
        )
    if bench.model.method.changes_frozen and not changed:
        raise ContractError("changes_frozen is True, but the frozen part is as it was loaded")
    before = bench.trunk.key(bench.model.backbone)
    bench.begin()
    for number in range(2 * STEPS):  # and in a second epoch
        if number == STEPS:
            bench.model.begin_epoch(bench.clock(), bench.context)
            bench.train_mode()
        bench.update()
    if bench.trunk.key(bench.model.backbone) != before:
        raise ContractError(
            "training changes weights of the backbone below its trained blocks; "
            "features that were computed with the old ones would still be used"
        )


def check_determinism(make: Callable[[], Bench]) -> None:
    """The same seed gives the same numbers, and the global generator is not touched."""
    state = torch.get_rng_state()
    losses = []
    for _ in range(2):
        bench = make()
        bench.begin()
        losses.append([bench.update().loss.item() for _ in range(3)])
    if losses[0] != losses[1]:
        raise ContractError(
            "two runs with the same seed differ; draw from task.generator and clock.generator only"
        )
    if not torch.equal(state, torch.get_rng_state()):
        raise ContractError(
            "the global random generator was used; "
            "draw from task.generator (initial weights) and clock.generator (steps)"
        )


def check_resume(make: Callable[[], Bench]) -> None:
    """A model restored from its parameters and buffers continues with the same loss."""
    bench = make()
    bench.begin()
    bench.update()
    bench.update()
    saved = {name: value.clone() for name, value in trained_state(bench.model).items()}
    optimizer = bench.optimizer.state_dict()
    expected = bench.update().loss.item()
    fresh = make()
    if trained_state(fresh.model).keys() != saved.keys():
        fresh.begin()  # it builds modules
    fresh.model.load_state_dict(saved, strict=False)
    fresh.optimizer.load_state_dict(optimizer)
    fresh.number = 2
    fresh.train_mode()
    found = fresh.update().loss.item()
    if abs(found - expected) > 1e-6 * max(1.0, abs(expected)):
        raise ContractError(
            f"a resumed run gives loss {found:.6g} instead of {expected:.6g}; "
            "keep all state in parameters and registered buffers"
        )


def check_predictions(make: Callable[[], Bench]) -> None:
    """Every query gets one cluster id, the same one when asked again."""
    bench = make()
    bench.begin()
    bench.update()
    bench.model.eval()
    with torch.no_grad():
        first = bench.model.predict(bench.compute_features(), bench.context)
        second = bench.model.predict(bench.compute_features(), bench.context)
    if first.shape != (POOL,) or first.dtype not in (torch.int64, torch.int32):
        raise ContractError(
            f"predict returned {first.dtype} of shape {tuple(first.shape)}; "
            f"expected whole numbers of shape ({POOL},), one for each query"
        )
    if int(first.min()) < 0:
        raise ContractError("predict returned a negative cluster id")
    if not torch.equal(first, second):
        raise ContractError("predict gives another answer when asked again")


def check_batch_is_left_alone(make: Callable[[], Bench]) -> None:
    """A step does not change the batch that it was given."""
    bench = make()
    bench.begin()
    batch = bench.batch(bench.mixed_rows())
    before = copy.deepcopy([*_views(batch), batch.labels])
    bench.model.step(batch, bench.clock())
    now = [*_views(batch), batch.labels]
    if not all(torch.equal(one, other) for one, other in zip(before, now, strict=True)):
        raise ContractError("step changes the batch in place; work on a copy")


def _views(batch: Batch) -> list[Tensor]:
    views = batch.views if isinstance(batch.views, tuple) else (batch.views,)
    return [view for view in views if isinstance(view, Tensor)]


CHECKS = (
    check_terms_are_finite,
    check_odd_batches,
    check_mixed_precision,
    check_gradients,
    check_frozen_part,
    check_row_order,
    check_determinism,
    check_resume,
    check_predictions,
    check_batch_is_left_alone,
    *RUN_CHECKS,
)
