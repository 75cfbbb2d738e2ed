"""Entry point of ``gcdbench`` and ``python -m gcdbench``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; an interruption while it is still being imported is one, too."""
    try:
        from gcdbench.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("gcdbench: interrupted; run the same command again to go on\n")
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
