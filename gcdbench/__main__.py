"""Entry point of ``gcdbench`` and ``python -m gcdbench``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; report an interruption during imports as well."""
    if sys.platform == "win32":  # signals, process groups and file locks are those of POSIX
        sys.stderr.write("gcdbench: Windows is not supported; use it inside WSL (Linux)\n")
        return 2
    try:
        from gcdbench.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("gcdbench: interrupted; run the same command again to continue\n")
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
