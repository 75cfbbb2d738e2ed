from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.paths import GOLDEN
from torch import nn

from gcdbench.core import registry
from gcdbench.core.settings import TrainConfig
from gcdbench.nn.backbone import Encoded
from gcdbench.nn.heads import (
    CosineClassifier,
    GCDHead,
    MultiHeadPrototypes,
    ProjectionHead,
    Prototypes,
)
from gcdbench.ops.losses import soft_cross_entropy
from gcdbench.ops.transport import balanced_targets
from gcdbench.training.compose import Composed
from gcdbench.training.method import Batch, Clock, Task
from gcdbench.training.optimizer import make_optimizer

TOLERANCE = {"rtol": 1e-5, "atol": 2e-6}


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "gcd_heads.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


@pytest.fixture(scope="module")
def scalars():
    return json.loads((GOLDEN / "gcd_heads.json").read_text())


def original_state(golden, prefix):
    """Read the original's parameters: (of the MLP, of the weight-normed layer)."""
    mlp = {k.split("__")[1]: v for k, v in golden.items() if k.startswith(f"{prefix}__mlp.")}
    return mlp, {"weight": golden[f"{prefix}__last_layer.weight_v"]}


def simgcd_head(golden):
    projector = ProjectionHead(12, hidden_dim=20, out_dim=6)
    classifier = CosineClassifier(12, 7)
    for module, state in zip(
        (projector, classifier), original_state(golden, "simgcd_head"), strict=True
    ):
        module.load_state_dict(state)
    return projector, classifier


def gcd_head(golden):
    head = GCDHead(12, hidden_dim=20, bottleneck_dim=6, out_dim=10)
    for module, state in zip(head.children(), original_state(golden, "gcd_head"), strict=True):
        module.load_state_dict(state)
    return head


def test_the_head_of_simgcd_matches_the_original(golden):
    projector, classifier = simgcd_head(golden)
    torch.testing.assert_close(projector(golden["x"]), golden["simgcd_head__proj"], **TOLERANCE)
    torch.testing.assert_close(classifier(golden["x"]), golden["simgcd_head__logits"], **TOLERANCE)


def test_the_head_of_gcd_matches_the_original(golden):
    torch.testing.assert_close(gcd_head(golden)(golden["x"]), golden["gcd_head__out"], **TOLERANCE)


# names of the terms in the original's output, and their published weights
ORIGINAL = {
    **{"distil": "distill", "entropy": "memax", "classify": "cls"},
    **{"contrast": "contrastive", "sup_contrast": "supcon"},
}
WEIGHT = {"distill": 0.65, "memax": 1.3, "cls": 0.35, "contrastive": 0.65, "supcon": 0.35}


class Given(nn.Module):
    """Stands in for a backbone: the images are their own features."""

    dim = 12

    def forward(self, features):
        return Encoded(features)


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("simgcd", {"hidden_dim": 20, "projection_dim": 6}),
        ("gcd", {"hidden_dim": 20, "bottleneck_dim": 6, "out_dim": 10}),
    ],
)
def test_three_training_steps_match_the_original(golden, scalars, name, widths):
    labels = torch.where(golden["step_mask_lab"], golden["step_labels"], -1)
    cls = registry.load("method", name)
    method = cls(cls.Config(**widths), Task(7, 4, labels, 200, 1, seed=0), Given())
    modules = list(method.head.children() if name == "gcd" else method.children())[-2:]
    for module, state in zip(modules, original_state(golden, f"{name}_head"), strict=True):
        module.load_state_dict(state)
    optimizer = make_optimizer(Composed(method), TrainConfig(**{"lr": 0.1, **cls.train_defaults}))
    batch = Batch(golden["step_feats"].unflatten(0, (2, -1)), labels, torch.arange(len(labels)))
    for expected in scalars[f"{name}_steps"]:
        step = method.step(batch, Clock(expected.get("epoch", 0), 0, 200, 1, seed=0))
        assert step.loss.item() == pytest.approx(expected["total"], rel=1e-5, abs=2e-6)
        measured = {ORIGINAL[name]: term.item() for name, term in step.terms.items()}
        weighted = {n: WEIGHT[n] * value for n, value in expected.items() if n in WEIGHT}
        assert measured == pytest.approx(weighted, rel=1e-5, abs=2e-6)
        optimizer.zero_grad()
        step.loss.backward()
        optimizer.step()
    for module, state in zip(modules, original_state(golden, f"{name}_after3"), strict=True):
        torch.testing.assert_close(dict(module.state_dict()), state, **TOLERANCE)


def test_the_real_heads_have_the_originals_trainable_parameters(scalars):
    with torch.device("meta"):
        heads = {
            "gcd": [GCDHead(768)],
            "simgcd": [ProjectionHead(768), CosineClassifier(768, 200)],
        }
    for name, modules in heads.items():
        parameters = [p for module in modules for p in module.parameters()]
        assert all(p.requires_grad for p in parameters)
        assert sum(p.numel() for p in parameters) == scalars[f"{name}_real_trainable"]


def test_initial_weights_have_the_originals_distribution(scalars):
    generator = torch.Generator().manual_seed(0)
    mlp = ProjectionHead(768, generator=generator).mlp
    prototypes = CosineClassifier(768, 200, generator=generator).weight
    std, _, bias = scalars["simgcd_mlp_init_std_absmax_biasmax"]
    assert mlp[2].weight.std().item() == pytest.approx(std, rel=0.01)
    assert max(layer.bias.abs().max().item() for layer in mlp[::2]) == bias == 0.0
    std, largest = scalars["simgcd_weight_v_init_std_absmax"]
    assert prototypes.std().item() == pytest.approx(std, rel=0.01)
    assert prototypes.abs().max().item() == pytest.approx(largest, rel=1e-3)


