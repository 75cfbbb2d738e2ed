"""Invented records for tests of reports: right in form, consistent in themselves, fast to make."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.experiment.records import write_record
from gcdbench.report.collect import Collection, Place, Truth, tidy
from gcdbench.report.correctness import right

DATASETS = ("line+solid", "line+color", "line+quickdraw")
# accuracies on source and shifted images: old classes, then new ones
LEVELS = {
    "rankstats": (0.52, 0.24, 0.30, 0.13),
    "uno": (0.58, 0.33, 0.36, 0.19),
    "orca": (0.55, 0.36, 0.33, 0.22),
    "gcd": (0.63, 0.44, 0.42, 0.29),
    "simgcd": (0.70, 0.49, 0.47, 0.31),
    "uniot": (0.54, 0.38, 0.41, 0.30),
    "hilo": (0.72, 0.55, 0.58, 0.41),
}
HARDNESS = {"line+solid": 1.0, "line+color": 1.1, "line+quickdraw": 0.7}
CORRUPTIONS = ("gaussian_noise", "fog", "zoom_blur")


def truth(dataset: str, *, images: int = 300, num_old: int = 6, num_new: int = 6) -> Truth:
    """Make labels for the source and the shifted set of a dataset such as ``line+solid``."""
    rng = np.random.RandomState(len(dataset))
    classes = tuple(f"class{number:02d}" for number in range(num_old + num_new))
    labels, ids = {}, {}
    for name in dataset.split("+") if "+" in dataset else ("original", "shifted"):
        labels[name] = np.sort(rng.randint(num_old + num_new, size=images))
        ids[name] = [f"{name}/{classes[c]}/{i:03d}.png" for i, c in enumerate(labels[name])]
    return Truth(classes, num_old, labels, ids)


def predictions(
    answer: Truth, levels: Sequence[float], rng: np.random.RandomState
) -> dict[str, np.ndarray]:
    """Put each image into its class's cluster with the probability of its set and side."""
    found = {}
    count = len(answer.classes)
    cluster_of = rng.permutation(count)
    for place, (name, labels) in enumerate(answer.labels.items()):
        chance = np.where(labels < answer.num_old, *levels[2 * place : 2 * place + 2])
        hit = rng.random_sample(len(labels)) < chance
        guess = np.where(hit, labels, rng.randint(count, size=len(labels)))
        found[name] = cluster_of[guess].astype(np.int32)
    return found


def scores(preds: np.ndarray, labels: np.ndarray, num_old: int, role: str) -> dict[str, Any]:
    """Score a set as the evaluator does."""
    hit, old = right(preds, labels), labels < num_old
    said_old = np.isin(preds, np.unique(preds[hit & old]))
    kinds = {
        "old_to_new": old & ~said_old,
        "new_to_old": ~old & said_old,
        "old_to_wrong_old": old & said_old & ~hit,
        "new_to_wrong_new": ~old & ~said_old & ~hit,
    }
    return {
        "role": role,
        "all": float(hit.mean()),
        "old": float(hit[old].mean()),
        "new": float(hit[~old].mean()),
        "n": len(labels),
        "n_old": int(old.sum()),
        "nmi": 0.5,
        "ari": 0.4,
        **{kind: float(chosen.mean()) for kind, chosen in kinds.items()},
        "false_negative_rate": float(said_old[~old].mean()),
        "false_positive_rate": float((~said_old)[old].mean()),
    }


def record(
    place: Place, answer: Truth, preds: dict[str, np.ndarray], *, epochs: int = 8
) -> dict[str, Any]:
    """Make a record as the runner does."""
    names = list(answer.labels)
    roles = {name: "source" if name == names[0] else "shifted" for name in names}
    sets = {n: scores(preds[n], answer.labels[n], answer.num_old, roles[n]) for n in names}
    rng = np.random.RandomState(place.seed)
    settings = {
        "dataset": place.dataset,
        "method": place.method,
        "seed": place.seed,
        "train": {"epochs": epochs, "lr": 0.1, "batch_size": 128},
        "backbone": {"name": "embedded", "weights": None, "train_blocks": 1},
        "config": {place.method: {"temperature": 0.07, "classes": 12}},
        "protocol": "v2",
    }
    return {
        "format": 1,
        "key": hashlib.sha256(repr(place).encode()).hexdigest()[:16],
        "dataset": place.dataset,
        "method": place.method,
        "seed": place.seed,
        "settings": settings,
        "fingerprints": {"problem": "p", "weights": "w", "code": "c"},
        "problem": {"num_classes": 12, "num_old": 6, "labelled": 70, "unlabelled": 500},
        "sets": sets,
        "summary": {"pooled": _mean([scores(*_pooled(preds, answer), answer.num_old, "")])},
        "curve": [_epoch(number, epochs, sets, rng) for number in range(epochs)],
        "provenance": {
            "versions": {"gcdbench": "0.1.0", "torch": "2.6.0", "python": "3.11.7"},
            "platform": "Linux",
            "processor": "a processor",
            "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
            "device": "cpu",
            "threads": 2,
        },
        "timing": {"started": 1.7e9, "wall_seconds": 61.5, "cpu_seconds": 118.0}
        | {"peak_memory_mb": 812.0},
    }


