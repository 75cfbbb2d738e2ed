"""Build a backbone by name: the embedded one, or any timm vision transformer, with its weights."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from timm.data import resolve_model_data_config
from timm.models.eva import Eva
from timm.models.eva import checkpoint_filter_fn as eva_filter_fn
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor

from gcdbench.core.hub_weights import weights_file
from gcdbench.core.settings import BACKBONES, BackboneConfig
from gcdbench.errors import UserError
from gcdbench.nn import embedded
from gcdbench.nn.backbone import Backbone
from gcdbench.nn.transformer import transformer_of


def load_backbone(config: BackboneConfig) -> Backbone:
    """Return the backbone of a config with its weights."""
    if config.name == "embedded" and config.weights is None:
        vit, data = embedded.load_embedded(), _embedded_data()
    elif config.name == "embedded":
        vit, data = embedded.build_embedded(), _embedded_data()
    else:
        vit = _timm_vit(config)
        data = resolve_model_data_config(vit) | {"input_size": vit.patch_embed.img_size}
    if config.weights is not None:
        _load_file(vit, weights_file(config.weights))
    vit.eval()
    return Backbone(
        vit,
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
        image_size=data["input_size"][-1],
        train_blocks=config.train_blocks,
    )


def _embedded_data() -> dict:
    size = embedded.IMAGE_SIZE
    return {"mean": embedded.MEAN, "std": embedded.STD, "input_size": (size, size)}


def build_timm_vit(config_name: str, *, pretrained: bool) -> Any:
    """Build a timm vision transformer, with timm's weights or without any."""
    name = BACKBONES.get(config_name, config_name)
    if not timm.is_model(name.split(".")[0]):
        known = ", ".join(BACKBONES)
        raise UserError(
            f"unknown backbone {config_name!r}: use one of {known} or a timm ViT's name"
        )
    # DINOv2's own images have 518 pixels, DINOv3's 256
    extra: dict[str, Any] = {"img_size": 224} if "dinov2" in name or "dinov3" in name else {}
    vit: Any = timm.create_model(name, pretrained=pretrained, num_classes=0, **extra)
    transformer_of(vit, config_name)  # refuses what has no blocks or no CLS token
    if vit.dynamic_img_size:  # all images here have one size
        vit.dynamic_img_size = False
        vit.patch_embed.flatten = True
    return vit


def _timm_vit(config: BackboneConfig) -> Any:
    try:
        return build_timm_vit(config.name, pretrained=config.weights is None)
    except UserError:
        raise
    except Exception as error:  # the hub client's errors have no common base class
        raise UserError(
            f"the weights of backbone {config.name!r} could not be fetched "
            f"({type(error).__name__}); download them elsewhere and give the file with "
            "--set backbone.weights=FILE"
        ) from error


def _load_file(vit: Any, path: Path) -> None:
    """Load a local checkpoint: safetensors, timm's own, or the original DINO layouts.

    Positions that were learnt for another image size are resampled, as timm does it.
    """
    state, wanted = _strip(_read(path)), vit.state_dict()
    if isinstance(vit, Eva):
        state = eva_filter_fn(state, vit)  # names of the original EVA and DINOv3 as well
    elif "pos_embed" in state and state["pos_embed"].ndim == 3:
        state = checkpoint_filter_fn(state, vit)
    state = {key: value for key, value in state.items() if not key.startswith(("head.", "fc."))}
    missing = sorted(set(wanted) - set(state))
    wrong = [k for k in wanted if k in state and state[k].shape != wanted[k].shape]
    if missing or wrong:
        first = missing[0] if missing else wrong[0]
        raise UserError(
            f"{path}: these weights do not fit the backbone ({len(missing)} tensors missing, "
            f"{len(wrong)} of another shape, first: {first})"
        )
    vit.load_state_dict({key: state[key] for key in wanted})


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # DINO's full checkpoints contain their command-line arguments
        with torch.serialization.safe_globals([argparse.Namespace]):
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip or header errors: not a weights file
        raise UserError(f"{path}: cannot be read as weights ({type(error).__name__})") from error
    for key in ("teacher", "student", "state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict):
        raise UserError(f"{path}: holds no dictionary of tensors")
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}


def _strip(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state without the prefixes that training codes add to the names."""
    for prefix in ("module.", "backbone."):
        if any(key.startswith(prefix) for key in state):
            state = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    return state
