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
import torch.nn.functional as F
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
    Step,
    Task,
    cross_entropy_on,
    full_precision,
    js_mutual_information,
    parametric_terms,
    reverse_gradient,
    self_distillation,
    semi_supervised_kmeans,
    teacher_temperature,
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
                self.scales = nn.ModuleList(Standardise(config.projection_dim) for _ in range(2))

    def step(self, batch: Batch, clock: Clock) -> Step:
        c = self.config
        encoded = self.encode(batch)
        z, cosines = self.semantic(encoded.cls)
        watched: dict[str, Tensor] = {}
        terms = {
            "distil": (1 - c.sup_weight) * self._distil(cosines, clock),
            **parametric_terms(
                z,
                cosines,
                batch.per_view(batch.labels),
                labelled=batch.in_views(batch.labelled_rows),
                targets=None if batch.targets is None else batch.per_view(batch.targets),
                entropy_weight=c.entropy_weight,
                **self._shared(),
            ),
        }
        if c.disentangle:
            domain_z, domain_cosines = self.domain(encoded.taps[c.domain_block])
            domain_terms = self.domain_terms(domain_z, domain_cosines, batch, clock)
            terms |= {f"domain_{name}": term for name, term in domain_terms.items()}
            information, watched = self.information(z, domain_z)
            terms["information"] = c.information_weight * information
        return Step(terms, encoded.cls, cosines / c.student_temp, diagnostics=watched)

    def domain_terms(
        self, z: Tensor, cosines: Tensor, batch: Batch, clock: Clock
    ) -> dict[str, Tensor]:
        """Return the terms of the domain head: all labelled images are of domain 0."""
        c, known = self.config, torch.where(batch.labelled, 0, UNLABELLED)
        if c.domain_targets == "distil":
            taught = self._distil(cosines, clock)
        else:
            first = slice(len(batch))  # view
            clusters = self.clusters(z[first], batch, clock)
            taught = cross_entropy_on(cosines[first], clusters, temperature=c.student_temp)
        others = parametric_terms(
            z,
            cosines,
            batch.per_view(known),
            labelled=batch.in_views(batch.labelled_rows),
            entropy_weight=c.domain_entropy_weight,
            **self._shared(),
        )
        if c.domain_contrast != "both":
            del others["sup_contrast"]
        if c.domain_contrast == "none":
            del others["contrast"]
        return {c.domain_targets: (1 - c.sup_weight) * taught, **others}

    @torch.no_grad()
    @full_precision
    def clusters(self, z: Tensor, batch: Batch, clock: Clock) -> Tensor:
        """Return the cluster (B,) of every unlabelled image, UNLABELLED for labelled ones.

        Cluster 0 is that of the labelled images; without any, clusters have no fixed order. They
        are computed on the CPU: a hundred tiny steps are faster there than launches on a GPU.
        """
        c, hidden = self.config, torch.full_like(batch.labels, UNLABELLED)
        order = batch.cpu_order if c.align_clusters else torch.arange(len(batch))
        labelled = batch.cpu_labelled[order]
        if labelled.all() or not labelled.any():
            return hidden
        rows = z[batch.here(order)].cpu()
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
        c = self.config
        spread = {"semantic_spread": varying_share(z), "domain_spread": varying_share(domain_z)}
        if c.critic_inputs != "raw":
            z, domain_z = (F.normalize(x, dim=1) * x.shape[1] ** 0.5 for x in (z, domain_z))
        hidden = [z, domain_z]
        if c.critic_update == "adversarial":
            hidden = [reverse_gradient(x) for x in hidden]
        inputs = hidden
        if c.critic_inputs == "standardised":
            inputs = [scale(x) for scale, x in zip(self.scales, hidden, strict=True)]
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
            for x in hidden:
                if x.requires_grad:
                    x.register_hook(lambda grad: grad.masked_fill(fooled, 0.0))
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

    def _shared(self) -> dict[str, Any]:
        """Return what both heads have in common."""
        names = ("sup_weight", "student_temp", "contrast_temp", "sup_contrast_temp")
        return {name: getattr(self.config, name) for name in names}


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

    def __init__(self, dim: int, *, momentum: float = 0.9, floor: float = 0.01) -> None:
        super().__init__()
        self.momentum, self.floor = momentum, floor
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))
        self.register_buffer("seen", torch.zeros(()))  # batches

    @full_precision
    def forward(self, x: Tensor) -> Tensor:
        """Return standardised rows (n, d); in training, the statistics take up the rows first."""
        if self.training and len(x) > 1:
            self._follow(x.detach())
        found = (x.detach() - self.mean) / (self.var + self.floor**2).sqrt()
        return x + (found - x).detach()

    def _follow(self, x: Tensor) -> None:
        self.seen += 1
        rate = (1 / self.seen).clamp(min=1 - self.momentum)  # the first batches count equally
        self.mean += rate * (x.mean(0) - self.mean)
        self.var += rate * (x.var(0, unbiased=False) - self.var)


@full_precision
def interaction(scores: Tensor) -> Tensor:
    """Return scores (n, n) less the parts that depend on their row or on their column alone."""
    return scores - scores.mean(0) - scores.mean(1, keepdim=True) + scores.mean()


def softly_limited(scores: Tensor, limit: float | None) -> Tensor:
    """Return scores that grow as a logarithm beyond a limit, with a slope of 1 / (1 + excess).

    A bounded function, such as the hyperbolic tangent, has no slope where it saturates: a critic
    that is wrong there cannot learn.
    """
    if limit is None:
        return scores
    excess = (scores.abs() - limit).clamp(min=0)
    return scores.clamp(-limit, limit) + scores.sign() * excess.log1p()


@torch.no_grad()
@full_precision
def varying_share(z: Tensor) -> Tensor:
    """Return the share of the rows' squared length that is not in their mean; 0: all are equal."""
    return z.var(0, unbiased=False).sum() / z.square().sum(1).mean().clamp(min=1e-12)


def make_critic(config: Any, generator: Generator) -> nn.Module:
    """Build the critic that scores pairs of a semantic and a domain projection."""
    dims = (config.projection_dim, config.projection_dim)
    if config.critic == "cosine":
        return CosineCritic(*dims, generator=generator)
    return MLPCritic(*dims, hidden_dim=config.critic_dim, generator=generator)
