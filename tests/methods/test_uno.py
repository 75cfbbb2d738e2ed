from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.paths import GOLDEN
from torch import nn

from gcdbench.core import registry
from gcdbench.core.config import build
from gcdbench.core.settings import TrainConfig
from gcdbench.errors import UserError
from gcdbench.experiment.plan import Request, make_cells
from gcdbench.nn.backbone import Encoded
from gcdbench.training.assemble import make_loader
from gcdbench.training.method import Batch, Clock, FitContext, PoolFeatures, Task, seeded
from gcdbench.training.optimizer import learning_rate

CLASSES, OLD, WIDTH, ROWS = 7, 4, 16, 10
CLOCK = Clock(epoch=0, step=0, epochs=2, steps_per_epoch=2, seed=0)
END_OF_EPOCH = replace(CLOCK, step=1)


class Given(nn.Module):
    """A backbone whose images are their features."""

    dim = WIDTH

    def forward(self, images):
        return Encoded(images)


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "base_uno_objective.npz") as arrays:
        return {name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays.files}


@pytest.fixture
def batch(golden):
    return Batch(golden["feats"], golden["labels"], torch.arange(ROWS))


def uno(labels, **config):
    cls = registry.load("method", "uno")
    small = {"heads": 2, "hidden_dim": 12, "projection_dim": 8}
    task = Task(CLASSES, OLD, labels, epochs=2, steps_per_epoch=2, seed=0)
    return cls(cls.Config(**{**small, **config}), task, Given())


def original(golden, **config):
    """Build the method around the original's heads."""
    method = uno(golden["labels"], **config)
    method.known.load_state_dict({"weight": golden["w_head_lab"]})
    for ours, theirs in ((method.cluster, "unlab"), (method.over, "over")):

        def both(part, name=theirs):
            return [golden[f"w_head_{name}.{part.format(h)}"] for h in range(2)]

        state = {
            "hidden.weight": torch.cat(both("projectors.{}.mlp.0.weight")),
            "hidden.bias": torch.cat(both("projectors.{}.mlp.0.bias")),
            "norm.weight": torch.cat(both("projectors.{}.mlp.1.weight")),
            "norm.bias": torch.cat(both("projectors.{}.mlp.1.bias")),
            "weight": torch.stack(both("projectors.{}.mlp.3.weight")),
            "bias": torch.cat(both("projectors.{}.mlp.3.bias")),
            "prototypes": torch.stack(both("prototypes.{}.prototypes.weight")),
        }
        ours.load_state_dict(ours.state_dict() | state)
    for head in (method.known, method.cluster, method.over):
        head.normalise_()
    return method


@pytest.mark.parametrize(("rule", "assign_to"), [("gcd", "all"), ("ncd", "new")])
def test_a_step_matches_the_original(golden, batch, rule, assign_to):
    method = original(golden, assign_to=assign_to)
    step = method.step(batch, CLOCK)
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(step.loss, golden[f"{rule}_loss"], **close)
    torch.testing.assert_close(method.head_losses, golden[f"{rule}_loss_per_head"], **close)
    over = golden[f"{rule}_loss_over_per_head"].mean()
    torch.testing.assert_close(2 * step.terms["over"], over, **close)
    first_head = torch.cat([golden["logits_lab"], golden["logits_unlab"][:, 0]], dim=2)
    torch.testing.assert_close(step.logits, first_head.flatten(0, 1) / 0.1, **close)


def test_the_head_with_the_smallest_loss_of_the_epoch_predicts(golden, batch):
    method = original(golden)
    method.head_losses.copy_(torch.tensor([9.0, 0.0]))
    step = method.step(batch, CLOCK)
    method.after_step(batch, step, CLOCK)
    assert method.best_head.item() == 0  # the epoch is not over
    step = method.step(batch, END_OF_EPOCH)
    method.after_step(batch, step, END_OF_EPOCH)
    assert method.best_head.item() == 1
    assert not method.head_losses.any()
    with torch.no_grad():
        method.eval()
        features = golden["feats"][0]
        new = method.cluster(features)[1]
        torch.testing.assert_close(method.classify(features)[:, OLD:], new / 0.1)


def test_the_best_head_and_the_losses_so_far_are_saved(golden, batch):
    method, other = original(golden), original(golden)
    method.best_head.fill_(1)
    method.step(batch, CLOCK)
    other.load_state_dict(method.state_dict())
    assert other.best_head.item() == 1
    assert torch.equal(other.head_losses, method.head_losses)


