"""Images, FLOPs and hours of cells: by hand, against torch's counter, against real training."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest
import timm
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gcdbench.cli.main import main
from gcdbench.core import registry
from gcdbench.core.backbone_sizes import SIZES, BackboneSize
from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.settings import BACKBONES
from gcdbench.nn.backbone import Backbone
from gcdbench.nn.embedded import build_embedded
from gcdbench.nn.hub import timm_size
from gcdbench.runner.cost import GPUS, KEPT_BYTES, CostModel, Sizes, backbone_size, work
from gcdbench.training.features.store import FeatureStore
from tests.helpers.bench import bench
from tests.helpers.synthetic_records import record_of
from tests.helpers.toy import Toy, make_toy

TRAIN = {"batch_size": 10, "draws_per_epoch": None, "epochs": 4}


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("cost"))


def counted(call) -> int:
    """Count the FLOPs, with attention as plain products: old counters do not know fused ones."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def whole(size: BackboneSize) -> int:
    """A plain forward pass: all blocks on all tokens."""
    return size.embed_flops + size.depth * size.block_flops


def test_a_vit_b16_takes_twice_17_6_billion_multiplications():
    size = SIZES["dino-vitb16"]
    # 197 tokens: qkv and output 4 d^2, MLP 8 d^2, two attention products; 196 patches
    block = 2 * 197 * 12 * 768**2 + 2 * 2 * 197**2 * 768
    assert whole(size) == 12 * block + 2 * 196 * 768 * 768
    assert whole(size) == pytest.approx(2 * 17.58e9, rel=2e-3)  # timm's list says 17.58 GMACs


@pytest.mark.parametrize("name", BACKBONES)
def test_listed_sizes_are_what_torch_counts(name):
    if name == "embedded":
        model, side = build_embedded(), 64
    else:
        with torch.device("meta"):
            extra = {"img_size": 224} if name.startswith("dinov") else {}
            model, side = timm.create_model(BACKBONES[name], num_classes=0, **extra), 224
    image = torch.zeros(1, 3, side, side, device=next(model.parameters()).device)
    with torch.no_grad():
        assert whole(SIZES[name]) == counted(lambda: model.eval()(image))
    assert SIZES[name].depth == len(model.blocks)
    assert SIZES[name].heads == model.blocks[0].attn.num_heads


@pytest.mark.parametrize(
    "name", ["vit_base_patch16_224.dino", "deit_tiny_patch16_224", "vit_small_patch14_reg4_dinov2"]
)
def test_the_size_of_any_timm_model_is_what_torch_counts(name):
    extra = {"img_size": 224} if "dinov2" in name else {}
    with torch.device("meta"), torch.no_grad():
        model = timm.create_model(name, num_classes=0, **extra).eval()
        assert whole(timm_size(name)) == counted(lambda: model(torch.zeros(1, 3, 224, 224)))


@pytest.mark.parametrize("blocks", [1, 2])
def test_trunk_and_tail_are_what_the_backbone_computes(blocks):
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=0)
    backbone = Backbone(vit, mean=(0.5,) * 3, std=(0.5,) * 3, image_size=224, train_blocks=blocks)
    size = timm_size("vit_tiny_patch16_224")
    images = torch.zeros(2, 3, 224, 224)
    tokens = []
    trunk = counted(lambda: tokens.append(backbone.trunk(backbone.patches(images))))
    assert trunk == 2 * size.trunk_flops(blocks)
    cls = []
    tail = counted(lambda: cls.append(backbone.tail(tokens[0]).cls))
    assert tail == pytest.approx(2 * size.tail_flops(blocks), rel=0.02)
    backward = counted(lambda: cls[0].sum().backward())
    assert tail < backward < 2.2 * tail  # counted as 2; attention is computed once more


SPECS = [
    *registry.available("method"),
    *(f"simgcd+{name}" for name in registry.available("technique")),
]


@pytest.mark.parametrize("text", SPECS)
def test_declared_passes_are_those_of_a_step_and_an_epoch(text):
    spec = MethodSpec.parse(text)
    tried = bench(spec)
    rows: list[int] = []
    # a block is run by its parts if its attention is recorded: its MLP is run once either way
    mlp = tried.model.backbone.vit.blocks[0].mlp
    mlp.register_forward_hook(lambda *a: rows.append(len(a[-1])))

    def passes(call) -> int:
        rows.clear()
        call()
        return sum(rows)

    parts = [registry.get("method", spec.method)]
    parts += [registry.get("technique", name) for name in spec.techniques]
    when = {part.constants.get("sweeps") for part in parts}
    fit = passes(lambda: tried.model.begin_fit(tried.context))
    epoch = passes(lambda: tried.model.begin_epoch(tried.clock(), tried.context))
    assert (fit > 0, epoch > 0) == ("fit" in when, "epoch" in when)
    batch = tried.mixed_rows()
    labelled = int((tried.labels[batch] >= 0).sum())
    more = sum(part.constants.get("labelled_passes", 0) for part in parts)
    assert passes(lambda: tried.loss()) == 2 * len(batch) + more * labelled


