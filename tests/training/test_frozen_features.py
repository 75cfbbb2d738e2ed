from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch
from PIL import Image

from gcdbench.data.images import Images
from gcdbench.data.problem import EvalSet, Problem
from gcdbench.nn.backbone import Backbone, Patches, Tokens
from gcdbench.training.conformance import SIZE, tiny_backbone
from gcdbench.training.features.bank import BankedLoader
from gcdbench.training.features.pool import PoolEncoder
from gcdbench.training.features.store import FeatureStore
from gcdbench.training.features.trunk import (
    pack,
    pack_trace,
    packed_shape,
    unpack,
    unpack_trace,
)
from gcdbench.training.loader import Loader
from gcdbench.training.method import balanced_weights

CPU = torch.device("cpu")


class Noise(Images):
    def __init__(self, number):
        self.ids = [f"{i}.png" for i in range(number)]
        self.opened = 0

    def open(self, row):
        self.opened += 1
        pixels = np.random.RandomState(row).randint(0, 255, (40, 48, 3), dtype=np.uint8)
        return Image.fromarray(pixels)


def same_key(backbone: Backbone) -> str:
    return "k"


@pytest.fixture
def problem():
    labels = np.arange(40) % 4
    return Problem(
        name="noise",
        classes=("a", "b", "c", "d"),
        num_old=2,
        images=Noise(40),
        labels=labels,
        labelled=np.flatnonzero((labels < 2) & (np.arange(40) < 20)),
        unlabelled=np.flatnonzero((labels >= 2) | (np.arange(40) >= 20)),
        sets={"all": EvalSet(np.arange(40), "source")},
    )


@pytest.fixture
def loader(problem):
    return Loader(problem, size=SIZE, batch_size=8, seed=1)


def bank(loader, level, store=None):
    backbone = tiny_backbone()
    backbone.tap(1)
    return backbone, BankedLoader(loader, backbone, level, 3, store or FeatureStore(), "k", CPU)


@pytest.mark.parametrize(("level", "kind"), [("patches", Patches), ("tokens", Tokens)])
def test_what_is_packed_encodes_to_the_same_features(level, kind):
    backbone = tiny_backbone()
    backbone.tap(1)
    images = torch.rand(5, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    kept = unpack(backbone, pack(backbone, images, level), level)
    assert isinstance(kept, kind)
    direct, later = backbone(images), backbone(kept)
    torch.testing.assert_close(direct.cls, later.cls)
    torch.testing.assert_close(direct.taps[1], later.taps[1])


def test_banked_batches_hold_the_plain_loaders_images_and_labels(loader):
    weights = balanced_weights(loader.labels)
    _, banked = bank(loader, "tokens")
    for plain, kept in zip(loader.epoch(0, weights), banked.epoch(0, weights), strict=True):
        assert torch.equal(plain.index, kept.index)
        assert torch.equal(plain.labels, kept.labels)
        assert kept.num_views == 2


def test_the_two_views_of_an_image_are_different_ones(loader):
    _, banked = bank(loader, "patches")
    batch = next(banked.epoch(0, balanced_weights(loader.labels)))
    first, second = batch.views.x.unflatten(0, (2, -1))
    assert ((first - second).abs().amax((1, 2)) > 0).all()


def test_a_bank_is_filled_once_for_all_loaders_of_the_same_images(problem, loader):
    store = FeatureStore()
    bank(loader, "tokens", store)
    opened = problem.images.opened
    again = Loader(problem, size=SIZE, batch_size=8, seed=2)
    bank(again, "tokens", store)
    assert problem.images.opened == opened


def test_gradients_through_kept_tokens_equal_those_through_images(loader):
    weights = balanced_weights(loader.labels)
    backbone, banked = bank(loader, "tokens")
    deep = next(banked.epoch(0, weights)).views
    _, shallow_bank = bank(loader, "patches")
    shallow = next(shallow_bank.epoch(0, weights)).views
    trained = [p for p in backbone.parameters() if p.requires_grad]
    grads = [
        torch.autograd.grad(backbone(views).cls.square().sum(), trained)
        for views in (deep, shallow)
    ]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)  # both were kept in half precision


def test_a_sweep_is_the_same_from_the_store_and_without_room(problem, loader):
    backbone = tiny_backbone()
    roomy, tight = FeatureStore(), FeatureStore(budget=10)
    stores = [
        PoolEncoder(problem, loader, backbone, CPU, store, same_key).compute_features()
        for store in (roomy, tight)
    ]
    torch.testing.assert_close(stores[0].features, stores[1].features)
    opened = problem.images.opened
    PoolEncoder(problem, loader, backbone, CPU, roomy, same_key).compute_features()
    assert problem.images.opened == opened


