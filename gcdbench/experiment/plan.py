"""Turn a request into cells: which method on which dataset with which seed and settings.

Two cells with one key (see ``key``) are the same experiment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from gcdbench.core import registry
from gcdbench.core.config import build, merge, plain
from gcdbench.core.method_spec import MethodSpec, check_views
from gcdbench.core.settings import LARGEST_SEED, BackboneConfig, TaskConfig, TrainConfig
from gcdbench.core.suites import Suite
from gcdbench.data.datasets import make_dataset
from gcdbench.data.problem import Dataset, Problem, read_exclusions
from gcdbench.errors import UserError, unknown
from gcdbench.experiment.key import code_hash, forget_code, key_of, weights_hash

PROTOCOL = "v2"  # one assignment over all images of an evaluation set


@dataclass(frozen=True)
class Request:
    """What the command line asks for; ``run``, ``plan`` and reports read the same one."""

    suite: str
    methods: tuple[str, ...] = ()  # specs; the suite's default ones if empty
    datasets: tuple[str, ...] = ()  # all of the suite if empty; NAME@N is its class split N
    seeds: tuple[int, ...] = ()  # the suite's if empty
    assignments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quick: bool = False
    data_root: Path | None = None
    class_splits: tuple[int, ...] = ()  # of each dataset, which are averaged over as datasets are


@dataclass(frozen=True)
class Cell:
    """One experiment."""

    dataset: str
    spec: MethodSpec
    seed: int
    source: str
    source_config: dict[str, Any]
    limit: int | None  # images per part and evaluation set, for a quick look
    train: TrainConfig
    backbone: BackboneConfig
    task: TaskConfig
    method_config: dict[str, Any]
    technique_configs: dict[str, dict[str, Any]]
    data_root: Path | None
    exclude: str | None = None  # file with the images that are left out; the problem's hash has it
    note: str = ""  # distinguishes cells of one method in messages; not part of the key

    @property
    def label(self) -> str:
        """How messages name the cell."""
        note = f" ({self.note})" if self.note else ""
        return f"{self.spec.text}{note} on {self.dataset}, seed {self.seed}"

    def settings(self) -> dict[str, Any]:
        """Return everything the user can set, resolved."""
        return {
            "dataset": self.dataset,
            "source": {self.source: self.source_config},
            "limit": self.limit,
            "method": self.spec.text,
            "seed": self.seed,
            "train": dict(_plain(self.train)),
            "backbone": dict(_plain(self.backbone)),
            "task": dict(_plain(self.task)),
            "config": {
                self.spec.method: self.method_config,
                **{name: self.technique_configs[name] for name in self.spec.techniques},
            },
            "protocol": PROTOCOL,
        }

    def loader(self) -> Dataset:
        """Return the dataset plug-in that builds the problem; the data need not be on disk."""
        where = f"dataset {self.dataset}"
        return make_dataset(self.source, self.data_root, self.source_config, where=where)

    def problem(self) -> Problem:
        """Build the problem (kept for the other cells of the same dataset)."""
        place = self.dataset, self.limit, self.data_root, self.exclude
        return build_problem(self.source, self.source_config, *place)

    def fingerprints(self) -> dict[str, str]:
        """Return the hashes that, with the settings, make the key."""
        return dict(self._fingerprints)

    def with_seed(self, seed: int) -> Cell:
        """Return this cell with another seed; what both have in common is computed once."""
        other = replace(self, seed=seed)
        vars(other)["_original"] = self
        return other

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        if "_original" in vars(self):
            return dict(vars(self)["_original"]._fingerprints)
        return {
            "problem": self.problem().fingerprint,
            "weights": weights_hash(self.backbone),
            "code": self._code_hash(),
        }

    @cached_property
    def key(self) -> str:
        """Hash of all that can change the cell's numbers."""
        return key_of(self.settings(), self.fingerprints())

    def __getstate__(self) -> dict[str, Any]:
        """Leave the key out: another process computes its own, from the code that it runs."""
        computed = ("key", "_fingerprints", "_original")
        return {name: value for name, value in self.__dict__.items() if name not in computed}

    def check_code(self) -> None:
        """Raise if the code on disk, which may just have been imported, is not that of the key."""
        before = self.fingerprints()["code"]
        forget_code()
        if self._code_hash() != before:
            raise UserError("code has changed since the run was started: start again")

    def _code_hash(self) -> str:
        return code_hash(self.spec, self.source, folds=split_fold(self.dataset)[1] is not None)


