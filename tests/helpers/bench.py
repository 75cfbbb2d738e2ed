"""Small models for tests of methods and techniques."""

from __future__ import annotations

from gcdbench.core import registry
from gcdbench.core.method_spec import MethodSpec
from gcdbench.training.conformance import Bench

SMALL = {"hidden_dim": 32, "out_dim": 64, "projection_dim": 16, "bottleneck_dim": 16}
SMALL |= {"search_steps": 2, "fit_steps": 20}  # of fits at the end


def small_config(kind: str, name: str) -> dict:
    """Shrink the widths of heads, which say nothing about the contract."""
    fields = registry.get(kind, name).config.__dataclass_fields__
    return {key: value for key, value in SMALL.items() if key in fields}


def bench(spec: MethodSpec) -> Bench:
    """Return a bench with small heads."""
    return Bench(spec, {spec.method: small_config("method", spec.method)})
