"""The scripts that train and measure the embedded backbone and read its suites' records."""

from __future__ import annotations

import importlib
import io
import zipfile
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import PIL.Image
import pytest
import timm
import torch
from helpers.paths import ROOT
from helpers.synthetic_records import make_record, set_scores
from safetensors.torch import load_file
from scipy import stats

from gcdbench.experiment.record import CurvePoint, Record

SCRIPTS = ROOT / "benchmarks" / "embedded"


@pytest.fixture
def script(monkeypatch):
    def load(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(SCRIPTS)
        return importlib.import_module(name)

    return load


def circles(n: int) -> np.ndarray:
    """Draw n circles of ink, with growing radius."""
    y, x = np.mgrid[:64, :64] - 32
    radius = np.linspace(10, 25, n)[:, None, None]
    return (np.abs(np.hypot(x, y) - radius) < 1.5).astype(np.float32)


def drawings(n: int) -> torch.Tensor:
    ink = circles(n)
    filled = np.hypot(*(np.mgrid[:64, :64] - 32)) < np.linspace(10, 25, n)[:, None, None]
    layers = [255 * (1 - ink)] * 3 + [255 * filled]
    return torch.from_numpy(np.stack(layers, axis=1).astype(np.uint8))


def test_filling_a_circle_gives_a_disc_and_leaves_its_neighbours_alone(script):
    ink = np.concatenate([circles(2), np.zeros((1, 64, 64), dtype=np.float32)])
    filled = script("styles").fill_shapes(ink)
    assert filled[:2, 32, 32].all()
    assert not filled[:2, 0, 0].any()
    assert not filled[2].any()


def test_carving_shows_the_strokes_of_a_line_drawing_and_the_outline_of_a_solid_one(script):
    disc = torch.from_numpy(script("styles").fill_shapes(circles(1)))[None].float()
    ring = torch.from_numpy(circles(1))[None]
    carved = script("styles").carve(torch.cat([ring, disc]), torch.cat([disc, disc]))
    assert carved[0, 0, 32, 32] == 1
    assert (carved[0] * ring[0]).sum() == 0
    assert carved[1, 0, 32, 32] == 0
    assert carved[1].sum() > 0


def test_restyled_drawings_are_images_and_follow_their_seed(script):
    restyle = script("styles").restyle
    (first, ways), (again, _), (other, _) = (
        restyle(drawings(64), torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert first.shape == (64, 3, 64, 64)
    assert first.min() >= 0
    assert first.max() <= 1
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert ways.min() >= 0
    assert ways.max() < script("styles").NUM_STYLES


def test_only_drawings_said_to_be_coloured_have_colours(script):
    styles = script("styles")
    images, ways = styles.restyle(drawings(64), torch.Generator().manual_seed(0))
    coloured = ways % 2 == 1
    assert not styles.has_colour(1 - images[~coloured]).any()
    assert 0 < coloured.sum() < 64


def test_only_drawings_without_a_direction_are_mirrored(script):
    images = torch.rand(100, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    allowed = torch.arange(100) < 50
    flipped = script("styles").flip(images, allowed, torch.Generator().manual_seed(0))
    assert torch.equal(flipped[50:], images[50:])
    assert not torch.equal(flipped[:50], images[:50])


def test_sketch_and_icon_of_one_thing_share_a_concept(script):
    name = script("shards").concept_name
    assert name("quickdraw:birthday cake") == name("birthday-cake")
    assert name("quickdraw:motorbike") == name("motorcycle")


def test_an_untrained_trunk_hands_on_the_mean_of_the_map(script):
    pretrain = script("pretrain")
    torch.manual_seed(0)
    model = pretrain.Namer(pretrain.build_embedded(), 2)
    channels = model.trunk.patch_embed.proj.in_channels
    maps = torch.randn(64, channels, 4, 4) + 2 * torch.randn(64, channels, 1, 1)
    pretrain.start_from_stem(model.trunk, maps)
    standard = (maps - maps.mean((0, 2, 3), keepdim=True)) / maps.std((0, 2, 3), keepdim=True)
    mean = torch.nn.functional.normalize(standard.mean((2, 3)), dim=1)
    with torch.no_grad():
        _, feature = model.features(maps)
    pairs = torch.tril_indices(64, 64, offset=-1)
    alike = torch.stack([(f @ f.T)[pairs[0], pairs[1]] for f in (mean, feature)])
    assert torch.corrcoef(alike)[0, 1] > 0.95


def test_the_nearest_neighbours_vote(script):
    vote = script("probe").vote
    neighbours = torch.nn.functional.normalize(
        torch.tensor([[1.0, 0.0]] * 3 + [[0.9, 0.1]] * 2 + [[0.0, 1.0]] * 5), dim=1
    )
    labels = torch.tensor([1, 1, 1, 0, 0, 2, 2, 2, 2, 2])
    assert vote(neighbours, labels, torch.eye(2)).tolist() == [1, 2]


def test_a_linear_map_names_what_a_line_can_separate(script):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    rows = torch.eye(3)[labels] + 0.1 * torch.randn(300, 3, generator=generator)
    named = script("probe").fit_and_name(rows[:150], labels[:150], rows[150:])
    assert (named == labels[150:]).float().mean() > 0.99


@pytest.fixture
def arguments(tmp_path) -> list[str]:
    """Make a corpus of circles and untrained Lite0 weights; return the script's arguments."""
    rows = ["path,concept,name,kind"]
    with zipfile.ZipFile(tmp_path / "corpus.zip", "w") as files:
        for i, drawing in enumerate(drawings(64)[:, :3].permute(0, 2, 3, 1).numpy()):
            image = io.BytesIO()
            PIL.Image.fromarray(drawing).save(image, format="webp", lossless=True)
            files.writestr(f"{i}.webp", image.getvalue())
            rows.append(f"{i}.webp,{i % 4},thing-{i % 4},icon")
        files.writestr("index.csv", "\n".join(rows))
    torch.save(timm.create_model("tf_efficientnet_lite0").state_dict(), tmp_path / "lite0.pth")
    paths = ["--corpus", tmp_path / "corpus.zip", "--stem", tmp_path / "lite0.pth"]
    return [*map(str, paths), "--cache", str(tmp_path), "--epochs", "2", "--batch-size", "32"]


@pytest.mark.slow
def test_an_interrupted_training_gives_the_same_weights(script, arguments, tmp_path, monkeypatch):
    pretrain = script("pretrain")
    pretrain.main([*arguments, "--out", str(tmp_path / "whole.safetensors")])
    cut = [*arguments, "--out", str(tmp_path / "cut.safetensors")]
    save = pretrain.Run.save_checkpoint

    def save_and_stop(run):
        save(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrain.Run, "save_checkpoint", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        pretrain.main(cut)
    monkeypatch.setattr(pretrain.Run, "save_checkpoint", save)
    pretrain.main(cut)
    whole, resumed = (load_file(tmp_path / f"{name}.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    with pytest.raises(ValueError, match="made with other settings"):
        pretrain.main([*cut, "--lr", "1"])


# --- baselines


def test_the_ceiling_is_asked_about_drawings_it_has_seen_in_no_variant(script):
    # two corruptions of twelve drawings, with twenty clean ones; a domain that is not trained on
    labels = np.concatenate([np.arange(20) % 4, np.arange(12) % 3, np.arange(12) % 3, [0, 1]])
    rows = {"original": range(20), "fog/1": range(20, 32), "snow/1": range(32, 44), "far": (44, 45)}
    sets = {name: SimpleNamespace(rows=np.array(found)) for name, found in rows.items()}
    problem = SimpleNamespace(labels=labels, sets=sets)
    features = torch.nn.functional.one_hot(torch.from_numpy(labels[:44])).float()
    named, asked = script("baselines").probed(problem, np.arange(44), features, seed=0)
    np.testing.assert_array_equal(named, labels[:44])  # features that tell the class
    np.testing.assert_array_equal(asked[20:32], asked[32:44])
    assert [asked[:20].sum(), asked[20:32].sum()] == [4 * 3, 3 * 2]  # the larger half of each class


# --- reading records


def scored(method: str, seed: int, source: float, shifted: float) -> Record:
    """Make as much of a record as reading needs."""
    both = {"line": ("source", source), "solid": ("shifted", shifted)}
    sets = {name: set_scores(role, accuracy) for name, (role, accuracy) in both.items()}
    return make_record(dataset="line+solid", method=method, seed=seed, sets=sets)


def test_kendalls_tau_is_that_of_scipy(script):
    rng = np.random.RandomState(0)
    first, second = rng.random_sample((2, 20, 7))
    expected = [stats.kendalltau(a, b).statistic for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(script("reading").tau(first, second), expected)


def test_differences_are_shown_with_a_t_test_over_seeds(script):
    reading = script("reading")
    clear, vague = np.array([1.0, 1.1, 0.9, 1.0, 1.2]), np.array([3.0, -4.0, 1.0, 0.5, -2.0])
    same = reading.Difference("a - a", "line+solid", np.zeros(5), np.zeros(5))
    shown = reading.differences_table(
        [reading.Difference("a - b", "line+solid", clear, vague), same]
    )
    row = shown.splitlines()[2]
    chances = [stats.ttest_rel(gains, np.zeros(5)).pvalue for gains in (clear, vague)]
    expected = [f"{4 * chances[0]:.2g}", "1"]  # Holm: the smallest of four, thrice the second
    assert 3 * chances[1] > 1
    spans = [stats.ttest_1samp(gains, 0).confidence_interval() for gains in (clear, vague)]
    one, other = (f"{(span.high - span.low) / 2:.1f}" for span in spans)
    assert row == (
        f"| a - b | line+solid | +1.0 ± {one} | {expected[0]} | -0.3 ± {other} | {expected[1]} |"
    )


@pytest.fixture
def four_methods():
    """Return records in which UNO+ has no second dataset and HiLo is far above the others."""
    rng = np.random.RandomState(0)
    means = {"simgcd": 0.5, "hilo": 0.7, "gcd": 0.52, "uno": 0.3}
    first = [
        scored(method, seed, mean + 0.01 * rng.randn(), mean - 0.1 + 0.01 * rng.randn())
        for method, mean in means.items()
        for seed in range(4)
    ]
    return first + [
        replace(one, dataset="line+color")
        for one in first
        if one.method != "uno" and (one.method, one.seed) != ("gcd", 3)
    ]


def test_methods_are_compared_with_simgcd_and_hilo_by_dataset_and_over_all(script, four_methods):
    reading = script("reading")
    ours = {role: reading.by_dataset(four_methods, role) for role in reading.ROLES}
    assert reading.ordered(ours) == ["hilo", "gcd", "simgcd", "uno"]
    found = reading.pair_differences(ours, reading.ordered(ours))
    by_place = {(one.title, one.dataset): one for one in found}
    titles = ["HiLo - SimGCD", "GCD - SimGCD", "UNO+ - SimGCD", "GCD - HiLo", "UNO+ - HiLo"]
    assert [one.title for one in found if one.dataset == "line+solid"] == titles
    assert ("UNO+ - HiLo", "mean of 2") not in by_place  # it has one dataset only
    both = by_place["GCD - SimGCD", "mean of 2"]
    single = by_place["GCD - SimGCD", "line+solid"]
    assert (len(single.source), len(both.source)) == (4, 3)
    np.testing.assert_allclose(both.shifted, single.shifted[:3])  # equal on both datasets
    own = {(r.method, r.seed): r for r in four_methods if r.dataset == "line+solid"}
    expected = [
        100 * (own["hilo", s].sets["line"].all - own["simgcd", s].sets["line"].all)
        for s in range(4)
    ]
    np.testing.assert_allclose(by_place["HiLo - SimGCD", "line+solid"].source, expected)


def test_clear_differences_are_marked(script, four_methods):
    reading = script("reading")
    ours = {role: reading.by_dataset(four_methods, role) for role in reading.ROLES}
    found = reading.pair_differences(ours, reading.ordered(ours))
    shown = reading.matrix([one for one in found if one.dataset in ours["source"]])
    rows = {line.split(" | ")[0]: line for line in shown.splitlines()}
    assert rows["| HiLo - SimGCD"].count("*") == 4
    assert rows["| UNO+ - HiLo"].endswith(" | – |")
    assert "*" not in rows["| GCD - SimGCD"]


def test_baselines_stand_among_the_methods_with_their_number_of_seeds(
    script, four_methods, tmp_path
):
    path = tmp_path / "baselines.csv"
    rows = [("line+solid", "line", "source", 99), ("line+solid", "solid", "shifted", 98)]
    path.write_text(
        "suite,dataset,baseline,seed,set,role,all,old,new\n"
        + "".join(f"drawshift,{d},bound,0,{s},{r},{x},{x},{x}\n" for d, s, r, x in rows)
    )
    head, _, *lines = script("reading").means(four_methods, path).splitlines()
    assert head == "| source / shifted | line+solid (4 seeds) | line+color (4 seeds) |"
    assert lines[0].startswith("| HiLo |")
    # one that lacks a dataset comes after all that have both, whatever its accuracy is
    assert "| bound | 99.0 / 98.0 (1) | – |" in lines[3:]


def test_authors_numbers_are_means_of_three_datasets(script):
    table = script("reading").authors_accuracies(["simgcd", "hilo", "legogcd", "pim", "uno"])
    assert list(table.columns) == ["simgcd", "hilo", "legogcd"]  # PIM has none on Aircraft
    np.testing.assert_allclose(table.iloc[0], [56.1, 59.2, (63.8 + 57.3 + 55.0) / 3])


def test_agreement_leaves_out_methods_with_few_seeds_and_says_so(script, four_methods):
    reading = script("reading")
    few = replace(four_methods[0], method="orca")  # one seed in four, on one dataset
    ours = {role: reading.by_dataset([*four_methods, few], role) for role in reading.ROLES}
    head, _, solid, color, both = reading.agreement_table(ours, reading.ordered(ours)).splitlines()
    assert "| SSB-C, source (4 methods) |" in head
    assert "of" not in solid
    # without UNO+, which has no records there; GCD has three of four seeds
    assert color.count("of 3") == both.count("of 3") == 4


def test_the_order_of_methods_is_that_of_the_pairs_however_many_seeds_others_have(
    script, four_methods
):
    reading = script("reading")
    others = [
        replace(
            one, dataset=dataset, seed=seed, method="simgcd" if one.method == "hilo" else "hilo"
        )
        for one in four_methods
        for dataset in ("line+all", "line-c")
        for seed in range(6)
        if (one.method, one.dataset, one.seed)
        in {("hilo", "line+solid", 0), ("simgcd", "line+solid", 0)}
    ]
    ours = {role: reading.by_dataset([*others, *four_methods], role) for role in reading.ROLES}
    assert list(ours["source"]) == ["line+solid", "line+color", "line+all", "line-c"]
    assert reading.ordered(ours) == ["hilo", "gcd", "simgcd", "uno"]
    means = {role: reading.by_dataset(others, role) for role in reading.ROLES}
    assert reading.ordered(means) == ["simgcd", "hilo"]  # without pairs it is that of all


def test_the_reading_of_records_is_printed(script, four_methods, monkeypatch, capsys):
    reading = script("reading")
    monkeypatch.setattr(reading, "read", lambda folder: four_methods)
    reading.main(["somewhere"])
    said = capsys.readouterr().out
    assert "SSB-C, source (4 methods)" in said
    assert "authors" not in said  # of two methods
    monkeypatch.setattr(reading, "read", lambda folder: [])
    with pytest.raises(SystemExit, match="somewhere: no records"):
        reading.main(["somewhere"])


def test_the_critic_is_summarised_above_independence(script):
    critic, low = script("critic"), -2 * np.log(2)

    def watched(seed: int, above: list[float]) -> Record:
        spreads = np.linspace(1, 0.2, len(above))
        points = [
            CurvePoint(epoch, 0.1, {}, diagnostics={"critic_estimate": a + low, "domain_spread": s})
            for epoch, (a, s) in enumerate(zip(above, spreads, strict=True))
        ]
        return make_record(method="hilo", seed=seed, curve=points)

    found = [watched(0, [0.1, 0.2, 0.4, 0.3]), watched(1, [0.3, 0.4, 0.2, -0.1])]
    assert critic.row(found) == ["2", "+0.200", "+0.300", "+0.100", "-0.100", "0.20"]
