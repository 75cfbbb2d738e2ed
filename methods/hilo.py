"""HiLo: semantic features that are independent of domain features (Wang et al., ICLR 2025).

SimGCD's head on the last block's CLS token finds the classes; a second head of the same design on
the first block's CLS token finds the domains. Labelled images belong to one known domain, the other
domains are discovered by clustering each batch. A mutual-information term keeps the projections of
the two heads independent. PatchMix and the curriculum over domains are techniques, on by default.

The paper does not say how the critic of the mutual information is trained, and its released code
lets it minimise the estimate along with the features, with a critic too simple to see dependence.
The default follows the mathematics: the critic, a perceptron as printed, maximises the estimate
while the features minimise it, in one backward pass through a gradient reversal. An estimate has no
lower bound for features that fool the critic, so they are held to what independence gives, and
beyond a limit the critic's scores grow as a logarithm only. Supervised contrast with a single
domain label can make the domain projection nearly constant, so the critic sees every dimension in
units of its own deviation. Of its scores only the interaction counts: what depends on one of the
two features alone says nothing of dependence, but by shifting it all features together can fool a
critic within a few steps. The preset ``released`` repeats the authors' code. "Released" below is
that code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from gcdbench.plugin import (
    UNLABELLED,
    Backbone,
    Batch,
    Clock,
    CosineClassifier,
    CosineCritic,
    Method,
    MLPCritic,
    ProjectionHead,
    ReadBack,
    Step,
    Task,
    classifier_terms,
    contrast_terms,
    cross_entropy_on,
    full_precision,
    js_mutual_information,
    reverse_gradient,
    self_distillation,
    semi_supervised_kmeans,
    teacher_temperature,
    unit_rows,
)

INDEPENDENT = -2 * math.log(2)  # the estimate of a critic that sees no dependence


class HiLo(Method):
    paper: ClassVar[str] = "https://arxiv.org/abs/2408.04591"
    train_defaults: ClassVar[dict[str, Any]] = {"lr": 0.05}  # released; the paper's headline row
    techniques: ClassVar[tuple[str, ...]] = ("patchmix", "curriculum")
    provides: ClassVar[frozenset[str]] = frozenset({"logits", "projection"})
    tuning: ClassVar[dict[str, Any]] = {  # ranges of `gcdbench tune`, with train.lr and epochs
        "sup_weight": ("uniform", 0.2, 0.5),  # 0.35, as in SimGCD
        "entropy_weight": ("choice", 0.5, 1.0, 2.0, 4.0),  # SimGCD's scripts
        "information_weight": ("log", 0.1, 3.0),  # 1 in the paper
    }

    @dataclass(frozen=True)
    class Config:
        preset: Literal["paper", "released"] = "paper"  # ours: repaired where the text is ill-posed
        disentangle: bool = True  # paper and released; without it the method is SimGCD
        domain_block: int = 1  # whose CLS token the domain head reads, paper and released
        semantic_block: int | None = None  # the last one, paper and released; ablated in the paper
        num_domains: int = 2  # released; only one domain is known, the paper's sweep likes 10
        domain_targets: Literal["kmeans", "distil"] = "kmeans"  # paper; its ablation has "distil"
        # both: InfoNCE, and SupCon with the labelled images as one class; self: InfoNCE alone
        domain_contrast: Literal["both", "self", "none"] = "both"  # paper and released
        align_clusters: bool = True  # ours; released gives the clusters to the wrong rows
        critic: Literal["mlp", "cosine"] = "mlp"  # paper; released reads a cosine only
        critic_update: Literal["adversarial", "joint"] = "adversarial"  # ours; released: joint
        # scaled: every projection at length sqrt(e); standardised: then every dimension, too
        critic_inputs: Literal["standardised", "scaled", "raw"] = "standardised"  # ours
        critic_scores: Literal["interaction", "raw"] = "interaction"  # ours; released: raw
        critic_limit: float | None = 5.0  # of its scores, ours; released: none needed
        stop_at_independence: bool = True  # ours: features that fool the critic gain nothing more
        critic_dim: int = 512  # hidden width of the perceptron, ours; not in the paper
        information_weight: float = 1.0  # paper and released
        domain_entropy_weight: float = 0.1  # paper and released
        kmeans_init: int = 10  # restarts, released
        kmeans_iter: int = 10  # released
        kmeans_tol: float = 0.0  # ours: projections have no scale of their own; released: 1e-4
        sup_weight: float = 0.35  # released, as in SimGCD; the paper has it the other way round
        entropy_weight: float = 2.0  # released; the paper's 0.1 fits the domain head only
        student_temp: float = 0.1  # paper and released
        teacher_start: float = 0.07  # paper and released
        teacher_end: float = 0.04  # released; the paper names the start only
        teacher_warmup: int = 30  # epochs, released; cut to the length of a shorter run
        contrast_temp: float = 1.0  # InfoNCE, released; the paper's table swaps the two
        sup_contrast_temp: float = 0.07  # SupCon, released
        hidden_dim: int = 2048  # of both projectors, released
        projection_dim: int = 256  # released

        presets: ClassVar[dict[str, dict[str, Any]]] = {
            "released": {
                "align_clusters": False,
                "critic": "cosine",
                "critic_update": "joint",
                "critic_inputs": "raw",
                "critic_scores": "raw",
                "critic_limit": None,
                "kmeans_tol": 1e-4,
            },
        }

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        self.semantic = Head(backbone.dim, task.num_classes, config, task.generator("heads"))
        if config.semantic_block is not None:
            backbone.read_from(config.semantic_block)
        if config.disentangle:
            backbone.tap(config.domain_block)
            self.domain = Head(backbone.dim, config.num_domains, config, task.generator("domain"))
            self.critic = make_critic(config, task.generator("critic"))
            if config.critic_scores == "interaction":
                self.offset = nn.Parameter(torch.zeros(()))  # of all scores
            if config.critic_inputs == "standardised":
                self.scales = Standardise(config.projection_dim, groups=2)

    def step(self, batch: Batch, clock: Clock) -> Step:
        c, reading = self.config, self._read_domain(len(batch)) if self.config.disentangle else None
        encoded = self._encode(batch, reading)
        z, cosines = self.semantic(encoded.cls)
        labels, rows = batch.per_view(batch.labels), batch.in_views(batch.labelled_rows)
        targets = None if batch.targets is None else batch.per_view(batch.targets)
        terms = {
            "distil": (1 - c.sup_weight) * self._distil(cosines, clock),
            **self._classify(cosines, labels, rows, c.entropy_weight, targets),
        }
        watched: dict[str, Tensor] = {}
        if reading is None:
            terms |= self._contrast(unit_rows(z), labels, rows)
            return Step(terms, encoded.cls, cosines / c.student_temp)
        both = torch.stack([z, reading.z])
        unit, domains = unit_rows(both), known_domains(labels)
        contrasts = self._contrast(unit, torch.stack([labels, domains]), rows)
        terms |= {name: term[0] for name, term in contrasts.items()}
        of_domain = {name: term[1] for name, term in contrasts.items()}
        others = self._domain_terms(reading, of_domain, domains, rows, batch, clock)
        terms |= {f"domain_{name}": term for name, term in others.items()}
        information, watched = self._information(both, unit)
        terms["information"] = c.information_weight * information
        return Step(terms, encoded.cls, cosines / c.student_temp, diagnostics=watched)

    def _read_domain(self, images: int) -> Reading:
        return Reading(self.domain, images, self.config.domain_block)

    def _encode(self, batch: Batch, reading: Reading | None) -> Any:
        """Encode a batch; the domain head acts as soon as its block has been computed."""
        if reading is None:
            return self.encode(batch)
        with self.backbone.when_tapped(reading):
            encoded = self.encode(batch)
        if not reading.done:  # several processes share the batch
            reading(reading.block, encoded.taps[reading.block])
        return encoded

    def domain_terms(
        self, z: Tensor, cosines: Tensor, batch: Batch, clock: Clock
    ) -> dict[str, Tensor]:
        """Return the terms of the domain head: all labelled images are of domain 0."""
        reading = self._read_domain(len(batch))
        reading.take(z, cosines)
        domains = known_domains(batch.per_view(batch.labels))
        rows = batch.in_views(batch.labelled_rows)
        contrasts = self._contrast(unit_rows(z), domains, rows)
        return self._domain_terms(reading, contrasts, domains, rows, batch, clock)

    def _domain_terms(
        self,
        reading: Reading,
        contrasts: dict[str, Tensor],
        domains: Tensor,
        rows: Tensor,
        batch: Batch,
        clock: Clock,
    ) -> dict[str, Tensor]:
        """Return the same from the contrastive terms, known domains (2B,) and labelled rows."""
        c = self.config
        on = {"both": ("contrast", "sup_contrast"), "self": ("contrast",), "none": ()}
        return {
            **self._teach_domains(reading, batch, clock),
            **self._classify(reading.cosines, domains, rows, c.domain_entropy_weight),
            **{name: contrasts[name] for name in on[c.domain_contrast]},
        }

    def _teach_domains(self, reading: Reading, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return the term by which unlabelled images learn their domain."""
        c = self.config
        if c.domain_targets == "distil":
            taught = self._distil(reading.cosines, clock)
        else:
            clusters = self.clusters(reading.first_view.read(), batch, clock)
            found = 0 < len(batch.labelled_rows) < len(batch)  # otherwise there are no clusters
            taught = cross_entropy_on(
                reading.cosines[: len(batch)],
                clusters,
                rows=batch.unlabelled_rows if found else None,
                temperature=c.student_temp,
            )
        return {c.domain_targets: (1 - c.sup_weight) * taught}

    @torch.no_grad()
    @full_precision
    def clusters(self, z: Tensor, batch: Batch, clock: Clock) -> Tensor:
        """Return the cluster (B,) of every unlabelled image, UNLABELLED for labelled ones.

        Cluster 0 is that of the labelled images; without any, clusters have no fixed order. They
        are computed on the CPU, from projections ``z`` (B, e) there: a hundred tiny steps are
        faster than launches on a GPU, which meanwhile computes the later blocks.
        """
        c, hidden = self.config, torch.full_like(batch.labels, UNLABELLED)
        order = batch.cpu_order if c.align_clusters else torch.arange(len(batch))
        labelled = batch.cpu_labelled[order]
        if labelled.all() or not labelled.any():
            return hidden
        rows = z[order]
        found = semi_supervised_kmeans(
            rows[~labelled],
            rows[labelled],
            torch.zeros(int(labelled.sum())),
            c.num_domains,
            seed=clock.generator("domains").initial_seed() % 2**32,
            n_init=c.kmeans_init,
            max_iter=c.kmeans_iter,
            tol=c.kmeans_tol,
        )
        if c.align_clusters:
            unlabelled, clusters = batch.here(order[~labelled]), batch.here(found.labels)
            return hidden.index_copy(0, unlabelled, clusters)
        # The clusters come with labelled images first, but are read as if in the batch's order.
        clusters = torch.cat([found.labelled_labels, found.labels])
        return batch.here(clusters.masked_fill(labelled, UNLABELLED))

    def information(self, z: Tensor, domain_z: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss by which the projections become independent, and what to watch.

        Adversarial: the critic's loss is minus the estimated information; through the reversal the
        features minimise that information, until the critic cannot distinguish it from
        independence. Joint: the estimate itself, for critic and features. No other term depends on
        the length of a projection. So that the length neither keeps the critic from learning nor
        lets the features escape it, all projections have a common scale.
        """
        both = torch.stack([z, domain_z])
        return self._information(both, unit_rows(both))

    def _information(self, both: Tensor, unit: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the same for projections (2, n, e) and their unit rows."""
        c = self.config
        spread = dict(zip(("semantic_spread", "domain_spread"), varying_share(both), strict=True))
        hidden = both if c.critic_inputs == "raw" else unit * unit.shape[-1] ** 0.5
        if c.critic_update == "adversarial":
            hidden = reverse_gradient(hidden)
        inputs = self.scales(hidden) if c.critic_inputs == "standardised" else hidden
        scores = self.critic(*inputs)
        if c.critic_scores == "interaction":
            scores = interaction(scores) + self.offset
        estimate = js_mutual_information(softly_limited(scores, c.critic_limit))
        watched = {"critic_estimate": estimate.detach(), **spread}
        if c.critic_limit is not None:
            watched["critic_saturated"] = (scores.detach().abs() > c.critic_limit).float().mean()
        if c.critic_update == "joint":
            return estimate, watched
        if c.stop_at_independence:
            fooled = estimate.detach() < INDEPENDENT
            if hidden.requires_grad:
                hidden.register_hook(lambda grad: grad.masked_fill(fooled, 0.0))
        return -estimate, watched

    def classify(self, features: Tensor) -> Tensor:
        return self.semantic.classifier(features) / self.config.student_temp

    def project(self, features: Tensor) -> Tensor:
        return self.semantic.projector(features)

    def _distil(self, cosines: Tensor, clock: Clock) -> Tensor:
        c = self.config
        teacher_temp = teacher_temperature(
            clock.epoch,
            clock.epochs,
            start=c.teacher_start,
            end=c.teacher_end,
            warmup=c.teacher_warmup,
        )
        return self_distillation(cosines, student_temp=c.student_temp, teacher_temp=teacher_temp)

    def _classify(
        self,
        cosines: Tensor,
        labels: Tensor,
        rows: Tensor,
        entropy_weight: float,
        targets: Tensor | None = None,
    ) -> dict[str, Tensor]:
        c = self.config
        return classifier_terms(
            cosines,
            labels,
            rows,
            targets=targets,
            sup_weight=c.sup_weight,
            entropy_weight=entropy_weight,
            student_temp=c.student_temp,
        )

    def _contrast(self, unit: Tensor, labels: Tensor, rows: Tensor) -> dict[str, Tensor]:
        c = self.config
        return contrast_terms(
            unit,
            labels,
            rows,
            sup_weight=c.sup_weight,
            contrast_temp=c.contrast_temp,
            sup_contrast_temp=c.sup_contrast_temp,
        )


def known_domains(labels: Tensor) -> Tensor:
    """Return the domain of every labelled image, which is 0, and UNLABELLED for the others."""
    return labels.clamp(max=0)  # UNLABELLED is the only negative label


class Reading:
    """What the domain head reads from its block, and the copy that the clustering waits for."""

    z: Tensor
    cosines: Tensor
    first_view: ReadBack

    def __init__(self, head: Head, images: int, block: int) -> None:
        self.head, self.images, self.block = head, images, block
        self.done = False

    def __call__(self, block: int, cls: Tensor) -> None:
        """Apply the head to the CLS tokens (V*B, d) of its block."""
        if block == self.block:
            self.take(*self.head(cls))

    def take(self, z: Tensor, cosines: Tensor) -> None:
        """Keep projections and cosines, and send the first views' projections to the CPU."""
        self.z, self.cosines, self.done = z, cosines, True
        self.first_view = ReadBack(z[: self.images])


class Head(nn.Module):
    """A projector and a cosine classifier on one feature, as in SimGCD."""

    def __init__(self, in_dim: int, num_classes: int, config: Any, generator: Generator) -> None:
        super().__init__()
        self.projector = ProjectionHead(
            in_dim,
            hidden_dim=config.hidden_dim,
            out_dim=config.projection_dim,
            generator=generator,
        )
        self.classifier = CosineClassifier(in_dim, num_classes, generator=generator)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return projections (n, e) and cosines (n, K)."""
        return self.projector(features), self.classifier(features)


class Standardise(nn.Module):
    """Bring every dimension to mean zero and deviation one by running statistics.

    The statistics are constants for the gradient, which passes as it is: divided by a small
    deviation, it would let the features outrun the critic. Deviations below ``floor`` are taken for
    noise: they are raised no further than 1/floor.
    """

    mean: Tensor
    var: Tensor
    seen: Tensor

    def __init__(
        self, dim: int, *, groups: int | None = None, momentum: float = 0.9, floor: float = 0.01
    ) -> None:
        super().__init__()
        self.momentum, self.floor = momentum, floor
        shape = (1, dim) if groups is None else (groups, 1, dim)
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("seen", torch.zeros(()))  # batches

    @full_precision
    def forward(self, x: Tensor) -> Tensor:
        """Return standardised rows ((groups,) n, d).

        In training, the statistics take up the rows first.
        """
        if self.training and x.shape[-2] > 1:
            self._follow(x.detach())
        found = (x.detach() - self.mean) * (self.var + self.floor**2).rsqrt()
        standardised: Tensor = _PassGradient.apply(x, found)
        return standardised

    def _follow(self, x: Tensor) -> None:
        self.seen += 1
        rate = self.seen.reciprocal().clamp(min=1 - self.momentum)  # the first ones count equally
        var, mean = torch.var_mean(x, -2, unbiased=False, keepdim=True)
        self.mean.lerp_(mean, rate)
        self.var.lerp_(var, rate)


class _PassGradient(torch.autograd.Function):
    """Return the second argument, whose gradient the first one gets."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, found: Tensor) -> Tensor:
        return found.view_as(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


@full_precision
def interaction(scores: Tensor) -> Tensor:
    """Return scores (n, n) less the parts that depend on their row or on their column alone."""
    centred: Tensor = _Interaction.apply(scores)
    return centred


class _Interaction(torch.autograd.Function):
    """Subtract the means of rows and columns; it is a projection, so its gradient is the same."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        return _centred(scores)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _centred(grads[0])


def _centred(scores: Tensor) -> Tensor:
    columns = scores.mean(0)
    return scores - scores.mean(1, keepdim=True) - (columns - columns.mean())


def softly_limited(scores: Tensor, limit: float | None) -> Tensor:
    """Return scores that grow as a logarithm beyond a limit, with a slope of 1 / (1 + excess).

    A bounded function, such as the hyperbolic tangent, has no slope where it saturates: a critic
    that is wrong there cannot learn.
    """
    if limit is None:
        return scores
    limited: Tensor = _SoftLimit.apply(scores, limit)
    return limited


class _SoftLimit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, limit: float) -> Tensor:
        clamped = scores.clamp(-limit, limit)
        beyond = scores - clamped
        excess = beyond.abs()
        ctx.save_for_backward(excess)
        return clamped + excess.log1p().copysign(beyond)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (excess,) = ctx.saved_tensors
        return grads[0] / (1 + excess), None


@torch.no_grad()
@full_precision
def varying_share(z: Tensor) -> Tensor:
    """Return the share of the squared length of rows (..., n, e) that is not in their mean.

    It is 0 if all rows are equal.
    """
    var, mean = torch.var_mean(z, -2, unbiased=False)
    spread = var.sum(-1)
    return spread / (spread + mean.square().sum(-1)).clamp(min=1e-12)


def make_critic(config: Any, generator: Generator) -> nn.Module:
    """Build the critic that scores pairs of a semantic and a domain projection."""
    dims = (config.projection_dim, config.projection_dim)
    if config.critic == "cosine":
        return CosineCritic(*dims, generator=generator)
    return MLPCritic(*dims, hidden_dim=config.critic_dim, generator=generator)
