"""Compile the trained part of a model: the last blocks of the backbone, and the heads."""

from __future__ import annotations

import os
import shutil

import torch
from torch import nn

from gcdbench.errors import UserError
from gcdbench.nn.backbone import Backbone
from gcdbench.nn.heads import (
    CosineClassifier,
    GCDHead,
    MultiHeadPrototypes,
    ProjectionHead,
    Prototypes,
)
from gcdbench.nn.transformer import PlainTransformer

HEADS = (
    GCDHead,
    MultiHeadPrototypes,
    ProjectionHead,
    CosineClassifier,
    Prototypes,
)
COMPILERS = ("g++", "clang++", "c++")


def compile_trained(model: nn.Module, backbone: Backbone) -> list[str]:
    """Let torch compile the trained blocks and all heads, and return their names.

    The rest of a step stays as it is: losses and clustering are different in every method. What is
    compiled computes the same up to rounding.
    """
    check_compiler()
    compiled = []
    if isinstance(backbone.transformer, PlainTransformer):
        backbone.transformer.first_rows = torch.compile(backbone.transformer.first_rows)
        compiled.append("backbone")
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in compiled)
        if isinstance(module, HEADS) and not inside:
            module.compile()
            compiled.append(name)
    return compiled


def check_compiler() -> None:
    """Raise a UserError if there is no C++ compiler, which torch asks for in its first step."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else list(COMPILERS)
    if not any(shutil.which(name.split()[0]) for name in wanted):
        raise UserError(
            f"train.compile needs a C++ compiler, but none of {', '.join(wanted)} is on the PATH; "
            "install one, or leave train.compile at false"
        )