def test_the_learning_rate_is_the_originals():
    with np.load(GOLDEN / "base_uno_lr_schedule.npz") as arrays:
        expected = arrays["lr_base0.1_w10_e200"]
    cls = registry.load("method", "uno")
    config = TrainConfig(epochs=200, **cls.train_defaults)
    found = [learning_rate(config, epoch) for epoch in range(200)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_prototypes_have_length_one_after_a_step(golden, batch):
    method = original(golden)
    optimizer = torch.optim.SGD(method.parameters(), lr=1.0)
    step = method.step(batch, CLOCK)
    step.loss.backward()
    optimizer.step()
    method.after_step(batch, step, CLOCK)
    for prototypes in (method.known.weight, method.cluster.prototypes, method.over.prototypes):
        torch.testing.assert_close(prototypes.norm(dim=-1), torch.ones(prototypes.shape[:-1]))


def test_a_single_row_is_normalised_by_the_running_statistics(golden):
    method = original(golden)
    row = golden["feats"][0, :1]
    before = {name: value.clone() for name, value in method.cluster.norm.named_buffers()}
    found = method.cluster(row)
    for name, value in method.cluster.norm.named_buffers():
        assert torch.equal(value, before[name])
    torch.testing.assert_close(found, method.cluster.eval()(row))


def test_soft_targets_that_are_certain_are_labels(golden, batch):
    method = original(golden)
    targets = F.one_hot(batch.labels.clamp(min=0), CLASSES).float()
    loss = method.step(replace(batch, targets=targets), CLOCK).loss
    torch.testing.assert_close(loss, golden["gcd_loss"], rtol=1e-5, atol=1e-5)
    others = F.one_hot((batch.labels + 1) % OLD, CLASSES).float()
    assert not torch.isclose(method.step(replace(batch, targets=others), CLOCK).loss, loss)


def queue_bench(size):
    """Return a method with a memory, the services that fill it, and the pool's features."""
    pool = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % OLD
    labels[10:] = -1
    rows = torch.arange(40)
    store = PoolFeatures(pool, {}, labels, rows[:10], rows[10:], rows)
    return uno(labels, queue=size), FitContext(lambda: store, seeded), pool, labels


def test_the_memory_starts_full_of_unlabelled_images():
    method, services, pool, labels = queue_bench(20)
    method.begin_fit(services)
    assert len(method.queue.ids.unique()) == 20
    assert (labels[method.queue.ids] == -1).all()
    assert torch.equal(method.queue.rows, pool[method.queue.ids])


def test_the_memory_is_never_larger_than_the_unlabelled_pool():
    assert len(queue_bench(1000)[0].queue) == 30


def test_remembered_images_take_part_in_the_assignment_alone():
    method, services, pool, labels = queue_bench(20)
    rows = torch.tensor([0, 1, 12, 13])
    batch = Batch(pool[rows].expand(2, -1, -1), labels[rows], rows)
    method.begin_fit(services)
    state = {name: value.clone() for name, value in method.cluster.norm.named_buffers()}
    step = method.step(batch, CLOCK)
    seen = {name: value.clone() for name, value in method.cluster.norm.named_buffers()}
    assert method.cluster.training
    method.cluster.norm.load_state_dict(method.cluster.norm.state_dict() | state)
    method.queue = None
    without = method.step(batch, CLOCK)
    for name, value in method.cluster.norm.named_buffers():  # no batch statistics were taken
        assert torch.equal(value, seen[name])
    assert torch.equal(step.logits, without.logits)
    assert not torch.isclose(step.loss, without.loss)


def test_the_memory_takes_up_the_unlabelled_images_of_the_batch():
    method, services, pool, labels = queue_bench(20)
    method.begin_fit(services)
    rows = torch.tensor([0, 1, 12, 13])
    batch = Batch(pool[rows].expand(2, -1, -1) + 1, labels[rows], rows)
    step = method.step(batch, CLOCK)
    method.after_step(batch, step, CLOCK)
    changed = (method.queue.rows == (pool[12:14] + 1)[:, None]).all(2)
    assert changed.sum(1).tolist() == [1, 1]
    assert (labels[method.queue.ids] == -1).all()


def test_two_large_crops_teach_each_other_and_two_small_ones(golden):
    views = ("plain", "plain", "small", "small")
    method = original(golden, views=views)
    small = golden["feats"].flip(2) + 0.1
    features = torch.cat([golden["feats"], small])  # (4, B, d)
    batch = Batch(features, golden["labels"], torch.arange(ROWS))
    step = method.step(batch, CLOCK)

    labelled = golden["labels"] >= 0
    for term, head in (("cluster", method.cluster), ("over", method.over)):
        scores = [torch.cat([method.known(x).expand(2, -1, -1), head(x)], 2) for x in features]
        targets = torch.zeros(2, *scores[0].shape)
        for crop in range(2):
            for h in range(2):
                targets[crop, h, labelled] = F.one_hot(
                    golden["labels"][labelled], scores[0].shape[2]
                ).float()
                targets[crop, h, ~labelled] = sinkhorn(scores[crop][h, ~labelled].detach())
        total = torch.zeros(2)
        for teacher in range(2):
            for student in {0, 1, 2, 3} - {teacher}:
                log_p = (scores[student] / 0.1).log_softmax(2)
                total += -(targets[teacher] * log_p).sum(2).mean(1)
        expected = total / (2 * (4 - 1))
        torch.testing.assert_close(step.terms[term], expected.mean() / 2, rtol=1e-5, atol=1e-5)
        if term == "cluster":
            torch.testing.assert_close(method.head_losses, expected, rtol=1e-5, atol=1e-5)
    assert step.logits.shape == (4 * ROWS, CLASSES)


def sinkhorn(scores, epsilon=0.05):
    """Return the assignment (n, k) as the paper writes it, with loops."""
    q = (scores / epsilon).exp()
    q /= q.sum()
    for _ in range(3):
        q = q / q.sum(0) / q.shape[1]
        q = q / q.sum(1, keepdim=True) / q.shape[0]
    return q * q.shape[0]


def test_one_view_has_no_other_to_teach():
    with pytest.raises(UserError, match=r"uno: views are plain; expected two or more"):
        build(registry.get("method", "uno").config, {"views": ["plain"]}, "uno")
    with pytest.raises(UserError, match=r"uno.views\[1\]: expected one of plain, weak, strong"):
        build(registry.get("method", "uno").config, {"views": ["plain", "tiny"]}, "uno")


def test_the_loader_makes_the_views_of_the_settings():
    crops = ["strong", "strong", "small", "small"]
    for config, kinds in (({}, ("plain", "plain")), ({"views": crops}, tuple(crops))):
        request = Request(
            "drawshift", ("uno",), ("line+solid",), (0,), assignments={"uno": config}, quick=True
        )
        assert make_loader(make_cells(request)[0], 24).kinds == kinds
