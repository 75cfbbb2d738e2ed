"""Every method of the registry keeps the contract; a method file that is added is tested here."""

from __future__ import annotations

import pytest
from helpers.bench import small_config

from gcdbench.core import registry
from gcdbench.core.method_spec import MethodSpec
from gcdbench.training.conformance import CHECKS, Bench


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", registry.available("method"))
def test_a_method_keeps_the_contract(name, check):
    spec = MethodSpec.parse(name)
    configs = {name: small_config("method", name)}
    check(lambda: Bench(spec, configs))


@pytest.mark.parametrize("kind", ["method", "technique"])
def test_every_default_names_its_source(kind):
    sources = ("paper", "released", "our", "official")
    for name, info in registry.available(kind).items():
        for field, note in info.notes.items():
            assert field == "presets" or any(word in note for word in sources), f"{name}.{field}"


def test_no_shipped_plugin_is_broken():
    assert {kind: registry.broken(kind) for kind in registry.KINDS} == {
        "method": {},
        "technique": {},
        "dataset": {},
    }
