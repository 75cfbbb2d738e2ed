"""gcdbench compares methods of Generalized Category Discovery under domain shift.

>>> from gcdbench import accuracies
>>> accuracies(preds=[1, 1, 0, 2], labels=[0, 0, 1, 2], num_old=2)
Accuracies(all=1.0, old=1.0, new=1.0)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcdbench.api import Benchmark, load_records
    from gcdbench.ops.kmeans.api import semi_supervised_kmeans
    from gcdbench.ops.metrics import accuracies
    from gcdbench.training.score_arrays import evaluate

__version__ = "0.1.0"
__all__ = ["Benchmark", "accuracies", "evaluate", "load_records", "semi_supervised_kmeans"]

_HOMES = {
    "Benchmark": "gcdbench.api",
    "accuracies": "gcdbench.ops.metrics",
    "evaluate": "gcdbench.training.score_arrays",
    "load_records": "gcdbench.api",
    "semi_supervised_kmeans": "gcdbench.ops.kmeans.api",
}


def __getattr__(name: str) -> Any:
    """Import the parts of the interface when they are asked for: torch takes seconds."""
    if name not in _HOMES:
        raise AttributeError(f"module 'gcdbench' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
