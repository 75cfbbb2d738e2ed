"""The contract's checks: ``gcdbench check`` and the project's tests run them on a method."""

from __future__ import annotations

from gcdbench.training.conformance.bench import SIZE, Bench, ContractError, tiny_backbone
from gcdbench.training.conformance.checks import CHECKS

__all__ = ["CHECKS", "SIZE", "Bench", "ContractError", "tiny_backbone"]
