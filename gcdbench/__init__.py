"""gcdbench compares methods of Generalized Category Discovery under domain shift."""

from __future__ import annotations

__version__ = "0.1.0"
