"""Backbones of timm before they are loaded: whether they can be used, their size, their weights."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import huggingface_hub
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from gcdbench.core import hub_weights
from gcdbench.core.backbone_sizes import BackboneSize
from gcdbench.core.hub_weights import FILES, SECONDS
from gcdbench.core.settings import BACKBONES, BackboneConfig
from gcdbench.errors import UserError
from gcdbench.nn.backbone import Backbone
from gcdbench.nn.load import build_timm_vit


@cache
def build_without_weights(name: str) -> VisionTransformer:
    """Build a timm model without memory; raise a UserError if it cannot be used as a backbone."""
    try:
        with torch.device("meta"):
            return build_timm_vit(name, pretrained=False)
    except UserError:
        raise
    except Exception as error:  # such as an unknown tag after the model's name
        raise UserError(f"backbone {name!r} cannot be built by timm: {error}") from error


def timm_size(name: str) -> BackboneSize:
    """Return the size of a timm model."""
    vit = build_without_weights(name)
    block, embed = vit.blocks[0], vit.patch_embed
    patches = embed.num_patches
    return BackboneSize(
        width=vit.embed_dim,
        depth=len(vit.blocks),
        heads=block.attn.num_heads,  # type: ignore[union-attr, arg-type]
        tokens=patches + vit.num_prefix_tokens,
        embed_flops=2 * patches * sum(p.numel() for p in embed.parameters() if p.ndim > 1),
        hidden=getattr(getattr(block.mlp, "fc1", None), "out_features", 4 * vit.embed_dim),
    )


def untrained_backbone(config: BackboneConfig) -> Backbone:
    """Return a backbone with random weights, to measure its speed."""
    vit = build_timm_vit(config.name, pretrained=False).eval()
    half, side = (0.5,) * 3, vit.patch_embed.img_size[-1]
    return Backbone(vit, mean=half, std=half, image_size=side, train_blocks=config.train_blocks)


@dataclass(frozen=True)
class Weights:
    """Where the weights of a backbone come from."""

    place: str  # a path, or the model's name on the hub
    there: bool  # whether they are on this machine


def find_weights(config: BackboneConfig) -> Weights:
    """Return where a backbone's weights are, or where they would be fetched from."""
    if config.weights is not None and config.from_hub:
        kept = hub_weights.local_file(config.weights)
        return Weights(str(kept or hub_weights.repository(config.weights)), kept is not None)
    if config.weights is not None:
        return Weights(config.weights, Path(config.weights).is_file())
    if config.name == "embedded":
        return Weights("bundled with gcdbench", True)
    given = timm.get_pretrained_cfg(BACKBONES.get(config.name, config.name))
    if given is None or not (given.hf_hub_id or given.url):
        raise UserError(
            f"timm has no weights for backbone {config.name!r}; give a file with "
            "--set backbone.weights=FILE"
        )
    if not given.hf_hub_id:
        kept = Path(torch.hub.get_dir()) / "checkpoints" / str(given.url).rpartition("/")[2]
        return Weights(str(kept) if kept.is_file() else str(given.url), kept.is_file())
    for file in (*([given.hf_hub_filename] if given.hf_hub_filename else ()), *FILES):
        found = huggingface_hub.try_to_load_from_cache(given.hf_hub_id, file)
        if isinstance(found, str):
            return Weights(found, True)
    return Weights(given.hf_hub_id, False)


def unreachable(found: Weights) -> Exception | None:
    """Return why the hub cannot be asked for weights, or None if it answers.

    It is asked once, briefly: its client would retry for most of a minute.
    """
    try:
        address = huggingface_hub.hf_hub_url(found.place, FILES[0])
        huggingface_hub.get_hf_file_metadata(address, timeout=SECONDS)
    except huggingface_hub.errors.EntryNotFoundError:
        return None  # the model has a file of another name
    except Exception as error:  # the hub client's errors have no common base class
        return error
    return None


def fetch_weights(config: BackboneConfig) -> None:
    """Download a backbone's weights unless they are here; raise a UserError if that fails."""
    found = find_weights(config)
    if found.there:
        return
    if config.weights is not None and not config.from_hub:
        raise UserError(f"backbone.weights: no file {config.weights}")
    if config.weights is not None:
        hub_weights.weights_file(config.weights)
        return
    if "://" in found.place:
        return  # an ordinary address, which timm tries once
    if (error := unreachable(found)) is not None:
        raise UserError(
            f"the weights of backbone {config.name!r} are not on this machine, and the hub that "
            f"has them ({found.place}) cannot be reached ({type(error).__name__}); download them "
            "elsewhere and give the file with --set backbone.weights=FILE"
        ) from error
    with contextlib.suppress(huggingface_hub.errors.EntryNotFoundError):  # timm knows its name
        huggingface_hub.hf_hub_download(found.place, FILES[0])
