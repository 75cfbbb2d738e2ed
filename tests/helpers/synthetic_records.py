"""Invented records for tests of reports: right in form, consistent in themselves, fast to make."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.experiment.key import key_of
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import (
    Commit,
    CurvePoint,
    ProblemFacts,
    Provenance,
    Record,
    SetScores,
    SplitAccuracies,
    Timing,
)
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


SETTINGS = {
    "source": {"drawshift": {}},
    "train": {"epochs": 8, "lr": 0.1, "batch_size": 128, "draws_per_epoch": None},
    "backbone": {"name": "embedded", "weights": None, "train_blocks": 1},
    "config": {},
}
PROVENANCE = Provenance(
    versions={"gcdbench": "0.1.0", "torch": "2.6.0", "python": "3.11.7"},
    platform="Linux",
    processor="a processor",
    device="cpu",
    processes=1,
    threads=2,
    git=Commit("0123456789abcdef0123456789abcdef01234567", dirty=False),
)
TIMING = Timing(
    started=1.7e9, restarts=0, wall_seconds=61.5, cpu_seconds=118.0, peak_memory_mb=812.0
)


def set_scores(role: str, every: float, **more: Any) -> SetScores:
    """Make scores of a set: All, and the same for Old and New unless they are given."""
    usual = {"all": every, "old": every, "new": every, "n": 10, "n_old": 5}
    return SetScores(**usual | more, role=role)


def make_record(**given: Any) -> Record:
    """Make a record of which only what is given matters; its key is that of its settings."""
    settings = SETTINGS | given.pop("settings", {})
    prints = given.pop("fingerprints", {"problem": "p", "weights": "w", "code": "c"})
    usual: dict[str, Any] = {
        "key": key_of(settings, prints),
        "dataset": "toy",
        "method": "m",
        "seed": 0,
        "settings": settings,
        "fingerprints": prints,
        "problem": ProblemFacts(12, 6, 12, 70, 500, {}),
        "scores": "",
        "sets": {},
        "summary": {},
        "curve": (),
        "provenance": PROVENANCE,
        "timing": TIMING,
    }
    return Record(**usual | given)


def record_of(cell: Cell, **given: Any) -> Record:
    """Make a record of a real cell."""
    problem = cell.problem()
    facts = ProblemFacts(
        num_classes=problem.num_classes,
        num_old=problem.num_old,
        assumed_classes=problem.num_classes,
        labelled=len(problem.labelled),
        unlabelled=len(problem.unlabelled),
        notes=problem.notes,
    )
    own = {"key": cell.key, "dataset": cell.dataset, "method": cell.spec.text, "seed": cell.seed}
    made = {"settings": cell.settings(), "fingerprints": cell.fingerprints(), "problem": facts}
    return make_record(**own | made | given)


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


def scores(preds: np.ndarray, labels: np.ndarray, num_old: int, role: str) -> SetScores:
    """Score a set as the evaluator does."""
    hit, old = right(preds, labels), labels < num_old
    said_old = np.isin(preds, np.unique(preds[hit & old]))
    kinds = {
        "old_to_new": old & ~said_old,
        "new_to_old": ~old & said_old,
        "old_to_wrong_old": old & said_old & ~hit,
        "new_to_wrong_new": ~old & ~said_old & ~hit,
    }
    rates = {
        "nmi": 0.5,
        "ari": 0.4,
        **{kind: float(chosen.mean()) for kind, chosen in kinds.items()},
        "false_negative_rate": float(said_old[~old].mean()),
        "false_positive_rate": float((~said_old)[old].mean()),
    }
    return SetScores(
        role=role,
        all=float(hit.mean()),
        old=float(hit[old].mean()),
        new=float(hit[~old].mean()),
        n=len(labels),
        n_old=int(old.sum()),
        rates=rates,
    )


def record(place: Place, answer: Truth, preds: dict[str, np.ndarray], *, epochs: int = 8) -> Record:
    """Make a record as the runner does."""
    names = list(answer.labels)
    roles = {name: "source" if name == names[0] else "shifted" for name in names}
    sets = {n: scores(preds[n], answer.labels[n], answer.num_old, roles[n]) for n in names}
    rng = np.random.RandomState(place.seed)
    settings = {
        "dataset": place.dataset,
        "method": place.method,
        "seed": place.seed,
        "train": {**SETTINGS["train"], "epochs": epochs},
        "config": {place.method: {"temperature": 0.07, "classes": 12}},
        "protocol": "v2",
    }
    return make_record(
        key=hashlib.sha256(repr(place).encode()).hexdigest()[:16],
        dataset=place.dataset,
        method=place.method,
        seed=place.seed,
        settings=settings,
        sets=sets,
        summary={"pooled": scores(*_pooled(preds, answer), answer.num_old, "")},
        curve=tuple(_epoch(number, epochs, sets, rng) for number in range(epochs)),
    )


def _pooled(preds: dict[str, np.ndarray], answer: Truth) -> tuple[np.ndarray, np.ndarray]:
    labels = np.concatenate(list(answer.labels.values()))
    return np.concatenate([preds[name] for name in answer.labels]), labels


def _epoch(
    number: int, epochs: int, sets: dict[str, SetScores], rng: np.random.RandomState
) -> CurvePoint:
    done = (number + 1) / epochs
    terms = {
        "classify": 2.1 * np.exp(-2 * done) + 0.05 * rng.random_sample(),
        "distil": 1.4 * np.exp(-done) + 0.05 * rng.random_sample(),
    }
    measured = {}
    if number % 2 == 1 and number < epochs - 1:
        share = 1 - np.exp(-3 * done)
        measured = {
            name: SplitAccuracies(one.all * share, one.old * share, one.new * share)
            for name, one in sets.items()
        }
    watched = {"predicted_new": number / epochs}
    return CurvePoint(number, 0.1 * (1 - number / epochs), terms, measured, watched)


def with_corruptions(made: Record) -> Record:
    """Turn the shifted set of a record into corruptions at five severities, as in SSB-C."""
    sets, summary = dict(made.sets), dict(made.summary)
    shifted = next(name for name, one in sets.items() if one.role == "shifted")
    base = sets.pop(shifted)
    for place, name in enumerate(CORRUPTIONS):
        for severity in range(1, 6):
            factor = 1.2 - 0.12 * severity - 0.1 * place
            changed = {k: min(1.0, base.rate(k) * factor) for k in ("all", "old", "new")}
            sets[f"{name}/{severity}"] = replace(base, **changed)
        summary[name] = _mean([sets[f"{name}/{severity}"] for severity in range(1, 6)])
    summary["corrupted"] = _mean([one for name, one in sets.items() if "/" in name])
    curve = tuple(_with_corruptions(point, shifted) for point in made.curve)
    return replace(made, sets=sets, summary=summary, curve=curve)


def _with_corruptions(point: CurvePoint, shifted: str) -> CurvePoint:
    if not point.sets:
        return point
    kept = {name: one for name, one in point.sets.items() if name != shifted}
    more = {f"{name}/3": point.sets[shifted] for name in CORRUPTIONS}
    return replace(point, sets=kept | more)


def _mean(members: list[SetScores]) -> SetScores:
    def mean(name: str) -> float:
        return sum(one.rate(name) for one in members) / len(members)

    return SetScores(
        **{name: mean(name) for name in ("all", "old", "new")},
        n=sum(one.n for one in members),
        n_old=sum(one.n_old for one in members),
        rates={name: mean(name) for name in members[0].rates},
    )


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
            one = replace(one, summary={**one.summary, "others": one.summary["pooled"]})
        folder = results / place.dataset / place.method / f"seed{place.seed}-{one.key}"
        write_record(folder, one, preds)
        digest = hashlib.sha256((folder / "predictions.npz").read_bytes()).hexdigest()
        made.append(replace(one, predictions_sha256=digest))
        folders[one.key] = folder
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
