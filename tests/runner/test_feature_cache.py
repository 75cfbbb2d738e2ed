from __future__ import annotations

import logging
import multiprocessing
import threading
from dataclasses import replace

import pytest
import torch
from helpers.toy import make_toy

from gcdbench.experiment import records
from gcdbench.nn.parallel import SingleProcess
from gcdbench.runner.feature_cache import FeatureCache, TemporaryFeatures
from gcdbench.training.conformance import tiny_backbone
from gcdbench.training.features.store import FeatureRequest, FeatureStore
from gcdbench.training.features.trunk import trunk_digest

CPU = torch.device("cpu")
SIZES = (4, 4, 3)


class Work:
    """Features that are their image's number, and the chunks that were computed."""

    def __init__(self):
        self.computed: list[int] = []
        self.request = FeatureRequest(
            title="11 images",
            key=("numbers",),
            sizes=SIZES,
            shape=(2, 5),
            dtype=torch.float32,
            compute=self.compute,
            stamps=lambda: "",
        )

    def compute(self, chunks):
        for chunk in chunks:
            self.computed.append(chunk)
            numbers = torch.arange(sum(SIZES[:chunk]), sum(SIZES[: chunk + 1]))
            yield numbers.float()[:, None, None].expand(-1, 2, 5)


@pytest.fixture
def work():
    return Work()


IMAGE = 2 * 5 * 4  # bytes
WHOLE = torch.arange(11.0)[:, None, None].expand(-1, 2, 5)


def keep(folder, work, *, budget=10**6, at_least=1):
    return FeatureCache(folder, budget).get(work.request, at_least=at_least)


def test_features_are_computed_once_for_all_caches_of_a_folder(tmp_path, work):
    assert torch.equal(keep(tmp_path, work), WHOLE)
    again = Work()
    assert torch.equal(keep(tmp_path, again), WHOLE)
    assert (work.computed, again.computed) == ([0, 1, 2], [])


def test_the_size_is_said_before_anything_is_computed(tmp_path, work, caplog):
    def compute(chunks):
        said.append(caplog.text)
        yield from work.compute(chunks)

    caplog.set_level(logging.INFO)
    said: list[str] = []
    work.request = replace(work.request, compute=compute)
    keep(tmp_path, work)
    assert "writing frozen features of 11 images, 0.00 GB" in said[0]


def test_only_a_damaged_part_is_computed_again_and_named(tmp_path, work, caplog):
    keep(tmp_path, work)
    (path,) = tmp_path.glob("*.tokens")
    data = bytearray(path.read_bytes())
    data[5 * IMAGE] ^= 1
    path.write_bytes(data)
    again = Work()
    assert torch.equal(keep(tmp_path, again), WHOLE)
    assert again.computed == [1]
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert warnings == [f"{path}: 1 of 3 parts are damaged and are computed again"]


@pytest.mark.parametrize("spoil", ["cut", "lengthen", "remove", "index"])
def test_a_file_that_was_spoilt_gives_the_right_features(tmp_path, work, spoil):
    keep(tmp_path, work)
    (path,) = tmp_path.glob("*.tokens")
    if spoil == "cut":
        path.write_bytes(path.read_bytes()[: 6 * IMAGE])
    elif spoil == "lengthen":
        path.write_bytes(path.read_bytes() + b"more")
    elif spoil == "remove":
        path.unlink()
    else:
        path.with_suffix(".json").write_text("{", encoding="utf-8")
    assert torch.equal(keep(tmp_path, Work()), WHOLE)


def test_an_interrupted_run_goes_on_with_the_next_part(tmp_path, work):
    def interrupted(chunks):
        yield from work.compute(chunks[:2])
        raise KeyboardInterrupt

    work.request = replace(work.request, compute=interrupted)
    with pytest.raises(KeyboardInterrupt):
        keep(tmp_path, work)
    again = Work()
    assert torch.equal(keep(tmp_path, again), WHOLE)
    assert again.computed == [2]


def test_of_too_many_features_the_first_parts_are_kept(tmp_path, work, caplog):
    kept = keep(tmp_path, work, budget=8 * IMAGE)
    assert torch.equal(kept, WHOLE[:8])
    assert "has no room for all of the frozen features of 11 images" in caplog.text
    assert torch.equal(keep(tmp_path, Work(), budget=11 * IMAGE), WHOLE)


def test_nothing_is_written_if_too_little_would_fit(tmp_path, work):
    assert keep(tmp_path, work, budget=8 * IMAGE, at_least=3) is None
    assert not list(tmp_path.glob("*.tokens"))
    assert work.computed == []


def test_the_budget_is_that_of_all_files_together(tmp_path, work):
    keep(tmp_path, work, budget=11 * IMAGE)
    work.request = replace(work.request, key=("others",))
    assert keep(tmp_path, work, budget=15 * IMAGE).shape[0] == 4


