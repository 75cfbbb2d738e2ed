"""Entry point of ``python -m gcdbench``."""

from __future__ import annotations

import sys

from gcdbench.cli import main

sys.exit(main())
