"""From a request to cells: which method on which dataset with which seed and settings.

A cell's key is a hash of everything that can change its numbers: resolved settings, the problem,
the backbone's weights and the code involved. Two cells with one key are the same experiment.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from gcdbench import registry
from gcdbench.config import build, merge, plain
from gcdbench.data.problem import Problem, Source
from gcdbench.data.sources import make_source
from gcdbench.errors import UserError, unknown
from gcdbench.layout import PACKAGE
from gcdbench.settings import BackboneConfig, TaskConfig, TrainConfig
from gcdbench.suites import Suite

PROTOCOL = "v2"  # one assignment over all images of an evaluation set
# code that cannot change a cell's numbers
_OUTSIDE = (
    *("report", "figures", "reproduce", "runner", "methods", "benchmarks"),
    *("data/commands", "data/sources"),
)
_OUTSIDE_FILES = {
    *("__init__.py", "__main__.py", "api.py", "authoring.py", "cli.py", "completion.py"),
    *("config.py", "contract.py", "describe.py", "errors.py", "features.py", "layout.py"),
    "methods.py",
    *("plan.py", "records.py", "registry.py", "suites.py", "tools.py"),
}


@dataclass(frozen=True)
class Spelling:
    """A method with techniques laid over it: ``simgcd+mcc+nwd``, ``hilo+mixup-patchmix``."""

    method: str
    techniques: tuple[str, ...]
    text: str  # canonical: only what differs from the method's own techniques

    @classmethod
    def parse(cls, text: str) -> Spelling:
        """Read a spelling and check its names."""
        match = re.fullmatch(r"([^+-]+)((?:[+-][^+-]+)*)", text.strip())
        if match is None:
            raise UserError(f"method {text!r}: write a name, then +technique or -technique")
        own = registry.face("method", match[1]).constants.get("techniques", ())
        used = list(own)
        for sign, name in re.findall(r"([+-])([^+-]+)", match[2]):
            registry.face("technique", name)
            if sign == "+" and name in used:
                raise UserError(f"method {text!r}: {name} is already part of it")
            if sign == "-" and name not in used:
                raise UserError(f"method {text!r}: {name} is not part of {match[1]}")
            used.append(name) if sign == "+" else used.remove(name)
        _check_techniques(match[1], used)
        changes = [f"+{t}" for t in used if t not in own] + [f"-{t}" for t in own if t not in used]
        return cls(match[1], tuple(used), match[1] + "".join(changes))


# what techniques may require of any method: of the backbone, and of the classifier that a method
# without one is given
_ALWAYS_PROVIDED = frozenset({"attention", "logits", "tokens"})


def _check_techniques(method: str, techniques: Iterable[str]) -> None:
    """Refuse a technique that asks for what the method does not have."""
    provided = _ALWAYS_PROVIDED | set(registry.face("method", method).constants.get("provides", ()))
    for name in techniques:
        required = set(registry.face("technique", name).constants.get("requires", ()))
        if missing := sorted(required - provided):
            what = " and ".join(missing)
            raise UserError(f"{name} cannot be laid over {method}: it needs a {what}")


@dataclass(frozen=True)
class Request:
    """What the command line asks for; ``run``, ``plan`` and reports read the same one."""

    suite: str
    methods: tuple[str, ...] = ()  # spellings; the suite's default ones if empty
    datasets: tuple[str, ...] = ()  # all of the suite if empty
    seeds: tuple[int, ...] = ()  # the suite's if empty
    assignments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quick: bool = False
    data_root: Path | None = None


@dataclass(frozen=True)
class Cell:
    """One experiment."""

    dataset: str
    spelling: Spelling
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
    note: str = ""  # tells cells of one method apart in messages; it is no part of the experiment

    @property
    def label(self) -> str:
        """How messages name the cell."""
        note = f" ({self.note})" if self.note else ""
        return f"{self.spelling.text}{note} on {self.dataset}, seed {self.seed}"

    def settings(self) -> dict[str, Any]:
        """Return everything the user can set, resolved."""
        return {
            "dataset": self.dataset,
            "source": {self.source: self.source_config},
            "limit": self.limit,
            "method": self.spelling.text,
            "seed": self.seed,
            "train": plain(self.train),
            "backbone": plain(self.backbone),
            "task": plain(self.task),
            "config": {
                self.spelling.method: self.method_config,
                **{name: self.technique_configs[name] for name in self.spelling.techniques},
            },
            "protocol": PROTOCOL,
        }

    def loader(self) -> Source:
        """Return what builds the problem; it can be asked about data that are not there."""
        where = f"dataset {self.dataset}"
        return make_source(self.source, self.data_root, self.source_config, where=where)

    def problem(self) -> Problem:
        """Build the problem (kept for the other cells of the same dataset)."""
        key = json.dumps([self.source, self.source_config, self.limit, self.dataset])
        return _problem(key, self.data_root)

    def fingerprints(self) -> dict[str, str]:
        """Return the hashes that, with the settings, make the key."""
        return {
            "problem": self.problem().fingerprint,
            "weights": weights_hash(self.backbone),
            "code": code_hash(self.spelling, self.source),
        }

    @cached_property
    def key(self) -> str:
        """Hash of all that can change the cell's numbers."""
        return key_of(self.settings(), self.fingerprints())

    def __getstate__(self) -> dict[str, Any]:
        """Leave the key behind: another process makes its own, of the code that it runs."""
        return {name: value for name, value in self.__dict__.items() if name != "key"}

    def check_code(self) -> None:
        """Raise if the code on disk, which may just have been imported, is not that of the key."""
        _without_comments.cache_clear()
        if code_hash.__wrapped__(self.spelling, self.source) != self.fingerprints()["code"]:
            raise UserError("code has changed since the run was started: start again")