def make_cells(request: Request) -> list[Cell]:
    """Return the cells of a request, in a fixed order: by dataset, seed and method."""
    suite = Suite.load(request.suite)
    suite.check_names()
    methods = request.methods or tuple(suite.data.get("default_methods", ()))
    if not methods:
        raise UserError(f"suite {suite.name} names no default methods: add --methods")
    specs = {s.text: s for s in map(MethodSpec.parse, methods)}
    for name in request.datasets:
        base = base_name(split_fold(name)[0])
        if base not in suite.datasets:
            raise unknown("dataset", base, suite.datasets, f"suite {suite.name}")
    _check_sections(request.assignments, specs.values())
    seeds = request.seeds or tuple(suite.data.get("seeds", (0,)))
    if wrong := [seed for seed in seeds if not 0 <= seed <= LARGEST_SEED]:
        raise UserError(f"seed {wrong[0]}: expected a whole number from 0 to {LARGEST_SEED}")
    cells = []
    for dataset in _with_class_splits(request, suite):
        row = [_cell(request, suite, dataset, spec) for spec in specs.values()]
        cells += [cell.with_seed(seed) for seed in dict.fromkeys(seeds) for cell in row]
    return cells


def base_name(dataset: str) -> str:
    """Return a dataset's name in its suite, without the class split.

    >>> base_name("cub-c@3"), base_name("cub-c")
    ('cub-c', 'cub-c')
    """
    name, at, split = dataset.rpartition("@")
    return name if at and split.isdecimal() else dataset


def fold_name(dataset: str, fold: int) -> str:
    """Return the name of a fold of a dataset, on which settings are chosen.

    >>> fold_name("line+solid", 1), split_fold("line+solid@fold1"), split_fold("line+solid")
    ('line+solid@fold1', ('line+solid', 1), ('line+solid', None))
    """
    return f"{dataset}@fold{fold}"


def split_fold(dataset: str) -> tuple[str, int | None]:
    """Return the name of the dataset of which this is a fold, and which; None if it is none."""
    name, at, fold = dataset.rpartition("@fold")
    return (name, int(fold)) if at and fold.isdecimal() else (dataset, None)


def _with_class_splits(request: Request, suite: Suite) -> list[str]:
    """Return the names of the datasets, those of class split N (but 0) with @N."""
    names = list(request.datasets or suite.datasets)
    if not request.class_splits:
        return names
    splits = dict.fromkeys(request.class_splits)
    return [f"{base_name(n)}@{s}" if s else base_name(n) for n in names for s in splits]


def _source_config(suite: Suite, dataset: str) -> dict[str, Any]:
    """Return the settings of a suite's dataset, with the class split that its name asks for."""
    dataset, _ = split_fold(dataset)
    base = base_name(dataset)
    config = dict(suite.datasets[base].get("config", {}))
    if base != dataset:
        config["class_split"] = int(dataset.removeprefix(f"{base}@"))
    return config


