"""What is tried on the pretend device, in groups that share a process.

``python -m device.cases FOLDER GROUP ...`` runs groups and leaves a ``GROUP.jsonl`` of each: one
line per case, its name and its traceback, empty if it passed. A case is a function of a bench.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from device import op_cases, rule_cases, view_cases
from device.bench import DeviceBench, presets
from device.pretend.machine import one_gpu
from device.pretend.tensor import CUDA
from gcdbench.cli.main import main as command
from gcdbench.core import registry
from gcdbench.experiment.record import Record
from gcdbench.ops.metrics import accuracies
from gcdbench.training.method import Technique
from gcdbench.training.num_classes import estimate_k

Case = Callable[[DeviceBench], None]
SHORT = {"epochs": 1, "eval_every": 0}
ONCE = {"draws_per_epoch": 8, **SHORT}  # a single step
KEPT = {"view_bank": 2, **SHORT}


def _run(spec: str, bench: DeviceBench, device: str = "cuda", **settings: dict[str, Any]) -> None:
    """Train and score a cell."""
    bench.run(bench.cell(spec, **settings), device=device)


def _case(spec: str, **settings: Any) -> Case:
    return lambda bench: _run(spec, bench, **settings)


def method_cases() -> dict[str, Case]:
    """Every method, from images and from kept features, and its choices that change the step."""
    names = list(registry.available("method"))
    odd = {
        "uno with a queue and soft targets": _case("uno+cutmix", uno={"queue": 8}, train=SHORT),
        "orca measured in training": _case("orca", orca={"measure": "training"}),
        "rankstats by ranks and known classes": _case(
            "rankstats", rankstats={"label_pairs": "rank", "ce_scope": "known"}, train=SHORT
        ),
        "uniot detecting at once, sskm": _case(
            "uniot+mixup", uniot={"detect_after": 0, "prediction": "sskm"}, train=SHORT
        ),
        "uniot detecting at once, pot": _case(
            "uniot", uniot={"detect_after": 0, "stop": "pot", "mass_momentum": 0.5}, train=SHORT
        ),
        "hilo by distillation from block 1": _case(
            "hilo-curriculum", hilo={"domain_targets": "distil", "semantic_block": 1}, train=SHORT
        ),
        "simgcd with two trained blocks": _case(
            "simgcd", backbone={"train_blocks": 2}, train=SHORT
        ),
    }
    return {
        **{f"{name} from images": _case(name) for name in names},
        **{f"{name} from kept features": _case(name, train={**KEPT, **ONCE}) for name in names},
        **odd,
    }


def technique_cases() -> dict[str, Case]:
    """Every technique alone and with others, and every preset."""
    always: dict[str, Any] = {
        "efdm": {"probability": 1.0},
        "mixstyle": {"probability": 1.0, "across": True},
    }
    cases: dict[str, Case] = {}
    for name in registry.available("technique"):
        settings = {name: always[name]} if name in always else {}
        long = {} if registry.load("technique", name).weights is not Technique.weights else SHORT
        cases[f"simgcd+{name}"] = _case(f"simgcd+{name}", train=long, **settings)
    for kind in ("method", "technique"):
        for name, found in presets(kind).items():
            spec = name if kind == "method" else f"simgcd+{name}"
            for preset in found:
                settings = {name: {"preset": preset}, "train": ONCE}
                cases[f"{name}, preset {preset}"] = _case(spec, **settings)
    together = {"train": {"epochs": 3}, "orca": {"measure": "training"}}
    cases["an auxiliary classifier"] = _case("gcd+mixstyle+sfa+pmtrans", train=SHORT)
    cases["sampling and mixing together"] = _case("orca+cl+spl+cutmix", **together)
    return cases


def cache_cases() -> dict[str, Case]:
    """Every depth at which views are kept, the disk, precisions, and the names of the device."""
    depths = {
        "images": "simgcd+mixup",
        "patches": "simgcd+efdm",
        "traced": "hilo",
        "tokens": "simgcd",
    }

    def disk(spec: str, bench: DeviceBench) -> None:
        cell = bench.cell(spec, train=KEPT)
        kept = {"cache": bench.folder / "cache", "cache_bytes": 10**9}
        first, second = (bench.run(cell, **kept) for _ in range(2))
        assert first.curve == second.curve

    def float32(bench: DeviceBench) -> None:
        for spec in ("simgcd", "hilo"):
            cell = bench.cell(spec, train={"precision": "float32"})
            there, here = (bench.run(cell, device=device) for device in ("cuda", "cpu"))
            assert _close(there, here), (there.curve, here.curve)

    def untouched(bench: DeviceBench) -> None:
        bench.run(bench.cell("simgcd", train=SHORT), device="auto", initialised=False)

    return {
        **{f"kept {depth}": _case(spec, train=KEPT) for depth, spec in depths.items()},
        "tokens on disk": partial(disk, "simgcd"),
        "traces on disk": partial(disk, "hilo"),
        "half-precision tokens": _case("gcd", train={"eval_tokens": "float16", **KEPT}),
        "full precision gives the numbers of the CPU": float32,
        "a device with a number": _case("simgcd", device="cuda:0", train=SHORT),
        "the first use of CUDA is the cell's": untouched,
        "estimated classes": _case("simgcd", task={"classes": "estimated"}, train=SHORT),
    }


def resume_cases() -> dict[str, Case]:
    """A run that is interrupted resumes, on the device that it began on and on another one."""
    specs = {
        "simgcd": {},
        "simgcd+spl+sfa": {},
        "hilo": {},
        "uno": {"uno": {"queue": 8}},
        "uniot": {"uniot": {"detect_after": 0}},
    }

    def again(spec: str, settings: dict[str, Any], bench: DeviceBench) -> None:
        cell = bench.cell(spec, **settings)
        whole = bench.run(cell)
        rest = bench.run(cell, results=bench.interrupted(cell, device="cuda", after=3))
        assert _close(whole, rest), (whole.curve, rest.curve)

    def elsewhere(began: str, ends: str, precision: str, bench: DeviceBench) -> None:
        cell = bench.cell("simgcd", train={"precision": precision})
        results = bench.interrupted(cell, device=began, after=3)
        rest = bench.run(cell, device=ends, results=results)
        if precision == "float32":
            assert _close(rest, bench.run(cell, device="cpu"))

    cases: dict[str, Case] = {f"{s} resumes": partial(again, s, c) for s, c in specs.items()}
    for precision in ("auto", "float32", "bfloat16"):
        for began, ends in (("cpu", "cuda"), ("cuda", "cpu")):
            title = f"from {began} to {ends}, {precision}"
            cases[title] = partial(elsewhere, began, ends, precision)
    return cases


def score_cases() -> dict[str, Case]:
    """Scores and estimates of tensors on the device and of a user's arrays."""

    def arrays(bench: DeviceBench) -> Path:
        rng = np.random.RandomState(0)
        labels = np.repeat(np.arange(4), 15)
        features = rng.randn(4, 8)[labels] * 3 + rng.randn(60, 8)
        known = (labels < 2) & (np.arange(60) % 2 == 0)
        path = bench.folder / "features.npz"
        np.savez(path, features=features.astype(np.float32), labels=labels, labelled=known)
        return path

    def evaluate(bench: DeviceBench) -> None:
        with one_gpu():
            assert command(["evaluate", "--features", str(arrays(bench)), "--json"]) == 0

    def estimate(bench: DeviceBench) -> None:
        out = str(bench.folder / "k")
        with one_gpu():
            flags = ["--features", str(arrays(bench)), "--out", out, "--max-k", "12"]
            assert command(["estimate-k", *flags]) == 0

    def estimate_tensors(bench: DeviceBench) -> None:
        with np.load(arrays(bench)) as file:
            features, labels = torch.from_numpy(file["features"]), torch.from_numpy(file["labels"])
        here = estimate_k(features, labels, high=12)
        with one_gpu():
            given = [(features.to(CUDA), labels.to(CUDA)), (features.to(CUDA), labels)]
            found = [estimate_k(*pair, high=12) for pair in given]
            found.append(estimate_k(features, labels, high=12, device="cuda"))
        assert all(one.curve == here.curve for one in found), found

    def score(bench: DeviceBench) -> None:
        preds, labels = torch.tensor([5, 5, 5, 2]), torch.tensor([0, 0, 1, 2])
        here = accuracies(preds=preds, labels=labels, num_old=1)
        flags = labels < 1
        with one_gpu():
            there = [
                accuracies(preds=preds.to(CUDA), labels=labels.to(CUDA), num_old=1),
                accuracies(preds=preds.to(CUDA), labels=labels, num_old=1),
                accuracies(preds=preds.to(CUDA), labels=labels.numpy(), num_old=1),
                accuracies(preds=preds, labels=labels.to(CUDA), num_old=1),
                accuracies(preds=preds.to(CUDA), labels=labels.to(CUDA), num_old=1, is_old=flags),
            ]
            separate = accuracies(
                preds=preds.to(CUDA), labels=labels.to(CUDA), num_old=1, protocol="v1"
            )
        assert all(one == here for one in there)
        assert separate == accuracies(preds=preds, labels=labels, num_old=1, protocol="v1")

    return {
        "evaluate": evaluate,
        "estimate-k": estimate,
        "an estimate from tensors on the device": estimate_tensors,
        "accuracies of tensors on the device": score,
    }


