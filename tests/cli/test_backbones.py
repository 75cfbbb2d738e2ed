"""Backbones are refused when cells are planned, and missing weights before the first cell."""

from __future__ import annotations

import huggingface_hub
import pytest

from gcdbench.cli.main import main
from gcdbench.core.settings import BackboneConfig
from gcdbench.errors import UserError
from gcdbench.nn import hub


@pytest.fixture
def no_download(monkeypatch):
    """Let every request to the hub fail, and count them."""
    asked: list[str] = []

    def refuse(*words, **more):
        asked.append(str(words[0]))
        raise ConnectionError("no network")

    for name in ("hf_hub_download", "get_hf_file_metadata"):
        monkeypatch.setattr(huggingface_hub, name, refuse)
    monkeypatch.setattr("timm.models._hub.hf_hub_download", refuse)
    return asked


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("backbone.name=resnet18", "ResNet is none"),
        ("backbone.name=vit_base_patch16_gap_224", "has no CLS token"),
        ("backbone.name=no_such_model", "unknown backbone 'no_such_model'"),
        ("backbone.name=vit_tiny_patch16_224.no_tag", "cannot be built by timm"),
        ("backbone.train_blocks=13", "backbone 'dino-vitb16' has 12 blocks"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "run"])
def test_a_backbone_that_cannot_be_used_is_refused_before_any_download(
    verb, settings, reason, tmp_path, capsys, no_download
):
    words = [verb, "--suite", "ssb-c", "--set", settings, "--results", str(tmp_path)]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert reason in err
    assert (len(err.splitlines()), out) == (1, "")
    assert not no_download


def test_weights_out_of_reach_are_reported_once_before_the_first_cell(
    tmp_path, capsys, no_download, monkeypatch
):
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *words: None)
    words = ["run", "--suite", "drawshift", "--quick", "--results", str(tmp_path)]
    assert main([*words, "--set", "backbone.name=dino-vits16"]) == 2
    err = capsys.readouterr().err
    assert "cannot be reached (ConnectionError)" in err
    assert "--set backbone.weights=FILE" in err
    assert len(err.splitlines()) == 2  # what was to be run, and why it is not
    assert len(no_download) == 1  # for six cells
    assert not list(tmp_path.glob("*/*/*"))


def test_weights_that_are_here_are_not_asked_for(tmp_path, no_download, monkeypatch):
    kept = tmp_path / "model.safetensors"
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *words: str(kept))
    assert hub.find_weights(BackboneConfig("dino-vitb16")) == hub.Weights(str(kept), True)
    hub.fetch_weights(BackboneConfig("dino-vitb16"))
    hub.fetch_weights(BackboneConfig("embedded"))
    assert not no_download


def test_weights_are_fetched_once_and_another_file_name_is_left_to_timm(monkeypatch):
    fetched: list[str] = []
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *words: None)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *w, **more: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *words: fetched.append(words))
    hub.fetch_weights(BackboneConfig("clip-vitb16"))
    assert fetched == [("timm/vit_base_patch16_clip_224.openai", "model.safetensors")]


def test_a_model_without_published_weights_says_so():
    with pytest.raises(UserError, match="timm has no weights for backbone 'test_vit4'"):
        hub.find_weights(BackboneConfig("test_vit4"))
