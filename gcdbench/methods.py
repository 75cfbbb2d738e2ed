"""Makes the files of the folder methods/ importable as ``gcdbench.methods.<name>``."""

from __future__ import annotations

from gcdbench.layout import shipped

__path__ = [str(shipped("methods"))]
