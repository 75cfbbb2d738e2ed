"""Combine a method and its techniques into one model that can be trained."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gcdbench.core import registry
from gcdbench.core.config import build
from gcdbench.core.method_spec import MethodSpec
from gcdbench.nn.backbone import (
    AddHook,
    Backbone,
    CacheDepth,
    Encoded,
    Recording,
    State,
    TokenHook,
)
from gcdbench.nn.heads import CosineClassifier
from gcdbench.ops.losses import cross_entropy_on
from gcdbench.training.method import (
    Batch,
    Clock,
    FitContext,
    Method,
    Phase,
    PoolFeatures,
    Step,
    Task,
    Technique,
    sampling_weights,
)

AUXILIARY_TEMP = 0.1  # of the classifier that a method without one gets, as in SimGCD


class Composed(nn.Module):
    """A method with techniques applied to it; it is what techniques see as ``model``."""

    def __init__(self, method: Method, techniques: Mapping[str, Technique] | None = None) -> None:
        super().__init__()
        self.method = method
        self._techniques = nn.ModuleDict(techniques or {})
        self.auxiliary: CosineClassifier | None = None

    @property
    def backbone(self) -> Backbone:
        """The method's backbone."""
        return self.method.backbone

    @property
    def provides(self) -> frozenset[str]:
        """What techniques may ask of the model."""
        return self.method.provides | ({"logits"} if self.auxiliary is not None else set())

    @property
    def cache_depth(self) -> CacheDepth:
        """How deep into the backbone views may be precomputed before a step."""
        techniques = self.techniques.values()
        if any(type(one).mix is not Technique.mix for one in techniques) or self.reads_images:
            return "images"
        if any(type(one).tokens is not Technique.tokens for one in techniques):
            return "patches"
        if any(one.requires & {"tokens", "attention"} for one in techniques):
            return "traced"
        return "tokens"

    @property
    def reads_images(self) -> bool:
        """Whether the method needs pixels, in evaluation as well."""
        return "images" in self.method.requires or self.backbone.adapts_pixels

    @property
    def techniques(self) -> dict[str, Technique]:
        """The techniques by name, in the order in which they act."""
        return dict(self._techniques.items())  # type: ignore[arg-type]

    def add(self, name: str, technique: Technique) -> None:
        """Apply one more technique to the model."""
        self._techniques[name] = technique

    def add_auxiliary(self, task: Task) -> None:
        """Add a classifier, trained on the labelled images, to a method without one."""
        self.auxiliary = CosineClassifier(
            self.backbone.dim, task.num_classes, generator=task.generator("auxiliary")
        )

    def encode(self, images: State) -> Encoded:
        """Return what the heads see of images, through the method as in training."""
        return self.method.encode(Batch.unlabelled(images))

    def phase(self, clock: Clock) -> Phase:
        """Return what is trained at a step."""
        return self.method.phase(clock)

    @property
    def has_phases(self) -> bool:
        """Whether the method does not train the same all the time."""
        return type(self.method).phase is not Method.phase

    def step(self, batch: Batch, clock: Clock) -> Step:
        """Run a training step: mix, encode under the hooks, and collect the terms."""
        for technique in self.techniques.values():
            batch = technique.mix(batch, clock)
        added: dict[str, int] = {}
        with (
            self._recording() as recording,
            self.backbone.hooked(
                self._token_hooks(batch, clock),
                lambda f: self._features(f, batch, clock),
                self._add_hook(batch, clock, added),
            ),
        ):
            step = replace(self.method.step(batch, clock), recording=recording)
        terms = dict(step.terms)
        if self.auxiliary is not None:
            logits = self.classify(step.features)
            soft = None if batch.targets is None else batch.per_view(batch.targets)
            rows = batch.in_views(batch.labelled_rows)
            terms["auxiliary"] = cross_entropy_on(
                logits, batch.per_view(batch.labels), targets=soft, rows=rows
            )
            step = replace(step, logits=logits)
        own = () if recording.added is None else recording.added.split(list(added.values()))
        features = dict(zip(added, own, strict=False))
        for name, technique in self.techniques.items():
            seen = replace(step, added=features.get(name))
            more = technique.terms(self, batch, seen, clock)
            terms |= {f"{name}.{term}": value for term, value in more.items()}
        watched = {**self._predicted_new(batch, step), **step.diagnostics}
        return replace(step, terms=terms, diagnostics=watched)

    @torch.no_grad()
    def _predicted_new(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        """Return the share of unlabelled rows that the method's own classifier takes for new."""
        if step.logits is None or self.auxiliary is not None:
            return {}
        views = len(step.logits) // len(batch)
        chosen = step.logits[batch.in_views(batch.unlabelled_rows, views)].argmax(1)
        return {"predicted_new": (chosen >= self.method.task.num_old).float().mean()}

    def _recording(self) -> contextlib.AbstractContextManager[Recording]:
        wanting = [one for one in self.techniques.values() if "attention" in one.requires]
        if not wanting:
            return contextlib.nullcontext(Recording())
        return self.backbone.recording(gradient=any(one.attention_gradient for one in wanting))

    def _token_hooks(self, batch: Batch, clock: Clock) -> list[TokenHook]:
        def hook(technique: Technique) -> TokenHook:
            return lambda x, block: technique.tokens(x, block, batch, clock)

        changing = [t for t in self.techniques.values() if type(t).tokens is not Technique.tokens]
        return [hook(technique) for technique in changing]

    def _add_hook(self, batch: Batch, clock: Clock, added: dict[str, int]) -> AddHook | None:
        """Return a function that makes the rows to add, and notes how many each technique adds."""
        adding = {n: t for n, t in self.techniques.items() if type(t).add is not Technique.add}

        def add(patches: Tensor) -> Tensor | None:
            found = {name: t.add(patches, batch, clock) for name, t in adding.items()}
            rows = {name: part for name, part in found.items() if part is not None and len(part)}
            added.update({name: len(part) for name, part in rows.items()})
            return torch.cat(list(rows.values())) if rows else None

        return add if adding else None

    def _features(self, features: Tensor, batch: Batch, clock: Clock) -> Tensor:
        for technique in self.techniques.values():
            features = technique.features(features, batch, clock)
        return features

    def classify(self, features: Tensor) -> Tensor:
        """Return logits of CLS features, from the auxiliary head if the method has none."""
        if self.auxiliary is not None:
            return self.auxiliary(features) / AUXILIARY_TEMP
        return self.method.classify(features)

    def project(self, features: Tensor) -> Tensor:
        """Return the embedding that contrastive terms compare."""
        return self.method.project(features)

    def begin_fit(self, context: FitContext) -> None:
        """Prepare the method and the techniques, before the first epoch of a fresh run."""
        self.method.begin_fit(context)
        for technique in self.techniques.values():
            technique.begin_fit(self, context)

    def begin_epoch(self, clock: Clock, context: FitContext) -> Tensor:
        """Prepare an epoch and return the sampling weights of its images."""
        plan = self.method.begin_epoch(clock, context)
        task = self.method.task
        weights = sampling_weights(task.labels, task.sampling) if plan is None else plan.weights
        for technique in self.techniques.values():
            weights = technique.weights(weights, clock, context)
        return weights

    def after_step(self, batch: Batch, step: Step, clock: Clock) -> None:
        """Let the method and the techniques update their memories."""
        self.method.after_step(batch, step, clock)
        for technique in self.techniques.values():
            technique.after_step(self, batch, step, clock)

    def param_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """Return (parameters, multiplier of the learning rate) of everything that is trained."""
        groups = [(list(params), scale) for params, scale in self.method.param_groups()]
        extra = [p for p in self._techniques.parameters() if p.requires_grad]
        if self.auxiliary is not None:
            extra += list(self.auxiliary.parameters())
        return [*groups, (extra, 1.0)] if extra else groups

    def predict(self, pool: PoolFeatures, context: FitContext) -> Tensor:
        """Return the method's predictions; techniques have no part in them."""
        return self.method.predict(pool, context)


def compose(
    spec: MethodSpec,
    configs: Mapping[str, Mapping[str, Any]],
    task: Task,
    backbone: Backbone,
) -> Composed:
    """Return the model of a method spec; ``configs`` holds the settings of its parts by name."""
    cls: Any = registry.load("method", spec.method)
    config = build(cls.Config, configs.get(spec.method, {}), spec.method)
    backbone.reads_patches = "patches" in cls.requires
    model = Composed(cls(config, task, backbone))
    kinds = {name: registry.load("technique", name) for name in spec.techniques}
    needs: dict[str, frozenset[str]] = {n: kind.requires for n, kind in kinds.items()}  # type: ignore[attr-defined]
    if "logits" not in model.provides and any("logits" in need for need in needs.values()):
        model.add_auxiliary(task)
    for name, kind in kinds.items():
        part_config = build(kind.Config, configs.get(name, {}), name)  # type: ignore[attr-defined]
        model.add(name, kind(part_config, task, model))
    return model