def test_views_and_sweeps_of_a_cell_by_hand():
    sizes, size = Sizes(pool=25, unseen=5), SIZES["dino-vitb16"]
    plain = work(TRAIN, MethodSpec.parse("simgcd"), sizes, size, 1)
    assert plain.views == 4 * 2 * 10 * 2  # epochs, steps, images, views
    assert plain.swept == 30  # for the scores
    trunk, tail = size.trunk_flops(1), size.tail_flops(1)
    assert plain.flops == (160 + 30) * trunk + (3 * 160 + 30) * tail
    mixing = work(TRAIN, MethodSpec.parse("simgcd+patchmix"), sizes, size, 1)
    assert mixing.views == 4 * 2 * 10 * 3  # two more of half the images
    crops = {"views": ["plain", "plain", "small", "small"]}
    assert work(TRAIN, MethodSpec.parse("uno"), sizes, size, 1, crops).views == 4 * 2 * 10 * 4
    every_epoch = work(TRAIN, MethodSpec.parse("cms"), sizes, size, 1)
    assert every_epoch.swept == 5 * 30
    assert every_epoch.flops == (160 + 30) * trunk + (3 * 160 + 150) * tail  # features are kept
    large = Sizes(pool=10**6)
    again = work(TRAIN, MethodSpec.parse("cms"), large, size, 1)
    kept = KEPT_BYTES // ((197 + 11) * 768 * 4)
    assert again.flops - work(TRAIN, MethodSpec.parse("simgcd"), large, size, 1).flops == (
        4 * (10**6 - kept) * trunk + 4 * 10**6 * tail
    )
    bank = work({**TRAIN, "view_bank": 3}, MethodSpec.parse("simgcd"), sizes, size, 1)
    assert bank.flops == (3 * 25 + 30) * trunk + (3 * 160 + 30) * tail


def test_the_memory_for_features_is_the_stores():
    assert FeatureStore().budget == KEPT_BYTES


@pytest.mark.parametrize("method", ["simgcd", "cms"])
def test_a_run_passes_as_many_images_as_were_planned(toy, method, monkeypatch):
    rows: list[int] = []
    tail = Backbone.tail

    def counting(self, tokens):
        rows.append(len(tokens))
        return tail(self, tokens)

    cell = toy.cell(method)
    monkeypatch.setattr(Backbone, "tail", counting)
    outcome = toy.elsewhere(method).run([cell])
    assert not outcome.failed
    assert sum(rows) == CostModel([]).estimate(cell).images


def test_hours_are_flops_at_an_assumed_share_of_the_peak():
    cell = ssb_c_cell()
    for device, gpu in GPUS.items():
        estimate = CostModel([], device).estimate(cell)
        assert estimate.seconds == pytest.approx(estimate.flops / (gpu.peak * gpu.share))
        assert estimate.basis.startswith("estimate, not measured: ")
    assert CostModel([], "cpu").estimate(cell).seconds is None


def ssb_c_cell():
    from gcdbench.experiment.plan import Request, make_cells

    return make_cells(Request("ssb-c", ("simgcd",), ("cub-c",), (0,)))[0]


def test_records_of_the_same_device_come_first_and_those_of_others_do_not_count(toy):
    cell = toy.cell()
    made = record_of(cell)
    seconds = made.timing.wall_seconds
    a100 = replace(made, provenance=replace(made.provenance, device="NVIDIA A100-SXM4-80GB"))
    estimate = CostModel([a100], "A100").estimate(cell)
    assert (estimate.measured, estimate.basis) == (True, "by 1 record of this method")
    assert estimate.seconds > 0
    slow = replace(a100, timing=replace(a100.timing, wall_seconds=3 * seconds))
    assert CostModel([slow], "A100").estimate(cell).seconds == pytest.approx(3 * estimate.seconds)
    assert not CostModel([a100], "H100").estimate(cell).measured
    assert CostModel([a100], "H100").on_cpu.estimate(cell).seconds is None


def test_a_plan_of_ssb_c_without_data_fits_a_screen(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("GCDBENCH_DATA", raising=False)
    assert main(["plan", "--suite", "ssb-c", "--results", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert all(len(line) <= 80 for line in out.splitlines())
    wrapped = [part for line in err.splitlines() for part in textwrap.wrap(line, 80)]
    assert len(out.splitlines()) + len(wrapped) <= 22
    assert "estimate, not measured: 40 % of the peak of 312 TFLOP/s" in out
    hilo = next(line for line in out.splitlines() if line.startswith("cub-c    hilo"))
    assert hilo.endswith(" h")
    assert "days" not in out


def test_a_plan_of_many_datasets_and_methods_still_fits_a_screen(tmp_path, capsys):
    methods = list(registry.available("method"))
    words = ["--suite", "domainnet", "--methods", *methods, "--results", str(tmp_path)]
    assert main(["plan", *words]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 34
    assert main(["plan", *words, "--cells"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 5 * len(methods)


def test_backbones_without_an_entry_are_measured_by_building_them():
    assert backbone_size("vit_tiny_patch16_224").width == 192
    assert backbone_size("no_such_model") is None
