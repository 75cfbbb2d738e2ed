"""What a cell leaves behind, as one typed value: settings, scores, learning curve, provenance.

A record is JSON on disk (see ``records``). ``from_json`` checks every field and turns records of
earlier formats into the present one. A share that is not defined, such as the accuracy of new
classes in a set without any, is None here and null in JSON. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from gcdbench.experiment.typed_json import (
    Mismatch,
    decode,
    encode_fields,
    make,
    mapping,
    without_nan,
)

FORMAT = 2  # 2 names the version of the scores
FORMATS = (1, FORMAT)  # that can be read
MOST_DEPTH = 20  # of nested settings
T = TypeVar("T")


@dataclass(frozen=True)
class SplitAccuracies:
    """Accuracies as fractions, of all classes and of the old and new ones."""

    all: float
    old: float | None
    new: float | None

    def rate(self, name: str) -> float | None:
        """Return an accuracy by its name, in capitals or not."""
        value: float | None = getattr(self, name.lower())
        return value


@dataclass(frozen=True)
class SetScores(SplitAccuracies):
    """Scores of an evaluation set, or their mean over several sets."""

    n: int
    n_old: int
    role: str = ""  # none of a mean
    rates: Mapping[str, float | None] = field(default_factory=dict)  # nmi, ari, kinds of error, ...
    rest: ClassVar[str] = "rates"  # in JSON they are next to the other fields

    def rate(self, name: str) -> float | None:
        """Return an accuracy or another rate by its name; None if it is not recorded."""
        return super().rate(name) if name.lower() in SPLITS else self.rates.get(name)

    def to_json(self) -> dict[str, Any]:
        """Return the scores as a flat mapping."""
        names = [f.name for f in dataclasses.fields(self) if f.name != "rates"]
        own = {name: getattr(self, name) for name in names}
        return {n: v for n, v in own.items() if n != "role" or v} | dict(self.rates)


SPLITS = tuple(f.name for f in dataclasses.fields(SplitAccuracies))


@dataclass(frozen=True)
class CurvePoint:
    """An epoch of training."""

    epoch: int  # from 0
    lr: float
    terms: Mapping[str, float | None]  # means of the loss terms
    sets: Mapping[str, SplitAccuracies] = field(default_factory=dict)  # empty if not scored then
    diagnostics: Mapping[str, float | None] = field(default_factory=dict)  # means of those given


class LazyCurve(Sequence[CurvePoint]):
    """A learning curve that is made of its JSON when it is looked at; few reports do.

    It belongs to a record that has been checked.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def points(self) -> tuple[CurvePoint, ...]:
        """Return the epochs."""
        found = []
        for facts in json.loads(self.text):
            sets = {n: SplitAccuracies(**one) for n, one in facts.get("sets", {}).items()}
            point = object.__new__(CurvePoint)  # its facts were checked; this takes half the time
            point.__dict__.update({"diagnostics": {}, **facts, "sets": sets})
            found.append(point)
        return tuple(found)

    def terms(self) -> Iterator[tuple[int, Mapping[str, float | None]]]:
        """Yield the number of each epoch and its loss terms; nothing else is made."""
        return ((facts["epoch"], facts["terms"]) for facts in json.loads(self.text))

    def mentions(self, name: str) -> bool:
        """Tell whether a name can be in the curve, without looking at its epochs."""
        return f'"{name}"' in self.text

    def __getitem__(self, place: Any) -> Any:
        return self.points()[place]

    def __iter__(self) -> Iterator[CurvePoint]:
        return iter(self.points())

    def __len__(self) -> int:
        return len(json.loads(self.text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.points() == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def to_json(self) -> Any:
        """Return the epochs as JSON values."""
        return json.loads(self.text)


def terms_of(curve: Sequence[CurvePoint]) -> Iterator[tuple[int, Mapping[str, float | None]]]:
    """Yield the number of each epoch of a learning curve, and its loss terms."""
    if isinstance(curve, LazyCurve):
        return curve.terms()
    return ((point.epoch, point.terms) for point in curve)


def mentions(curve: Sequence[CurvePoint], name: str) -> bool:
    """Tell whether a name can be in a learning curve; if not, it need not be looked at."""
    return curve.mentions(name) if isinstance(curve, LazyCurve) else bool(curve)


@dataclass(frozen=True)
class Unreadable:
    """Images that could not be read."""

    count: int
    first: Mapping[str, str]  # some of them, with the reasons


@dataclass(frozen=True)
class ProblemFacts:
    """Sizes of the problem that a cell was trained on."""

    num_classes: int
    num_old: int
    assumed_classes: int  # that the method was given
    labelled: int
    unlabelled: int
    notes: Mapping[str, str]
    unreadable: Unreadable | None = None


@dataclass(frozen=True)
class Commit:
    """The commit of the checkout that a cell was run from."""

    commit: str
    dirty: bool


@dataclass(frozen=True)
class Provenance:
    """Where a record was made, and with which versions."""

    versions: Mapping[str, str]
    platform: str
    processor: str
    device: str
    processes: int
    threads: int
    git: Commit | None = None
    backbone: str | None = None  # hash of the pretrained weights that were loaded


@dataclass(frozen=True)
class Timing:
    """What a cell has cost, over all its restarts."""

    started: float  # seconds of the epoch
    restarts: int
    wall_seconds: float
    cpu_seconds: float
    peak_memory_mb: float
    device_seconds: float | None = None
    energy_joules: float | None = None


@dataclass(frozen=True)
class SearchFacts:
    """A search that chose the settings of a record; no part of the key."""

    criterion: str
    budget: int  # draws, the defaults among them
    sampler: str
    seed: int
    folds: tuple[int, ...]  # of old classes, that the draws were trained on
    draw: int  # the winner; 0 are the defaults
    value: float  # of the winner by the criterion
    failed: int  # draws without a value
    cpu_seconds: float  # of all draws
    settings: Mapping[str, Any]  # of the winner, by section; empty if the defaults won
    keys: tuple[str, ...]  # of the cells of all draws

    @property
    def identity(self) -> tuple[Any, ...]:
        """What distinguishes searches of one method on one dataset."""
        return self.criterion, self.budget, self.sampler, self.seed, self.folds


@dataclass(frozen=True)
class Record:
    """One trained and scored cell."""

    key: str
    dataset: str
    method: str
    seed: int
    settings: Mapping[str, Any]  # all that the user can set, resolved
    fingerprints: Mapping[str, str]  # with the settings they make the key
    problem: ProblemFacts
    scores: str  # version of the code that computed sets and summary; "" before there were any
    sets: Mapping[str, SetScores]
    summary: Mapping[str, SetScores]  # means over sets, and all sets pooled
    curve: Sequence[CurvePoint]
    provenance: Provenance
    timing: Timing
    predictions_sha256: str = ""  # of the file next to the record; set when that is written
    searches: tuple[SearchFacts, ...] = ()  # that chose these settings

    @property
    def label(self) -> str:
        """How messages name the cell."""
        return f"{self.method} on {self.dataset}, seed {self.seed}"

    @property
    def train(self) -> Mapping[str, Any]:
        """Settings of the training loop."""
        return self._section("train")

    @property
    def backbone(self) -> Mapping[str, Any]:
        """Settings of the backbone."""
        return self._section("backbone")

    @property
    def epochs(self) -> int:
        """Number of epochs that were trained."""
        return int(self.train["epochs"])

    @property
    def backbone_name(self) -> str:
        """Name of the backbone."""
        return str(self.backbone["name"])

    @property
    def limit(self) -> int | None:
        """Most images of a part or evaluation set, of a cell that was run with ``--quick``."""
        limit: int | None = self.settings.get("limit")
        return limit

    @property
    def source(self) -> tuple[str, Mapping[str, Any]]:
        """Name of the source of the dataset, and its settings."""
        ((name, config),) = self.settings["source"].items()
        return name, config

    def config(self, component: str) -> Mapping[str, Any]:
        """Return the settings of the method or of a technique; empty if it was not used."""
        config: Mapping[str, Any] = self._section("config").get(component, {})
        return config

    def _section(self, name: str) -> Mapping[str, Any]:
        section: Mapping[str, Any] = self.settings[name]
        return section

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Make a record of JSON of any known format, without its checksum; check every field."""
        if data.get("format") not in FORMATS:
            raise Mismatch(f"format {data.get('format')!r} is not known")
        present = migrated(data)
        values = {name: v for name, v in present.items() if name not in ("format", "sha256")}
        record = make(cls, values, "")
        if _depth(record.settings) > MOST_DEPTH:
            raise Mismatch("settings are nested too deeply")
        for path, kind in _SETTINGS.items():
            section, _, name = path.partition(".")
            inner = mapping(record.settings.get(section), f"settings.{section}")
            if name and name not in inner:
                raise Mismatch(f"settings.{path} is missing")
            if name:
                decode(kind, inner[name], f"settings.{path}")
        if len(record.settings["source"]) != 1:
            raise Mismatch("settings.source does not name one source")
        return record

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values of the present format, without a checksum."""
        values = {"format": FORMAT, **encode_fields(self)}
        if not self.searches:
            del values["searches"]
        return values


def _depth(value: Any) -> int:
    """Return how deeply a value is nested, up to ``MOST_DEPTH`` and one more."""
    level, depth = [value], 0
    while level and depth <= MOST_DEPTH:
        depth += 1
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return depth


# settings that code outside of this module relies on
_SETTINGS: dict[str, Any] = {
    "source": None,
    "config": None,
    "train.epochs": int,
    "train.batch_size": int,
    "train.draws_per_epoch": int | None,
    "backbone.name": str,
    "backbone.train_blocks": int,
}


def migrated(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a record in the present format.

    Format 1 may lack the version of the scores, and may say whether a cell shared the passes over
    the backbone with others, which cells no longer do.
    """
    if data["format"] == FORMAT:
        return dict(data)
    origin = data.get("provenance")
    if isinstance(origin, Mapping):
        origin = {name: value for name, value in origin.items() if name != "side_by_side"}
    return {"scores": "", **data, "format": FORMAT, "provenance": origin}


def part(kind: type[T], values: Mapping[str, Any]) -> T:
    """Make a part of a record of values that were just computed; NaN becomes None."""
    made: T = decode(kind, without_nan(values), kind.__name__)
    return made