def test_features_of_two_precisions_do_not_mix_in_one_store(problem, loader):
    store, words = FeatureStore(), (problem, loader, tiny_backbone(), CPU)
    PoolEncoder(*words, store, same_key, "float16").compute_features()
    exact, alone = (
        PoolEncoder(*words, s, same_key, "float32").compute_features()
        for s in (store, FeatureStore())
    )
    assert torch.equal(exact.features, alone.features)


def test_retired_features_stay_until_others_need_their_room(problem, loader, monkeypatch):
    backbone, size = tiny_backbone(), packed_shape(tiny_backbone(), CPU, "tokens")
    one = (
        len(PoolEncoder(problem, loader, backbone, CPU, FeatureStore(), same_key).rows)
        * prod(size)
        * 4
    )
    store = FeatureStore(budget=one + 10)

    def computes(trunk_key: str) -> bool:
        served: list[object] = []
        monkeypatch.setattr(loader, "serve", lambda parts: serve(served.extend(parts) or parts))
        PoolEncoder(problem, loader, backbone, CPU, store, lambda _: trunk_key).compute_features()
        return bool(served)

    serve = loader.serve
    assert computes("first")
    store.retire()
    assert not computes("first")
    store.retire()
    assert computes("second")  # takes the room of the first
    assert not computes("second")
    assert computes("first")  # the second is in use, so there is no room
    assert computes("first")


@pytest.mark.parametrize("budget", [1 << 30, 10])
def test_a_sweep_of_unlabelled_images_passes_over_the_others(problem, loader, monkeypatch, budget):
    monkeypatch.setattr("gcdbench.training.features.pool.CHUNK", 1)
    backbone = tiny_backbone()
    encoder = PoolEncoder(problem, loader, backbone, CPU, FeatureStore(budget), same_key)
    pool = encoder.compute_features()
    encoder.forget()
    encoded: list[int] = []
    backbone.register_forward_pre_hook(lambda _, images: encoded.append(len(images[0])))
    found = encoder.compute_unlabelled()
    assert torch.equal(found, pool.features[pool.unlabelled])
    assert len(pool.unlabelled) <= sum(encoded) < len(pool.features)


def test_a_sweep_names_its_rows(problem, loader):
    encoder = PoolEncoder(problem, loader, tiny_backbone(), CPU, FeatureStore(), same_key)
    store = encoder.compute_features()
    assert torch.equal(
        store.labels[store.labelled], torch.from_numpy(problem.labels[problem.labelled])
    )
    assert (store.labels[store.unlabelled] == -1).all()
    assert len(store.queries) == 40


def test_a_traced_bank_leaves_the_recording_that_its_patches_would(loader):
    weights = balanced_weights(loader.labels)
    seen = []
    for level in ("patches", "traced"):
        backbone, banked = bank(loader, level)
        with backbone.recording() as recording:
            encoded = backbone(next(banked.epoch(0, weights)).views)
        seen.append((encoded.cls, encoded.taps[1], recording.patches, recording.attention))
    for plain, traced in zip(*seen, strict=True):  # both were kept in half precision
        torch.testing.assert_close(plain, traced, rtol=2e-3, atol=5e-3)
    assert torch.equal(seen[0][2], seen[1][2])


def test_a_traced_bank_shares_its_tokens_with_methods_that_need_no_trace(loader):
    store = FeatureStore()
    weights = balanced_weights(loader.labels)
    banks = [bank(loader, level, store)[1] for level in ("tokens", "traced")]
    plain, traced = (next(banked.epoch(0, weights)).views for banked in banks)
    assert torch.equal(plain.x, traced.x)
    assert plain.trace is None


@pytest.mark.parametrize("blocks", [0, 2])
def test_an_unpacked_trace_is_what_was_packed(blocks):
    backbone = tiny_backbone()
    backbone.num_frozen = blocks
    images = torch.rand(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    trace = backbone.traced(backbone.patches(images)).trace
    again = unpack_trace(backbone, pack_trace(trace), trace.patches.shape[1])
    assert torch.equal(again.patches, trace.patches)
    assert torch.equal(again.maps, trace.maps)
    assert again.maps.shape[1] == blocks