def _close(one: Record, other: Record) -> bool:
    """Tell whether the loss terms of two records agree but for rounding."""
    pairs = [
        (first.terms, second.terms) for first, second in zip(one.curve, other.curve, strict=True)
    ]
    return all(
        a.keys() == b.keys() and np.allclose(list(a.values()), list(b.values()), atol=1e-3)
        for a, b in pairs
    )


GROUPS: dict[str, Callable[[], dict[str, Case]]] = {
    "rules": rule_cases.rule_cases,
    "operations": op_cases.op_cases,
    "steps": op_cases.step_cases,
    "methods": method_cases,
    "techniques": technique_cases,
    "caches": cache_cases,
    "resume": resume_cases,
    "scores": score_cases,
    "views": view_cases.view_cases,
}


def run_group(group: str, folder: Path) -> None:
    """Run the cases of a group, one after the other, and note what became of each."""
    bench = DeviceBench.make(folder / group)
    with (folder / f"{group}.jsonl").open("w", encoding="utf-8") as file:
        for name, case in GROUPS[group]().items():
            try:
                case(bench)
                trouble = ""
            except Exception:
                trouble = traceback.format_exc()
            file.write(json.dumps([name, trouble]) + "\n")
            file.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    for name in sys.argv[2:]:
        run_group(name, Path(sys.argv[1]))
