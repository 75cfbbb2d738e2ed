"""Entry point of ``python -m gcdbench``."""

from __future__ import annotations

import sys

try:
    from gcdbench.cli import main
except KeyboardInterrupt:
    sys.stderr.write("gcdbench: interrupted; run the same command again to go on\n")
    sys.exit(130)

sys.exit(main())