def _pooled(preds: dict[str, np.ndarray], answer: Truth) -> tuple[np.ndarray, np.ndarray]:
    labels = np.concatenate(list(answer.labels.values()))
    return np.concatenate([preds[name] for name in answer.labels]), labels


def _epoch(number: int, epochs: int, sets: Any, rng: np.random.RandomState) -> dict[str, Any]:
    done = (number + 1) / epochs
    row: dict[str, Any] = {
        "epoch": number,
        "lr": 0.1 * (1 - number / epochs),
        "terms": {
            "classify": 2.1 * np.exp(-2 * done) + 0.05 * rng.random_sample(),
            "distil": 1.4 * np.exp(-done) + 0.05 * rng.random_sample(),
        },
    }
    if number % 2 == 1 and number < epochs - 1:
        share = 1 - np.exp(-3 * done)
        row["sets"] = {n: {k: s[k] * share for k in ("all", "old", "new")} for n, s in sets.items()}
    return row


def with_corruptions(made: dict[str, Any]) -> dict[str, Any]:
    """Turn the shifted set of a record into corruptions at five severities, as in SSB-C."""
    shifted = next(n for n, s in made["sets"].items() if s["role"] == "shifted")
    base = made["sets"].pop(shifted)
    for place, name in enumerate(CORRUPTIONS):
        for severity in range(1, 6):
            factor = 1.2 - 0.12 * severity - 0.1 * place
            score = {**base, **{k: min(1.0, base[k] * factor) for k in ("all", "old", "new")}}
            made["sets"][f"{name}/{severity}"] = score
        members = [made["sets"][f"{name}/{severity}"] for severity in range(1, 6)]
        made["summary"][name] = _mean(members)
    for row in made["curve"]:
        if "sets" in row:
            row["sets"] |= {f"{name}/3": row["sets"][shifted] for name in CORRUPTIONS}
            del row["sets"][shifted]
    members = [s for n, s in made["sets"].items() if "/" in n]
    made["summary"]["corrupted"] = _mean(members)
    return made


def _mean(members: list[dict[str, Any]]) -> dict[str, Any]:
    keys = [key for key in members[0] if key != "role"]
    return {key: sum(one[key] for one in members) / len(members) for key in keys}


def collection(
    results: Path,
    *,
    methods: Sequence[str] = tuple(LEVELS),
    datasets: Sequence[str] = DATASETS,
    seeds: Sequence[int] = range(3),
    without: Sequence[Place] = (),
    corrupted: bool = False,
    unseen: bool = False,
) -> Collection:
    """Write records of all cells but ``without`` below a folder and collect them."""
    planned = [Place(d, m, s) for d in datasets for s in seeds for m in methods]
    truths = {dataset: truth(dataset) for dataset in datasets}
    made, folders = [], {}
    for place in planned:
        if place in without:
            continue
        rng = np.random.RandomState(abs(hash_of(place)))
        levels = np.array(LEVELS.get(place.method, LEVELS["gcd"]))
        levels = levels + 0.02 * rng.standard_normal(4)
        levels[2:] *= HARDNESS.get(place.dataset, 0.9)
        answer = truths[place.dataset]
        preds = predictions(answer, levels, rng)
        one = record(place, answer, preds)
        one = with_corruptions(one) if corrupted else one
        if unseen:  # the mean over domains that are not trained on
            one["summary"]["others"] = one["summary"]["pooled"]
        folder = results / place.dataset / place.method / f"seed{place.seed}-{one['key']}"
        write_record(folder, one, preds)
        digest = hashlib.sha256((folder / "predictions.npz").read_bytes()).hexdigest()
        made.append({**one, "predictions_sha256": digest})
        folders[one["key"]] = folder
    return Collection(
        table=tidy(made),
        records=made,
        planned=planned,
        missing=list(without),
        folders=folders,
        truths=truths,
        description="drawings in four styles",
    )


def hash_of(place: Place) -> int:
    """Hash a place the same way in every process."""
    return int(hashlib.sha256(repr(tuple(place)).encode()).hexdigest()[:8], 16)
