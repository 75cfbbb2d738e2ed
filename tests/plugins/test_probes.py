"""Methods from outside that need what the first ones did not: each is a plug-in next to this file.

Each passes the checks, trains, resumes to the same bits and is evaluated through itself; each
broken variant gets its sentence.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.toy import Toy, make_toy

from gcdbench.core import registry
from gcdbench.experiment import records
from gcdbench.experiment.plan import Cell
from gcdbench.nn.parallel import SingleProcess
from gcdbench.runner import cell as cell_module
from gcdbench.runner.stop import Interrupted, Stop
from gcdbench.training.assemble import assemble
from gcdbench.training.batch import Batch
from gcdbench.training.conformance import CHECKS, Bench, ContractError, runs
from gcdbench.training.conformance import checks as single
from gcdbench.training.features.store import FeatureStore

HERE = Path(__file__).parent
PROBES = sorted(path.stem for path in HERE.glob("probe_*.py"))
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def probes(monkeypatch):
    monkeypatch.setattr(registry, "_plugins", {kind: {} for kind in registry.KINDS})
    for name in PROBES:
        registry.add_plugin(HERE / f"{name}.py")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_passes_every_check(name):
    for check in CHECKS:
        check(lambda: Bench.of(name))


@pytest.mark.parametrize("banked", [False, True], ids=["images", "banked"])
@pytest.mark.parametrize("name", PROBES)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(name, banked):
    def bench() -> Bench:
        made = Bench.of(name)
        made.banked = banked
        return made

    kept = {}

    def keep(event):
        if event.clock.step in (0, 4, 8):  # of 12; in each phase, inside and between epochs
            kept[event.clock.step] = copy.deepcopy(event.state())

    expected = bench().run(on_step=keep)
    for snapshot in kept.values():
        found = bench().run(resume=snapshot)
        assert found.keys() == expected.keys()
        assert [n for n in expected if not torch.equal(found[n], expected[n])] == []


def interrupt(toy: Toy, cell: Cell, after: int, monkeypatch) -> None:
    """Run a cell and stop it after some steps, as Ctrl-C does."""
    stop, on_step = Stop(), cell_module.CellRun._on_step

    def count(run, event):
        if event.clock.step + 1 == after:
            stop.heard = 2
        on_step(run, event)

    with monkeypatch.context() as patch:
        patch.setattr(cell_module.CellRun, "_on_step", count)
        with pytest.raises(Interrupted):
            toy.run([cell], stop=stop)


def result(toy: Toy, cell: Cell) -> tuple[dict[str, np.ndarray], object]:
    folder = records.cell_folder(toy.results, cell)
    with np.load(folder / records.PREDICTIONS) as archive:
        predictions = {name: archive[name] for name in archive.files}
    return predictions, records.read_record(folder / records.RECORD).curve


@pytest.mark.parametrize("bank", [0, 2])
@pytest.mark.parametrize("name", PROBES)
def test_a_probe_trains_and_resumes_from_its_checkpoint(made, tmp_path, monkeypatch, name, bank):
    whole, parts = made.elsewhere(f"{tmp_path.name}-whole"), made.elsewhere(tmp_path.name)
    cell = whole.cell(name, train={"view_bank": bank})
    assert whole.run([cell]).trained == [cell]
    interrupt(parts, cell, 5, monkeypatch)
    assert parts.run([cell]).trained == [cell]
    expected, found = result(whole, cell), result(parts, cell)
    assert found[0].keys() == expected[0].keys()
    assert all(np.array_equal(found[0][n], expected[0][n]) for n in expected[0])
    assert found[1] == expected[1]


@pytest.mark.parametrize("name", PROBES)
def test_evaluation_goes_through_the_method(made, name):
    cell = made.cell(name)
    parts = assemble(cell, device=CPU, group=SingleProcess(), store=FeatureStore())
    model, encoder = parts.model, parts.encoder
    with torch.no_grad():
        for path, parameter in model.named_parameters():  # as training would
            if parameter.requires_grad:
                parameter.add_(1.0 if ".adapters." in path else 0.05)
        images = torch.cat(list(parts.loader.sweep(encoder.rows))).float() / 255
        expected = model.method.encode(Batch.unlabelled(images)).cls
        with model.backbone.without():
            bare = model.backbone(images).cls
    found = encoder.compute_features().features
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    own = {"probe_teacher", "probe_patches", "probe_prompts", "probe_pixels", "probe_lora"}
    assert torch.allclose(found, bare, rtol=1e-4, atol=1e-4) != (name in own | {"probe_token"})


# probe, what is replaced by what, the check that finds it, and its sentence
BROKEN = {
    "a teacher that is no module": (
        "probe_teacher",
        "self.teacher_head = copy.deepcopy(self.classifier).requires_grad_(False)",
        "self.box = [copy.deepcopy(self.classifier).requires_grad_(False)]",
        runs.check_whole_run,
        "keep all state in parameters and registered buffers",
        ("self.teacher_head", "self.box[0]"),
    ),
    "a kind of view that is not there": (
        "probe_crops",
        '"small", "small"',
        '"small", "huge"',
        runs.check_needs,
        "views: unknown kind of view 'huge'",
    ),
    "views that are computed": (
        "probe_crops",
        '("plain", "plain", "small", "small")',
        '("plain",) * 2 + ("small",) * 2',
        runs.check_needs,
        "views must be a literal",
    ),
    "a need that nobody knows": (
        "probe_patches",
        'frozenset({"patches"})',
        'frozenset({"patches", "depth"})',
        runs.check_needs,
        "requires names 'depth'; known: images, patches",
    ),
    "patches that were not declared": (
        "probe_patches",
        '    requires: ClassVar[frozenset[str]] = frozenset({"patches"})\n',
        "",
        single.check_terms_are_finite,
        "AssertionError",
    ),
    "prompts that nothing uses": (
        "probe_prompts",
        "backbone.adapt(DeepPrompts(value))",
        "self.prompts = DeepPrompts(value)",
        single.check_gradients,
        r"no gradient reaches method\.prompts\.value",
    ),
    "another step with images than with what was precomputed": (
        "probe_prompts",
        "features = self.encode(batch).cls",
        "features = self.encode(batch).cls * (2 if isinstance(batch.views, Tensor) else 1) + 1",
        runs.check_banked_views,
        "must be an adapter that says its depth",
    ),
    "pixels without saying so": (
        "probe_blocks",
        "features = self.encode(batch).cls",
        "features = self.backbone(batch.views.flatten(0, 1).flip(3)).cls",
        runs.check_banked_views,
        "step fails on precomputed views",
    ),
    "features that evaluation does not see": (
        "probe_blocks",
        "features = self.encode(batch).cls",
        "features = self.encode(batch).cls.sin()",
        runs.check_evaluation,
        "the features of step are not those of encode",
    ),
    "encode that pools images": (
        "probe_patches",
        "return Encoded((encoded.cls + encoded.patches.mean(1)) / 2)",
        "return Encoded(encoded.patches.mean(1).mean(0, keepdim=True))",
        runs.check_evaluation,
        "evaluation needs one row for each",
    ),
    "a phase of a part that is not there": (
        "probe_phases",
        'train=("classifier",)',
        'train=("clasifier",)',
        runs.check_phases,
        "phase 'warm-up' trains 'clasifier', but the method has no such part",
    ),
    "a phase that counts": (
        "probe_phases",
        "if clock.epoch < clock.epochs // 2:",
        "self.asked = getattr(self, 'asked', 0) + 1\n        if self.asked < 9:",
        runs.check_phases,
        "phase gives another answer",
        ('Phase("discovery", lr=0.5)', 'Phase("discovery", lr=1 / self.asked)'),
    ),
    "a phase that trains what is not used": (
        "probe_pixels",
        "prompted = self.encode(batch.only(0)).cls",
        "with self.backbone.without(self.prompt):\n"
        "            prompted = self.encode(batch.only(0)).cls",
        runs.check_phases,
        r"phase 'prompt' no gradient reaches method\.(prompt|backbone\.adapters\.0)\.value",
        ("logits = self.classify(features)", "logits = self.classify(features).requires_grad_()"),
    ),
    "a head of a size that is drawn": (
        "probe_head",
        "clusters = int((features.std(0) > 0).sum()) % 5 + 3",
        "import random\n\n        clusters = 3 + random.randrange(10**6) % 997",
        runs.check_whole_run,
        "cannot be resumed after step 1 .* build modules in __init__, or in begin_fit",
    ),
    "weights that cannot be drawn from": (
        "probe_token",
        "weights=(apart + apart.mean()).cpu()",
        "weights=(apart - apart.mean()).cpu()",
        runs.check_sampling,
        "one for each image of the pool, finite, none negative",
    ),
    "a list that grows": (
        "probe_blocks",
        "        moved = ",
        "        self.all = [*getattr(self, 'all', []), features]\n        moved = ",
        runs.check_memory,
        "more tensors are held after 6 steps",
    ),
    "features that depend on a counter": (
        "probe_patches",
        "return Encoded((encoded.cls + encoded.patches.mean(1)) / 2)",
        "self.calls = getattr(self, 'calls', 0) + 1\n"
        "        return Encoded(encoded.cls + self.calls * encoded.patches.mean(1))",
        runs.check_loaded_state,
        "keep all that encode uses in parameters and registered buffers",
    ),
    "a change of frozen weights in the second epoch": (
        "probe_blocks",
        "    def classify(",
        "    def begin_epoch(self, clock: Clock, context: Any) -> None:\n"
        "        if clock.epoch:\n"
        "            self.backbone.vit.blocks[0].mlp.fc1.weight.data.mul_(1.1)\n\n"
        "    def classify(",
        single.check_frozen_part,
        "training changes weights of the backbone below its trained blocks",
    ),
}


@pytest.mark.parametrize("title", BROKEN)
def test_a_broken_probe_gets_its_sentence(tmp_path, title):
    name, old, new, check, sentence, *more = BROKEN[title]
    text = (HERE / f"{name}.py").read_text(encoding="utf-8")
    for before, after in ((old, new), *more):
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / f"broken_{list(BROKEN).index(title)}.py"
    path.write_text(text, encoding="utf-8")
    registry.add_plugin(path)
    with pytest.raises((ContractError, AssertionError)) as caught:
        check(lambda: Bench.of(path.stem))
    assert re.search(sentence, f"{type(caught.value).__name__}: {caught.value}"), caught.value
