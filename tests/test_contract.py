"""Every method of the registry keeps the contract; a method file that is added is tested here."""

from __future__ import annotations

import pytest

from gcdbench import registry
from gcdbench.contract import CHECKS, Bench
from gcdbench.plan import Spelling

SMALL = {"hidden_dim": 32, "out_dim": 64, "projection_dim": 16, "bottleneck_dim": 16}


def small_config(kind: str, name: str) -> dict:
    """Shrink the widths of heads, which say nothing about the contract."""
    fields = registry.face(kind, name).config.__dataclass_fields__
    return {key: value for key, value in SMALL.items() if key in fields}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", registry.faces("method"))
def test_a_method_keeps_the_contract(name, check):
    spelling = Spelling.parse(name)
    configs = {name: small_config("method", name)}
    check(lambda: Bench(spelling, configs))


@pytest.mark.parametrize("kind", ["method", "technique"])
def test_every_default_names_its_source(kind):
    sources = ("paper", "released", "our", "official")
    for name, face in registry.faces(kind).items():
        for field, note in face.notes.items():
            assert field == "presets" or any(word in note for word in sources), f"{name}.{field}"


def test_no_shipped_plugin_is_broken():
    assert {kind: registry.broken(kind) for kind in registry.KINDS} == {
        "method": {},
        "technique": {},
        "source": {},
    }