def _cell(request: Request, suite: Suite, dataset: str, spec: MethodSpec) -> Cell:
    entry = suite.datasets[base_name(split_fold(dataset)[0])]
    info = registry.get("method", spec.method)
    where = f"suite {suite.name}, dataset {dataset}"
    layers = [suite.data, entry]
    if request.quick:
        layers.append(merge(QUICK, suite.data.get("quick", {})))
    by_method = [layer.get("methods", {}).get(spec.method, {}) for layer in layers]
    given = request.assignments
    method, preset = _method_settings(by_method, given.get(spec.method, {}))

    train = merge(
        info.constants.get("train_defaults", {}),
        *(layer.get("train", {}) for layer in layers[:2]),
        *(layer.get("train", {}) for layer in by_method[:2]),
        preset.get("train", {}),
        *(layer.get("train", {}) for layer in layers[2:]),
        given.get("train", {}),
    )
    backbone = merge(
        {key: info.constants[key] for key in ("train_blocks",) if key in info.constants},
        *(layer.get("backbone", {}) for layer in layers),
        *(layer.get("backbone", {}) for layer in by_method),
        preset.get("backbone", {}),
        given.get("backbone", {}),
    )
    task = merge(*(layer.get("task", {}) for layer in layers), given.get("task", {}))
    techniques = {
        name: plain(
            build(
                registry.get("technique", name).config,
                merge(
                    _inherited_preset(info, method, name),
                    *(layer.get("techniques", {}).get(name, {}) for layer in layers),
                    preset.get("techniques", {}).get(name, {}),
                    given.get(name, {}),
                ),
                name,
            )
        )
        for name in spec.techniques
    }
    source = registry.get("dataset", entry["source"])
    method_config = plain(build(info.config, method, spec.method))
    check_views(spec, registry.view_kinds(spec.method, method_config))
    return Cell(
        dataset=dataset,
        spec=spec,
        seed=0,
        source=entry["source"],
        source_config=plain(
            build(source.config, _source_config(suite, dataset), f"{where}, config")
        ),
        limit=layers[-1].get("limit") if request.quick else entry.get("limit"),
        train=build(TrainConfig, train, "train"),
        backbone=build(BackboneConfig, backbone, "backbone"),
        task=build(TaskConfig, task, "task"),
        method_config=method_config,
        technique_configs=techniques,
        data_root=request.data_root,
        exclude=entry.get("exclude"),
    )


def _method_settings(
    layers: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a method's settings, and what the suite's preset of the chosen name sets besides.

    A suite's preset may name one of the method's own: "released" is then that of the dataset.
    """
    settings = merge(*(layer.get("config", {}) for layer in layers), given)
    chosen = settings.get("preset")
    preset = merge(*(layer.get("presets", {}).get(chosen, {}) for layer in layers))
    single = {key: value for key, value in given.items() if key != "preset"}
    return merge(settings, preset.get("config", {}), single), preset


def _inherited_preset(
    info: registry.PluginInfo, method: Mapping[str, Any], technique: str
) -> dict[str, Any]:
    """Return the method's preset for a technique of its own that has a preset of that name."""
    presets = getattr(registry.get("technique", technique).config, "presets", {})
    own = technique in info.constants.get("techniques", ())
    return {"preset": method["preset"]} if own and method.get("preset") in presets else {}


@cache
def _plain(config: TrainConfig | BackboneConfig | TaskConfig) -> dict[str, Any]:
    """Return settings as a dictionary; the cells of a grid share them."""
    return plain(config)


# overrides of --quick in any suite: the same cells, tiny
QUICK = {
    "train": {"epochs": 1, "draws_per_epoch": 256, "view_bank": 0},
    "task": {"estimate_images": 200},
    "limit": 128,
}


def build_problem(
    source: str,
    config: Mapping[str, Any],
    dataset: str,
    limit: int | None = None,
    root: Path | None = None,
    exclude: str | None = None,
) -> Problem:
    """Build the problem that settings name; the same settings give the same object."""
    return _problem(json.dumps([source, config, limit, dataset, exclude]), root)


@cache
def _problem(key: str, root: Path | None) -> Problem:
    source, config, limit, name, exclude = json.loads(key)
    where, fold = f"dataset {name}", split_fold(name)[1]
    try:
        problem = make_dataset(source, root, config, where=where).problem(name)
    except UserError:
        raise
    except registry.ENDINGS as error:
        path, text = registry.get("dataset", source).path, f"{type(error).__name__}: {error}"
        raise UserError(f"{where}: {path} cannot build it ({text.rstrip(': ')})") from error
    if exclude is not None:
        problem = problem.without(*read_exclusions(Path(exclude)))
    problem = problem if limit is None else problem.limited(limit)
    return problem if fold is None else _fold_of(problem, fold)


def _fold_of(problem: Problem, fold: int) -> Problem:
    from gcdbench.data.tuning.folds import hide_classes  # imports all corruptions

    return hide_classes(problem, fold)


def _check_sections(assignments: Mapping[str, Any], specs: Iterable[MethodSpec]) -> None:
    """Raise a UserError if ``--set`` names a component that no cell uses."""
    used = {"train", "backbone", "task"}
    for spec in specs:
        used |= {spec.method, *spec.techniques}
    for section in assignments:
        if section not in used:
            raise unknown("section", section, used, "--set")
