"""Make the files of the folder methods/ importable as ``gcdbench.methods.<name>``."""

from __future__ import annotations

from gcdbench.core.paths import bundled

__path__ = [str(bundled("methods"))]