BUILDERS = {
    "projection": lambda g: ProjectionHead(5, hidden_dim=7, out_dim=3, generator=g),
    "projection, PyTorch's initialisation": lambda g: ProjectionHead(
        5, hidden_dim=7, out_dim=3, layers=2, activation=nn.ReLU, init_std=None, generator=g
    ),
    "cosine": lambda g: CosineClassifier(5, 4, generator=g),
    "gcd": lambda g: GCDHead(5, hidden_dim=7, bottleneck_dim=3, out_dim=9, generator=g),
    "prototypes": lambda g: Prototypes(5, 4, generator=g),
    "uno": lambda g: MultiHeadPrototypes(5, 4, hidden_dim=7, out_dim=6, generator=g),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_generator_decides_the_weights_and_the_global_one_is_left_alone(name):
    before = torch.get_rng_state()
    first, again, other = (
        nn.utils.parameters_to_vector(
            BUILDERS[name](torch.Generator().manual_seed(seed)).parameters()
        )
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


def test_cosine_logits_ignore_the_lengths_of_features_and_prototypes():
    classifier = CosineClassifier(6, 4, scale=10.0, generator=torch.Generator().manual_seed(0))
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    expected = 10 * F.cosine_similarity(x[:, None], classifier.weight[None], dim=2)
    torch.testing.assert_close(classifier(x), expected)
    with torch.no_grad():
        classifier.weight.mul_(7.0)
    torch.testing.assert_close(classifier(0.1 * x), expected)


def test_cosine_logits_keep_full_precision_under_autocast():
    classifier = CosineClassifier(6, 4, generator=torch.Generator().manual_seed(0))
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = classifier(x)
    assert torch.equal(inside, classifier(x))


@pytest.fixture(scope="module")
def uno():
    with np.load(GOLDEN / "base_uno_objective.npz") as arrays:
        return {name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays.files}


def uno_heads(uno, name, classes):
    """Stack the original's two separate heads into ours."""
    head = MultiHeadPrototypes(16, classes, heads=2, hidden_dim=12, out_dim=8)

    def both(part):
        return [uno[f"w_head_{name}.{part.format(h)}"] for h in range(2)]

    state = {
        "hidden.weight": torch.cat(both("projectors.{}.mlp.0.weight")),
        "hidden.bias": torch.cat(both("projectors.{}.mlp.0.bias")),
        "norm.weight": torch.cat(both("projectors.{}.mlp.1.weight")),
        "norm.bias": torch.cat(both("projectors.{}.mlp.1.bias")),
        "weight": torch.stack(both("projectors.{}.mlp.3.weight")),
        "bias": torch.cat(both("projectors.{}.mlp.3.bias")),
        "prototypes": torch.stack(both("prototypes.{}.prototypes.weight")),
    }
    head.load_state_dict(head.state_dict() | state)
    return head


def test_the_heads_of_uno_match_the_original(uno):
    known = Prototypes(16, 4)
    known.load_state_dict({"weight": uno["w_head_lab"]})
    cluster, over = uno_heads(uno, "unlab", 3), uno_heads(uno, "over", 9)
    for head in (known, cluster, over):
        head.normalise_()
    for view, features in enumerate(uno["feats"]):
        for head, name in ((known, "lab"), (cluster, "unlab"), (over, "unlab_over")):
            torch.testing.assert_close(
                head(features), uno[f"logits_{name}"][view], rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize(("rule", "first_class"), [("ncd", 4), ("gcd", 0)])
def test_the_objective_of_uno_matches_the_original(uno, rule, first_class):
    known = uno["logits_lab"][:, None].expand(-1, 2, -1, -1)
    losses = []
    for suffix in ("", "_over"):
        logits = torch.cat([known, uno[f"logits_unlab{suffix}"]], dim=3)
        targets = balanced_targets(logits, uno["labels"], first_class=first_class)
        torch.testing.assert_close(targets, uno[f"{rule}_targets{suffix}"], rtol=1e-4, atol=1e-5)
        swapped = soft_cross_entropy(logits, targets.flip(0), temperature=0.1)
        losses.append(swapped.mean((0, 2)))
        torch.testing.assert_close(
            losses[-1], uno[f"{rule}_loss{suffix}_per_head"], rtol=1e-5, atol=1e-5
        )
    total = torch.stack(losses).mean()
    torch.testing.assert_close(total, uno[f"{rule}_loss"], rtol=1e-5, atol=1e-5)


def test_prototypes_have_length_one_from_the_start_and_again_after_a_step():
    generator = torch.Generator().manual_seed(0)
    for head in (
        Prototypes(5, 4, generator=generator),
        MultiHeadPrototypes(5, 4, heads=3, hidden_dim=7, out_dim=6, generator=generator),
    ):
        weight = head.weight if isinstance(head, Prototypes) else head.prototypes
        ones = torch.ones(weight.shape[:-1])
        torch.testing.assert_close(weight.norm(dim=-1), ones)
        with torch.no_grad():
            weight.mul_(3.0)
        head.normalise_()
        torch.testing.assert_close(weight.norm(dim=-1), ones)
        assert weight.requires_grad
        assert weight.grad_fn is None


def test_heads_side_by_side_do_not_see_each_other():
    head = MultiHeadPrototypes(5, 4, heads=2, hidden_dim=7, out_dim=6)
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    head(x)[0].sum().backward()
    assert head.prototypes.grad[0].any()
    assert not head.prototypes.grad[1].any()
    assert not head.weight.grad[1].any()
    assert not head.hidden.weight.grad[7:].any()
