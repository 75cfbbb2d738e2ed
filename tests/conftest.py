"""Fixtures that several folders of tests use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.trees import Trees

from gcdbench.core import registry


@pytest.fixture(autouse=True)
def only_bundled_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every test without the plug-ins that earlier tests have added."""
    monkeypatch.setattr(registry, "_plugins", {kind: {} for kind in registry.KINDS})


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests, and what they start, from writing into the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCDBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    """Return a writer of miniature datasets below an empty data root."""
    return Trees(tmp_path / "data")


@pytest.fixture(scope="session")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data root with all of SSB, to be read only."""
    trees = Trees(tmp_path_factory.mktemp("miniature"))
    trees.cub()
    trees.cars()
    trees.aircraft()
    return trees.root