@pytest.mark.parametrize(
    "change",
    [{"key": ("others",)}, {"sizes": (11,)}, {"dtype": torch.float16}, {"stamps": lambda: "new"}],
)
def test_whatever_can_change_features_gives_them_another_file(tmp_path, work, change):
    keep(tmp_path, work)
    work.request = replace(work.request, **{"compute": lambda chunks: iter(()), **change})
    with pytest.raises(ValueError, match="zip"):  # nothing is there: it asks for all of them
        keep(tmp_path, work)


def test_parts_with_an_unreadable_image_are_computed_again_next_time(tmp_path, work):
    work.request = replace(work.request, complete=lambda: 1 not in work.computed)
    keep(tmp_path, work)
    again = Work()
    keep(tmp_path, again)
    assert again.computed == [1, 2]


def test_a_folder_that_cannot_be_written_to_is_said_and_memory_takes_over(tmp_path, work, caplog):
    (tmp_path / "file").write_text("", encoding="utf-8")
    store = FeatureStore(disk=FeatureCache(tmp_path / "file", 10**6))
    assert torch.equal(store.get(work.request), WHOLE)
    assert "cannot be kept there" in caplog.text


def _compute_in_a_process(folder, queue):
    work = Work()
    right = torch.equal(keep(folder, work), WHOLE)
    queue.put((right, len(work.computed)))


def test_processes_wait_for_each_other(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    args = (tmp_path, queue)
    processes = [context.Process(target=_compute_in_a_process, args=args) for _ in range(3)]
    for process in processes:
        process.start()
    results = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert all(right for right, _ in results)
    assert sum(number for _, number in results) == 3


def test_the_key_of_a_trunk_ignores_what_is_trained_and_nothing_else():
    one, other = tiny_backbone(), tiny_backbone()
    trained = next(p for p in other.parameters() if p.requires_grad)
    trained.data += 1
    assert trunk_digest(one, CPU) == trunk_digest(other, CPU)
    other.vit.blocks[0].norm1.weight.data += 1e-3
    assert trunk_digest(one, CPU) != trunk_digest(other, CPU)


@pytest.mark.parametrize("settings", [{}, {"view_bank": 0, "eval_tokens": "float16"}])
def test_records_are_the_same_with_and_without_the_cache(tmp_path, settings):
    toy = make_toy(tmp_path)
    cells = toy.cells("simgcd", "simgcd+mixstyle", train=settings)
    written, read = toy.elsewhere("written"), toy.elsewhere("read")
    toy.run(cells)
    for other in (written, read):
        other.run(cells, cache=tmp_path / "cache", cache_bytes=10**8)
    for cell in cells:
        found = [records.read_done(place.results, cell) for place in (toy, written, read)]
        assert all(records.same_numbers(found[0], other) for other in found[1:])
    kinds = 3 if settings.get("view_bank", 2) else 1  # evaluation, views as tokens and as patches
    assert len(list((tmp_path / "cache").glob("*.tokens"))) == kinds


def test_processes_of_a_group_fill_one_file_in_turn(tmp_path):
    """Threads stand for processes: what they exchange is all that the cache knows of the others."""
    members, found, works = Members(2), {}, [Work(), Work()]

    def member(rank: int) -> None:
        request = replace(works[rank].request, shared=True)
        group = members.of(rank)
        found[rank] = [
            FeatureCache(tmp_path / "kept", 10**6, group).get(request, at_least=3),
            TemporaryFeatures(group, tmp_path / "scratch").get(request, at_least=3),
            FeatureCache(tmp_path / "kept", 10**6, group).get(request, at_least=3),
        ]

    (tmp_path / "scratch").mkdir()
    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert all(torch.equal(one, WHOLE) for rank in range(2) for one in found[rank])
    assert [work.computed for work in works] == [[0, 2, 0, 2], [1, 1]]  # the third time nothing
    assert not list((tmp_path / "scratch").iterdir())
    (path,) = (tmp_path / "kept").glob("*.tokens")
    assert path.stat().st_size == WHOLE.numel() * 4


class Members:
    """Process groups of threads."""

    def __init__(self, size: int) -> None:
        self.size, self.box = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def of(self, rank: int) -> Member:
        return Member(self, rank)


class Member(SingleProcess):
    def __init__(self, members: Members, rank: int) -> None:
        self.members, self.rank, self.size, self.is_main = members, rank, members.size, rank == 0

    def gather_objects(self, value):
        self.members.box[self.rank] = value
        self.members.barrier.wait()
        found = list(self.members.box)
        self.members.barrier.wait()
        return found

    def broadcast_object(self, value=None):
        return self.gather_objects(value)[0]

    def check_same(self, value, what):
        assert len(set(self.gather_objects(value))) == 1
