"""What a cell will cost: images and FLOPs by counting, time by records or by a GPU's peak.

Records of the same device come first. Without any, the time is what a named GPU would need for the
backbone's FLOPs at an assumed share of its peak: an estimate, not a measurement. Nothing here
imports torch, unless a backbone has no entry in ``core.backbone_sizes``.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from gcdbench.core import registry
from gcdbench.core.backbone_sizes import SIZES, BackboneSize
from gcdbench.core.config import plain
from gcdbench.core.method_spec import MethodSpec
from gcdbench.errors import UserError
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import Record

VIEWS = 2  # of every image in a training step, unless a method declares others
BACKWARD = 2  # a backward pass of the trained blocks, in forward passes
KEPT_BYTES = 4 << 30  # of frozen features that a process keeps in memory (FeatureStore)
LABELLED = 0.5  # share of labelled images in a balanced batch
SMALLEST = 1e9  # FLOPs per image below which a GPU waits for launches, and its peak says nothing
TOO_SMALL = "too little work per image for an estimate by FLOPs; doctor measures it"


@dataclass(frozen=True)
class Gpu:
    """A GPU's peak, and the share of it that a ViT is assumed to reach."""

    peak: float  # FLOP/s of dense float16 matrix products with float32 sums, by its data sheet
    share: float

    @property
    def rate(self) -> float:
        """Assumed FLOP/s."""
        return self.peak * self.share


# The shares are assumptions, set below what is published: timm's lists of inference under autocast
# give a ViT-B/16 1,570 images/s on an RTX 3090 (78 % of the peak) and 2,787 on an RTX 4090 (59 %);
# NVIDIA's figures for training a ViT-g/14 are 44 % on an A100 and 29 % on an H100.
GPUS = {
    "V100": Gpu(125e12, 0.35),
    "A100": Gpu(312e12, 0.40),
    "H100": Gpu(989e12, 0.28),
    "RTX3090": Gpu(71e12, 0.60),
    "RTX4090": Gpu(165e12, 0.50),
}
CPU = "cpu"  # its time is known from records only
DEVICES = (*GPUS, CPU)
DEFAULT = "A100"


def device_of(name: str) -> str:
    """Return the entry of ``DEVICES`` that a record's device belongs to, or the name itself.

    >>> device_of("NVIDIA A100-SXM4-80GB"), device_of("NVIDIA GeForce RTX 3090"), device_of("cpu")
    ('A100', 'RTX3090', 'cpu')
    >>> device_of("NVIDIA GeForce RTX 3090 Ti")
    'NVIDIA GeForce RTX 3090 Ti'
    """
    short = name.replace(" ", "")
    return next((gpu for gpu in GPUS if re.search(rf"{gpu}(?!\d|Ti|D\b)", short)), name)


@dataclass(frozen=True)
class Sizes:
    """How many images a cell is trained on, and how many more are only scored."""

    pool: int
    unseen: int = 0


@dataclass(frozen=True)
class Work:
    """What passes the backbone in a cell."""

    views: int  # in training steps
    swept: int  # images whose features are computed outside of steps, once for each time
    through_trunk: int = 0  # of both, how many pass the frozen blocks: others have kept features
    flops: float | None = None  # of the backbone; heads and losses add a few percent at most

    @property
    def images(self) -> int:
        """All of them."""
        return self.views + self.swept


@dataclass(frozen=True)
class Estimate:
    """The work of a cell, and its time on a device."""

    images: int
    flops: float | None
    device: str
    seconds: float | None = None
    basis: str = "nothing like it is recorded"
    measured: bool = False  # by records of the same device

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return asdict(self)