def make_cells(request: Request) -> list[Cell]:
    """Return the cells of a request, in a fixed order: by dataset, seed and method."""
    suite = Suite.load(request.suite)
    suite.check_names()
    methods = request.methods or tuple(suite.data.get("default_methods", ()))
    if not methods:
        raise UserError(f"suite {suite.name} names no default methods: add --methods")
    spellings = {s.text: s for s in map(Spelling.parse, methods)}
    for name in request.datasets:
        if name not in suite.datasets:
            raise unknown("dataset", name, suite.datasets, f"suite {suite.name}")
    _check_sections(request.assignments, spellings.values())
    seeds = request.seeds or tuple(suite.data.get("seeds", (0,)))
    cells = []
    for dataset in request.datasets or suite.datasets:
        row = [_cell(request, suite, dataset, spelling) for spelling in spellings.values()]
        cells += [replace(cell, seed=seed) for seed in dict.fromkeys(seeds) for cell in row]
    return cells


def _cell(request: Request, suite: Suite, dataset: str, spelling: Spelling) -> Cell:
    entry, face = suite.datasets[dataset], registry.face("method", spelling.method)
    where = f"suite {suite.name}, dataset {dataset}"
    layers = [suite.data, entry]
    if request.quick:
        layers.append(merge(QUICK, suite.data.get("quick", {})))
    by_method = [layer.get("methods", {}).get(spelling.method, {}) for layer in layers]
    given = request.assignments

    train = merge(
        face.constants.get("train_defaults", {}),
        *(layer.get("train", {}) for layer in layers[:2]),
        *(layer.get("train", {}) for layer in by_method[:2]),
        *(layer.get("train", {}) for layer in layers[2:]),
        given.get("train", {}),
    )
    backbone = merge(*(layer.get("backbone", {}) for layer in layers), given.get("backbone", {}))
    task = merge(*(layer.get("task", {}) for layer in layers), given.get("task", {}))
    method = merge(
        *(layer.get("config", {}) for layer in by_method), given.get(spelling.method, {})
    )
    techniques = {
        name: plain(
            build(
                registry.face("technique", name).config,
                merge(
                    _inherited_preset(face, method, name),
                    *(layer.get("techniques", {}).get(name, {}) for layer in layers),
                    given.get(name, {}),
                ),
                name,
            )
        )
        for name in spelling.techniques
    }
    source = registry.face("source", entry["source"])
    return Cell(
        dataset=dataset,
        spelling=spelling,
        seed=0,
        source=entry["source"],
        source_config=plain(build(source.config, entry.get("config", {}), f"{where}, config")),
        limit=layers[-1].get("limit") if request.quick else entry.get("limit"),
        train=build(TrainConfig, train, "train"),
        backbone=build(BackboneConfig, backbone, "backbone"),
        task=build(TaskConfig, task, "task"),
        method_config=plain(build(face.config, method, spelling.method)),
        technique_configs=techniques,
        data_root=request.data_root,
    )


