"""Weights that are named on the hub: from its cache, by their content, and out of reach."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import huggingface_hub
import pytest
from helpers.hub_cache import put_into_cache
from helpers.toy import make_toy

from gcdbench.cli.backbones import fetch_weights
from gcdbench.cli.main import main
from gcdbench.core.hub_weights import local_file, published_hash, weights_file
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.key import weights_hash
from gcdbench.experiment.plan import make_cells

NAME = "hf-hub:lab/drawings"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return an empty cache of the hub, on a machine without a network."""
    folder = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    weights_hash.cache_clear()
    yield folder
    weights_hash.cache_clear()


@pytest.fixture
def toy(tmp_path):
    return make_toy(tmp_path)


def on_hub(toy, weights=NAME):
    request = toy.request()
    return make_cells(
        request.__class__(
            request.suite, ("simgcd",), assignments={"backbone": {"weights": weights}}
        )
    )[0]


def test_weights_of_the_hub_give_the_numbers_of_the_same_file(toy, cache):
    content = (toy.suite.parent / "tiny.safetensors").read_bytes()
    link = put_into_cache(cache, "lab/drawings", "model.safetensors", content)
    assert local_file(NAME) == link
    by_file, by_name = toy.cell(), on_hub(toy)
    assert by_name.fingerprints() == by_file.fingerprints()
    assert toy.run([by_file, by_name]).failed == []
    one, other = (
        records.read_record(records.cell_folder(toy.results, cell) / records.RECORD)
        for cell in (by_file, by_name)
    )
    assert one.sets == other.sets
    assert [point.terms for point in one.curve] == [point.terms for point in other.curve]
    assert one.provenance.backbone == other.provenance.backbone
    assert one.key != other.key  # a setting has another value


def test_a_new_version_on_the_hub_is_another_cell(toy, cache):
    content = (toy.suite.parent / "tiny.safetensors").read_bytes()
    put_into_cache(cache, "lab/drawings", "model.safetensors", content)
    first = on_hub(toy)
    before, commit = first.key, local_file(NAME).parent.name
    put_into_cache(cache, "lab/drawings", "model.safetensors", content + b" ")
    weights_hash.cache_clear()
    assert on_hub(toy).key != before
    named = on_hub(toy, f"{NAME}@{commit}")
    assert named.fingerprints() == {
        **on_hub(toy).fingerprints(),
        "weights": hashlib.sha256(content).hexdigest(),
    }


def test_the_hash_that_the_hub_publishes_is_that_of_the_downloaded_file(cache, monkeypatch):
    digest, asked = hashlib.sha256(b"weights").hexdigest(), []

    def metadata(address, **more):
        asked.append(address)
        if address.endswith("safetensors"):
            raise huggingface_hub.errors.EntryNotFoundError("404")
        return SimpleNamespace(etag=digest)

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", metadata)
    assert published_hash(f"{NAME}@v2") == digest
    assert [address.partition("/lab/")[2] for address in asked] == [
        "drawings/resolve/v2/model.safetensors",
        "drawings/resolve/v2/pytorch_model.bin",
    ]
    link = put_into_cache(cache, "lab/drawings", "pytorch_model.bin", b"weights")
    assert weights_file(NAME) == link
    assert local_file(NAME).resolve().name == digest


def test_weights_that_change_between_plan_and_download_are_refused(toy, cache, monkeypatch):
    published = SimpleNamespace(etag="0" * 64)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *w, **m: published)

    def download(repository, name, **more):
        return str(put_into_cache(cache, repository, name, b"other weights"))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(UserError, match="hf-hub:lab/drawings has changed on the hub: run again"):
        fetch_weights([on_hub(toy)])


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_weights_out_of_reach_are_one_sentence_before_the_first_cell(toy, cache, verb, capsys):
    words = [verb, "--suite", str(toy.suite), "--methods", "simgcd", "--results"]
    assert main([*words, str(toy.results), "--set", f"backbone.weights={NAME}"]) == 2
    out, err = capsys.readouterr()
    assert f"{NAME} is not on this machine and cannot be fetched (OfflineModeIsEnabled)" in err
    assert (len(err.splitlines()), out) == (1, "")
    assert not list(toy.results.glob("*/*/*"))


def test_a_download_without_a_network_is_not_taken_for_a_missing_file(cache):
    with pytest.raises(UserError, match=r"cannot be fetched \(LocalEntryNotFoundError\)"):
        weights_file(NAME)


@pytest.mark.parametrize("name", ["hf-hub:lab", "hf-hub:a/b/c", "hf-hub:../../etc"])
def test_a_name_without_owner_and_model_is_refused(toy, name, capsys):
    words = ["plan", "--suite", str(toy.suite), "--methods", "simgcd"]
    assert main([*words, "--set", f"backbone.weights={name}"]) == 2
    assert "weights must be a file or hf-hub:owner/name[@revision]" in capsys.readouterr().err
