from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.paths import GOLDEN
from PIL import Image
from sklearn.datasets import load_sample_image
from torchvision.transforms import functional as reference

from gcdbench.core.paths import PACKAGE
from gcdbench.data import images as images_module
from gcdbench.data.images import ArrayImages, FileImages, JoinedImages, Unreadable, ZipImages
from gcdbench.data.problem import EvalSet, Problem
from gcdbench.data.views import Views
from gcdbench.data.views.colour import Planes, to_hsv, to_rgb
from gcdbench.data.views.kinds import recolour
from gcdbench.errors import UserError
from gcdbench.training.loader import Loader, default_workers, substitutes

# torch starts its workers by a fork, of which Python 3.12 warns in processes with threads
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def make_problem(images, labelled=20, augment="plain") -> Problem:
    rows = np.arange(len(images))
    return Problem(
        name="test",
        classes=("a", "b"),
        num_old=1,
        images=images,
        labels=rows % 2,
        labelled=rows[:labelled][rows[:labelled] % 2 == 0],
        unlabelled=rows[labelled:],
        sets={"all": EvalSet(rows, "source")},
        augment=augment,
    )


@pytest.fixture
def problem() -> Problem:
    pixels = np.random.RandomState(0).randint(0, 256, (60, 40, 50, 3), dtype=np.uint8)
    return make_problem(ArrayImages(pixels, [f"{i}" for i in range(60)]))


@pytest.fixture
def folder(trees) -> Path:
    for i in range(60):
        trees.image(f"images/{i}.jpg")
    return trees.root / "images"


def files(folder: Path) -> FileImages:
    return FileImages(folder, [f"{i}.jpg" for i in range(60)])


def loader(problem: Problem, **settings) -> Loader:
    return Loader(problem, **{"size": 32, "batch_size": 16, **settings})


def weights(problem: Problem) -> torch.Tensor:
    return torch.linspace(1, 2, len(problem.pool)).double()


# --- views


@pytest.mark.parametrize("shape", ["240x320", "333x200", "500x375", "224x224", "256x256"])
def test_the_test_view_is_that_of_the_released_codes(shape):
    golden = np.load(GOLDEN / "gcd_aug.npz")
    facts = json.loads((GOLDEN / "gcd_aug.json").read_text())[shape]
    height, width = map(int, shape.split("x"))
    y, x, c = np.mgrid[:height, :width, :3]
    waves = 127 + 100 * np.sin(x / 23 + c) * np.cos(y / (17 + c))
    picture = np.round(np.clip(waves, 0, 255)).astype(np.uint8)
    resized = images_module.resize_shorter(Image.fromarray(picture), 256)
    assert list(resized.shape[:2]) == facts["resized"]
    view = (Views(224).test(resized) / 255 - MEAN) / STD
    sampled = view[::16, ::16].transpose(2, 0, 1)
    assert np.abs(sampled - golden[f"{shape}__every16"]).max() < 0.02
    assert view.mean((0, 1)) == pytest.approx(facts["mean"], abs=2e-3)


@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
@pytest.mark.parametrize("size", [(500, 375), (333, 501), (700, 480), (320, 240), (1031, 1100)])
def test_a_file_is_decoded_and_resized_within_one_grey_level_of_pillow(tmp_path, name, size):
    path = tmp_path / "one.jpg"
    Image.fromarray(load_sample_image(name)).resize(size, Image.Resampling.LANCZOS).save(path)
    with Image.open(path) as picture:
        shape = images_module.shorter_side(size, 256)
        expected = np.asarray(picture.convert("RGB").resize(shape, Image.Resampling.BICUBIC))
    apart = np.abs(FileImages(tmp_path, [path.name]).resized(0, 256) - expected.astype(int))
    assert apart.max() <= 1
    assert apart.mean() < 0.01