def _inherited_preset(
    face: registry.Face, method: Mapping[str, Any], technique: str
) -> dict[str, Any]:
    """Return the preset that a method hands on to a technique of its own that has one so named."""
    presets = getattr(registry.face("technique", technique).config, "presets", {})
    own = technique in face.constants.get("techniques", ())
    return {"preset": method["preset"]} if own and method.get("preset") in presets else {}


# what --quick lays over any suite: the same cells, tiny
QUICK = {
    "train": {"epochs": 1, "draws_per_epoch": 256, "view_bank": 0},
    "task": {"estimate_images": 200},
    "limit": 128,
}


@cache
def _problem(key: str, root: Path | None) -> Problem:
    source, config, limit, name = json.loads(key)
    problem = make_source(source, root, config, where=f"dataset {name}").problem(name)
    return problem if limit is None else problem.limited(limit)


def _check_sections(assignments: Mapping[str, Any], spellings: Iterable[Spelling]) -> None:
    """Refuse ``--set`` for a component that no cell uses: it would silently do nothing."""
    used = {"train", "backbone", "task"}
    for spelling in spellings:
        used |= {spelling.method, *spelling.techniques}
    for section in assignments:
        if section not in used:
            raise unknown("section", section, used, "--set")


@cache
def weights_hash(backbone: BackboneConfig) -> str:
    """Return the hash of the weight file, or the hub's name for weights that timm fetches."""
    if backbone.weights is not None:
        path = Path(backbone.weights)
        if not path.is_file():
            raise UserError(f"backbone.weights: no file {path}")
        return file_hash(path)
    if backbone.name == "embedded":
        return file_hash(PACKAGE / "nn" / "weights" / "embedded.safetensors")
    return f"timm:{backbone.name}"


def file_hash(path: Path) -> str:
    """Return a file's sha256."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def key_of(settings: Mapping[str, Any], fingerprints: Mapping[str, str]) -> str:
    """Return the key of the cell with these settings and fingerprints."""
    parts = {"settings": settings, "fingerprints": fingerprints}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@cache
def code_hash(spelling: Spelling, source: str) -> str:
    """Return the hash of the code behind a cell: the core's numeric part and its plug-ins."""
    plugins = [registry.face("method", spelling.method).path, registry.face("source", source).path]
    plugins += [registry.face("technique", name).path for name in spelling.techniques]
    digest = hashlib.sha256()
    for name, path in sorted([*_core(), *((p.name, p) for p in plugins)]):
        digest.update(name.encode() + b"\0" + _without_comments(path).encode() + b"\0")
    return digest.hexdigest()


def _core() -> list[tuple[str, Path]]:
    files = ((p.relative_to(PACKAGE).as_posix(), p) for p in PACKAGE.rglob("*.py"))
    return [(n, p) for n, p in files if not n.startswith(_OUTSIDE) and n not in _OUTSIDE_FILES]


@cache
def _without_comments(path: Path) -> str:
    """Return a file's source without comments and blank lines, which cannot change numbers."""
    text = _STRING_OR_COMMENT.sub(
        lambda found: "" if found[0].startswith("#") else found[0], path.read_text(encoding="utf-8")
    )
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


# what the standard library's tokenizer finds, in less time: plans and reports wait for it
_STRING_OR_COMMENT = re.compile(
    r""""{3}(?:\\.|[^\\])*?"{3}|'{3}(?:\\.|[^\\])*?'{3}"""  # strings over several lines
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*""",
    re.S,
)
