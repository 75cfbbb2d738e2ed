"""Checks of backbones once and before the first cell: can they be used, are their weights there?

Torch is imported only for backbones without an entry in ``core.backbone_sizes``.
"""

from __future__ import annotations

from collections.abc import Iterable

from gcdbench.core.backbone_sizes import SIZES
from gcdbench.core.settings import BackboneConfig
from gcdbench.errors import UserError
from gcdbench.experiment.key import weights_hash
from gcdbench.experiment.plan import Cell
from gcdbench.runner.cost import backbone_size


def check_backbones(cells: Iterable[Cell]) -> None:
    """Raise a UserError if a backbone cannot be used; nothing is downloaded."""
    for config in _distinct(cells):
        if config.name not in SIZES:
            from gcdbench.nn.hub import build_without_weights

            build_without_weights(config.name)
        size = backbone_size(config.name)
        if size is not None and config.train_blocks > size.depth:
            raise UserError(
                f"backbone.train_blocks is {config.train_blocks}, but backbone {config.name!r} has "
                f"{size.depth} blocks"
            )


def fetch_weights(cells: Iterable[Cell]) -> None:
    """Download the weights of cells unless they are here; raise a UserError if that fails."""
    for config in _distinct(cells):
        from gcdbench.nn import hub

        named = weights_hash(config)
        hub.fetch_weights(config)
        weights_hash.cache_clear()
        if weights_hash(config) != named:
            raise UserError(f"backbone.weights: {config.weights} has changed on the hub: run again")


def _distinct(cells: Iterable[Cell]) -> list[BackboneConfig]:
    return list(dict.fromkeys(cell.backbone for cell in cells))