@pytest.mark.parametrize("size", [(320, 240), (150, 130)])
def test_rows_of_pillow_keep_rounding_errors_from_adding_up(size, monkeypatch):
    picture = Image.fromarray(load_sample_image("china.jpg")).resize(size, Image.Resampling.LANCZOS)
    shape = images_module.shorter_side(size, 256)
    expected = np.asarray(picture.resize(shape, Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(images_module.bicubic(picture, shape) - expected).max() == 1
    monkeypatch.setattr(images_module, "THUMBNAIL", 1000)
    assert np.abs(images_module.bicubic(picture, shape) - expected).max() == 2


@pytest.mark.parametrize("mode", ["L", "CMYK", "P"])
def test_images_of_other_modes_are_read_as_rgb(tmp_path, mode):
    picture = Image.fromarray(load_sample_image("flower.jpg")).resize((300, 280)).convert(mode)
    picture.save(tmp_path / "one.tif")
    expected = images_module.resize_shorter(picture.convert("RGB"), 256)
    assert np.array_equal(FileImages(tmp_path, ["one.tif"]).resized(0, 256), expected)


def test_a_training_view_is_a_crop_that_may_be_flipped():
    image = np.arange(12 * 10 * 3, dtype=np.uint8).reshape(12, 10, 3)
    views = Views(8)
    assert np.array_equal(views.train(image, (0.0, 0.0, 0.9)), image[:8, :8])
    assert np.array_equal(views.train(image, (0.999, 0.999, 0.9)), image[4:, 2:])
    assert np.array_equal(views.train(image, (0.5, 0.4, 0.1)), image[2:10, 1:9][:, ::-1])


def test_the_colours_are_those_of_torchvision():
    rng = np.random.RandomState(5)
    adjust = (
        reference.adjust_brightness,
        reference.adjust_contrast,
        reference.adjust_saturation,
        reference.adjust_hue,
    )
    orders = set()
    for _ in range(40):
        draw = rng.rand(6)
        image = Image.fromarray(rng.randint(0, 256, (30, 20, 3), dtype=np.uint8))
        found = recolour(np.asarray(image), draw)
        order = [(0, 1, 2, 3), *_permutations()][1 + int(draw[0] * 24)]
        orders.add(order)
        for step in order:
            amount = 0.6 * draw[1 + step] - 0.3
            image = adjust[step](image, amount if step == 3 else 1 + amount)
        if draw[5] < 0.1:
            image = reference.rgb_to_grayscale(image, num_output_channels=3)
        assert np.array_equal(found, np.asarray(image))
    assert len(orders) > 10


def _permutations():
    from itertools import permutations

    return permutations(range(4))


@pytest.mark.parametrize("first", [0, 1, 17, 127, 128, 200, 254, 255])
def test_hues_from_tables_are_those_of_pillow(first):
    second, third = (band.ravel() for band in np.mgrid[:256, :256].astype(np.uint8))
    fixed = np.full_like(second, first)
    for bands in ((fixed, second, third), (second, fixed, third), (second, third, fixed)):
        planes = Planes(256 * 256)
        planes.colours[:] = bands
        expected = Image.fromarray(np.stack(bands, 1)[None]).convert("HSV")
        hue, saturation = to_hsv(planes)
        found = np.stack([hue, saturation, planes.high], 1)
        assert np.array_equal(found[None], np.asarray(expected))
        whole = [Image.fromarray(band[None]) for band in bands]
        backwards = Image.merge("HSV", whole).convert("RGB")
        planes.high[:] = bands[2]
        to_rgb(planes, bands[0].copy(), bands[1].copy())
        assert np.array_equal(planes.colours.T[None], np.asarray(backwards))


def test_a_tenth_of_the_jittered_views_is_grey():
    image = np.random.RandomState(0).randint(0, 256, (8, 8, 3), dtype=np.uint8)
    views, rng = Views(8, "jitter"), np.random.RandomState(1)
    grey = [np.ptp(views.train(image, rng.rand(9)), axis=2).max() == 0 for _ in range(2000)]
    assert 0.08 < np.mean(grey) < 0.12


def test_the_wrong_number_of_draws_is_refused():
    with pytest.raises(ValueError, match="a plain view takes 9 numbers, not 3"):
        Views(8, "jitter").train(np.zeros((9, 9, 3), dtype=np.uint8), (0.1, 0.2, 0.3))


# --- batches


@pytest.mark.parametrize("augment", ["plain", "jitter"])
def test_batches_do_not_depend_on_the_number_of_workers(problem, augment):
    problem = make_problem(problem.images, augment=augment)
    alone = list(loader(problem).epoch(3, weights(problem)))
    helped = list(loader(problem, workers=2).epoch(3, weights(problem)))
    assert len(alone) == len(helped) == len(problem.pool) // 16
    for one, other in zip(alone, helped, strict=True):
        assert torch.equal(one.views, other.views)
        assert torch.equal(one.index, other.index)


def test_batches_are_a_function_of_seed_and_epoch(problem):
    first = next(loader(problem, seed=1).epoch(5, weights(problem)))
    fresh = loader(problem, seed=1)
    list(fresh.epoch(4, weights(problem)))
    list(fresh.sweep(np.arange(10)))
    again = next(fresh.epoch(5, weights(problem)))
    assert torch.equal(first.views, again.views)
    other_seed = next(loader(problem, seed=2).epoch(5, weights(problem)))
    other_epoch = next(loader(problem, seed=1).epoch(6, weights(problem)))
    assert not torch.equal(first.views, other_seed.views)
    assert not torch.equal(first.views, other_epoch.views)


def test_a_batch_holds_bytes_of_the_images_it_names(problem):
    batch = next(loader(problem, size=40).epoch(0, weights(problem)))
    assert batch.views.shape == (2, 16, 3, 40, 40)
    assert batch.views.dtype == torch.uint8
    assert torch.equal(batch.labels, torch.from_numpy(problem.visible_labels)[batch.index])
    resized = {i: problem.images.resized(int(problem.pool[i]), 45) for i in batch.index.tolist()}
    for view in batch.views:
        for crop, i in zip(view.permute(0, 2, 3, 1).numpy(), batch.index.tolist(), strict=True):
            sides = (crop, crop[:, ::-1])
            windows = np.lib.stride_tricks.sliding_window_view(resized[i], (40, 40, 3))
            assert any((windows[:, :, 0] == side).all((2, 3, 4)).any() for side in sides)


def test_a_sweep_gives_the_centres_in_order(problem):
    rows = np.array([5, 3, 3, 40])
    served = torch.cat(list(loader(problem).sweep(rows, batch_size=3)))
    views = Views(32)
    expected = [views.test(problem.images.resized(int(row), views.resized)) for row in rows]
    assert np.array_equal(served.permute(0, 2, 3, 1).numpy(), np.stack(expected))


def test_the_workers_stay_between_epochs(problem):
    one = loader(problem, workers=1)
    list(one.epoch(0, weights(problem)))
    workers = [worker.pid for worker in one._service._iterator._workers]
    list(one.sweep(np.arange(30), batch_size=10))
    list(one.epoch(1, weights(problem)))
    assert [worker.pid for worker in one._service._iterator._workers] == workers


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sweep_in_the_middle_of_an_epoch_disturbs_nothing(problem, workers):
    expected = list(loader(problem).epoch(0, weights(problem)))
    one = loader(problem, workers=workers)
    for number, batch in enumerate(one.epoch(0, weights(problem))):
        swept = torch.cat(list(one.sweep(np.arange(8), batch_size=4)))
        assert len(swept) == 8
        assert torch.equal(batch.views, expected[number].views)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_that_was_left_early_leaves_nothing_behind(problem, workers):
    expected = list(loader(problem).epoch(1, weights(problem)))
    one = loader(problem, workers=workers)
    next(one.epoch(0, weights(problem)))
    for batch, other in zip(one.epoch(1, weights(problem)), expected, strict=True):
        assert torch.equal(batch.views, other.views)


def test_workers_do_not_share_an_archive_that_was_open_before(problem):
    names = [f"line/airplane/{i:03d}.png" for i in range(15)]
    archive = ZipImages(PACKAGE / "data/drawshift/drawshift.zip", names * 4)
    drawn = make_problem(archive)
    archive.open(0)
    alone = torch.cat(list(loader(drawn).sweep(np.arange(60), batch_size=4)))
    helped = torch.cat(list(loader(drawn, workers=2).sweep(np.arange(60), batch_size=4)))
    assert torch.equal(alone, helped)


# --- images that cannot be read


@pytest.fixture
def damaged(folder) -> FileImages:
    (folder / "30.jpg").write_bytes((folder / "30.jpg").read_bytes()[:200])
    (folder / "31.jpg").write_bytes(b"<html>not found</html>")
    (folder / "32.jpg").unlink()
    return files(folder)


@pytest.mark.parametrize("row", [30, 31, 32])
def test_a_damaged_image_is_named(damaged, row):
    with pytest.raises(Unreadable, match=rf"{row}.jpg: cannot be read as an image"):
        damaged.resized(row, 32)
    with pytest.raises(Unreadable, match=rf"{row}.jpg: cannot be read as an image"):
        JoinedImages(ArrayImages(np.zeros((2, 8, 8, 3), np.uint8), ["a", "b"]), damaged).open(
            row + 2
        )


@pytest.mark.parametrize("workers", [0, 1])
def test_another_image_of_the_batch_takes_the_place_of_a_damaged_one(damaged, caplog, workers):
    problem = make_problem(damaged, labelled=0)
    only = torch.zeros(60).double()
    only[[29, 30, 31, 32, 33]] = 1
    one = loader(problem, workers=workers, draws_per_epoch=160)
    for batch in one.epoch(0, only):
        assert set(batch.index.tolist()) <= {29, 33}
        for i, view in zip(batch.index.tolist(), batch.views[0], strict=True):
            assert view.float().std() > 1  # a picture, and not a blank
            assert i in (29, 33)
    assert {Path(place).name for place in one.unreadable} == {"30.jpg", "31.jpg", "32.jpg"}
    assert caplog.text.count("30.jpg: cannot be read and is passed over") == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_strict_loader_stops_at_a_damaged_image(damaged, workers):
    one = loader(make_problem(damaged, labelled=0), strict=True, workers=workers)
    with pytest.raises(Unreadable, match=r"3[012].jpg: cannot be read as an image"):
        list(one.sweep(np.arange(60)))


def test_a_damaged_image_is_evaluated_as_a_grey_square(damaged):
    one = loader(make_problem(damaged, labelled=0))
    views = torch.cat(list(one.sweep(np.arange(29, 34))))
    assert [int(view.float().std() < 1e-3) for view in views] == [0, 1, 1, 1, 0]
    assert len(one.unreadable) == 3


def test_a_batch_of_nothing_but_damaged_images_is_an_error(damaged):
    only = torch.zeros(60).double()
    only[31] = 1
    with pytest.raises(UserError, match="none of the 16 images of a batch can be read"):
        next(loader(make_problem(damaged, labelled=0)).epoch(0, only))


def test_the_next_readable_position_is_taken_cyclically():
    assert substitutes(5, [0, 1, 4]).tolist() == [2, 2, 2, 3, 2]
    assert substitutes(3, []).tolist() == [0, 1, 2]


# --- resized images that are kept


def test_a_loader_stores_images_where_the_environment_says(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("GCDBENCH_CACHE", str(tmp_path / "cache"))
    problem = make_problem(files(folder))
    served = torch.cat(list(loader(problem).sweep(np.arange(60))))
    (index,) = (tmp_path / "cache").rglob("*.index")
    assert index.stat().st_size == 60 * 40
    monkeypatch.delenv("GCDBENCH_CACHE")
    assert torch.equal(served, torch.cat(list(loader(problem).sweep(np.arange(60)))))


def test_small_problems_are_decoded_once(folder):
    one = loader(make_problem(files(folder)))
    first = torch.cat(list(one.sweep(np.arange(60))))
    shutil.rmtree(folder)
    assert torch.equal(first, torch.cat(list(one.sweep(np.arange(60)))))


# --- views that are made on a device


@pytest.mark.parametrize("kinds", [("plain", "plain"), ("plain", "weak", "small")])
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_made_on_a_device_are_those_of_the_cpu(damaged, kinds, workers):
    problem = make_problem(damaged, augment="jitter", labelled=0)
    expected = loader(problem, kinds=kinds)
    other = loader(problem, kinds=kinds, device=torch.device("cpu"), workers=workers)
    other.on_device = True  # as on CUDA, with CPU tensors
    weight = torch.ones(60).double()
    weight[[30, 31, 32]] = 5
    for one, two in zip(expected.epoch(1, weight), other.epoch(1, weight), strict=True):
        assert torch.equal(one.index, two.index)
        assert all(torch.equal(a, b) for a, b in zip(one.views[:2], two.views[:2], strict=True))
        assert [v.shape for v in one.views] == [v.shape for v in two.views]
    assert expected.unreadable == other.unreadable


def test_views_are_made_on_cuda_unless_a_kind_has_no_code_for_it(problem, monkeypatch):
    from gcdbench.data.views import kinds

    cuda = torch.device("cuda")
    assert loader(problem, device=cuda).on_device
    assert not loader(problem, device=torch.device("cpu")).on_device
    bare = kinds.ViewKind("bare", kinds.weak, 3)
    monkeypatch.setitem(kinds._KINDS, "bare", bare)
    assert not loader(problem, device=cuda, kinds=("plain", "bare")).on_device


def test_by_default_the_cores_are_shared_by_the_gpus(problem, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(12), raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert default_workers(torch.device("cuda")) == 3
    assert default_workers(torch.device("cpu")) == 0
    monkeypatch.setattr("torch.cuda.device_count", lambda: 20)
    assert default_workers(torch.device("cuda")) == 1
    cuda = torch.device("cuda", 0)
    assert loader(problem, device=cuda, workers=None).workers == 0  # all images fit into memory
    assert loader(problem, device=cuda, workers=2).workers == 2
    monkeypatch.setattr("gcdbench.training.loader.MEMORY_BUDGET", 1000)
    assert loader(problem, device=cuda, workers=None).workers == 1
