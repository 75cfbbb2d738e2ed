"""JSON that every parser reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(value: Any, *, decimals: int | None = None) -> str:
    """Return a value as JSON, null in place of a number that is not finite.

    >>> json_text({"gap": float("nan"), "all": (0.123456789, 1)}, decimals=6)
    '{\\n "gap": null,\\n "all": [\\n  0.123457,\\n  1\\n ]\\n}'
    """
    return json.dumps(_plain(value, decimals), indent=1, ensure_ascii=False, allow_nan=False)


def _plain(value: Any, decimals: int | None) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, decimals) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, decimals) for inner in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if decimals is None else round(value, decimals)
    return value