def work(
    train: Mapping[str, Any],
    spec: MethodSpec,
    sizes: Sizes,
    size: BackboneSize | None,
    blocks: int,
    config: Mapping[str, Any] = MappingProxyType({}),
) -> Work:
    """Return the work of a cell; ``blocks`` are trained, of a backbone of ``size`` if it is known.

    ``config`` are the settings of the method: its views may be among them.

    Frozen features that fit into memory are computed once, and so are the views of a view bank.
    """
    batch = min(train["batch_size"], sizes.pool)
    steps = max((train["draws_per_epoch"] or sizes.pool) // batch, 1) * train["epochs"]
    needs = _needs(spec)
    number = len(config.get("views", ())) or needs.views
    views = round(steps * batch * (number + LABELLED * needs.labelled_passes))
    rows, times = sizes.pool + sizes.unseen, sweeps(train, needs)
    if size is None:
        return Work(views, rows * times)
    kept = min(rows, KEPT_BYTES // size.kept_bytes(blocks, train.get("eval_tokens", "float32")))
    bank = train.get("view_bank", 0)
    through_trunk = (bank * sizes.pool if bank else views) + rows * times - kept * (times - 1)
    through_tail = views * (1 + BACKWARD) + rows * times
    flops = through_trunk * size.trunk_flops(blocks) + through_tail * size.tail_flops(blocks)
    return Work(views, rows * times, through_trunk, float(flops))


@dataclass(frozen=True)
class Needs:
    """What a method and its techniques declare about passes of the backbone."""

    sweeps: frozenset[str] = frozenset()
    labelled_passes: int = 0
    views: int = VIEWS


@cache
def _needs(spec: MethodSpec) -> Needs:
    plugins = [("method", spec.method), *(("technique", name) for name in spec.techniques)]
    try:
        known = [registry.get(*plugin).constants for plugin in plugins]
    except UserError:  # of a record whose plug-in is not here
        return Needs()
    swept = frozenset(one["sweeps"] for one in known if one.get("sweeps"))
    views = len(known[0].get("views", ("",) * VIEWS))
    return Needs(swept, sum(one.get("labelled_passes", 0) for one in known), views)


def sweeps(train: Mapping[str, Any], needs: Needs) -> int:
    """Return how often the features of all images are computed: once for each state of the weights.

    >>> sweeps({"epochs": 10, "eval_every": 5}, Needs(frozenset({"fit"})))
    3
    """
    epochs, every = train["epochs"], train.get("eval_every", 0)
    states = {epochs}  # after the last epoch, for the scores
    states |= set(range(every, epochs, every)) if every else set()
    states |= {0} if "fit" in needs.sweeps else set()
    states |= set(range(epochs)) if "epoch" in needs.sweeps else set()
    return len(states)


@dataclass
class CostModel:
    """Estimates cells: by records of a device, of the same method if possible, or by its peak."""

    records: Iterable[Record]
    device: str = DEFAULT
    _rates: dict[tuple, list[float]] = field(default_factory=lambda: defaultdict(list))
    _known: dict[tuple, Estimate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec_of = cache(_recorded_spec)  # of one call: plug-ins may be added between two
        for record in self.records:
            device = device_of(record.provenance.device)
            done = _recorded_images(record, spec_of(record.method))
            rate = record.timing.wall_seconds / done
            for whose in (record.method, ""):
                self._rates[(device, whose, *_kind(record.backbone, record.train))].append(rate)

    @property
    def on_cpu(self) -> CostModel:
        """The same records, for the time on a CPU."""
        return CostModel((), CPU, self._rates)

    def estimate(self, cell: Cell) -> Estimate:
        """Estimate a cell."""
        views = len(cell.method_config.get("views", ()))
        data = cell.dataset, cell.limit, cell.exclude
        alike = (*data, cell.spec, cell.train, cell.backbone, views)
        if (found := self._known.get(alike)) is None:
            found = self._known[alike] = self._estimate(cell)
        return found

    def _estimate(self, cell: Cell) -> Estimate:
        train, blocks = plain(cell.train), cell.backbone.train_blocks
        parts = cell_sizes(cell), backbone_size(cell.backbone.name), blocks
        done = work(train, cell.spec, *parts, cell.method_config)
        facts = done.images, done.flops, self.device
        kind = _kind(plain(cell.backbone), train)
        for method, whose in ((cell.spec.text, "of this method"), ("", "of other methods")):
            if rates := self._rates.get((self.device, method, *kind)):
                number = len(rates)
                basis = f"by {number} record{'s' * (number > 1)} {whose}"
                return Estimate(*facts, done.images * statistics.median(rates), basis, True)
        if done.flops is None or self.device not in GPUS:
            return Estimate(*facts)
        if done.flops < SMALLEST * done.images:
            return Estimate(*facts, basis=TOO_SMALL)
        return Estimate(*facts, done.flops / GPUS[self.device].rate, assumption(self.device))


def assumption(device: str) -> str:
    """Return what an estimate without records assumes.

    >>> assumption("A100")
    'estimate, not measured: 40 % of the peak of 312 TFLOP/s in float16'
    """
    gpu = GPUS[device]
    return (
        f"estimate, not measured: {100 * gpu.share:.0f} % of the peak of {gpu.peak / 1e12:.0f} "
        "TFLOP/s in float16"
    )


@cache
def backbone_size(name: str) -> BackboneSize | None:
    """Return the size of a backbone; None if there is no such timm model."""
    if name in SIZES:
        return SIZES[name]
    from gcdbench.nn.hub import timm_size

    try:
        return timm_size(name)
    except UserError:
        return None


def _recorded_spec(method: str) -> MethodSpec:
    """Return the method and techniques of a record."""
    try:
        return MethodSpec.parse(method)
    except UserError:  # its plug-in is not here
        return MethodSpec(method, (), method)


def _recorded_images(record: Record, spec: MethodSpec) -> int:
    """Return how many images have passed the backbone in a recorded cell."""
    unseen = sum(s.n for s in record.sets.values() if s.role == "unseen")
    sizes = Sizes(record.problem.labelled + record.problem.unlabelled, unseen)
    return work(record.train, spec, sizes, None, 1, record.config(spec.method)).images


def cell_sizes(cell: Cell) -> Sizes:
    """Return the sizes of a cell's problem; without the data the published size of its pool."""
    try:
        problem = cell.problem()
    except UserError:
        return Sizes(max(cell.loader().published_size() or 0, 1))
    unseen = sum(len(s.rows) for s in problem.sets.values() if s.role == "unseen")
    return Sizes(len(problem.pool), unseen)


def _kind(backbone: Mapping[str, Any], train: Mapping[str, Any]) -> tuple:
    """Return what decides the cost of an image in addition to the method and the device."""
    return backbone["name"], backbone["train_blocks"], bool(train.get("view_bank"))


def duration(seconds: float) -> str:
    """Return a time in readable form.

    >>> [duration(s) for s in (8.4, 300, 7500, 200_000, 40_000_000)]
    ['8 s', '5 min', '2.1 h', '55.6 h', '11,111 h']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 99.95 else f"{hours:,.0f} h"


def amount(number: float) -> str:
    """Return a number of images with three digits.

    >>> [amount(n) for n in (950, 203_500, 106_649_600, 36.8e9)]
    ['950', '204 k', '107 M', '36.8 bn']
    """
    for unit in ("", "k", "M", "bn"):
        if number < 999.5 or unit == "bn":
            break
        number /= 1000
    digits = 0 if number >= 99.95 or not unit else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f} {unit}".rstrip()


def scientific(number: float) -> str:
    """Return a number with two digits and its power of ten.

    >>> scientific(3.75e18)
    '3.8e18'
    """
    return f"{number:.1e}".replace("e+", "e")
