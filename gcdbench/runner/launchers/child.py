"""The first function of a process that runs cells: importing torch must not hide a parent's death.

Nothing here imports torch.
"""

from __future__ import annotations

import importlib
import os
import threading
from typing import Any

from gcdbench.runner.stop import INTERRUPTED

POLL_SECONDS = 0.2


def serve(parent: int, target: str, *arguments: Any) -> None:
    """Import a function, given as ``module:name``, and call it with the parent's number.

    The number is handed over because the parent may be dead before this process can ask for it. If
    it dies while the function is imported, which takes seconds, this process ends at once.
    """
    imported = threading.Event()
    threading.Thread(target=_watch, args=(parent, imported), daemon=True).start()
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    imported.set()
    function(parent, *arguments)


def _watch(parent: int, imported: threading.Event) -> None:
    while os.getppid() == parent:
        if imported.wait(POLL_SECONDS):
            return
    os._exit(INTERRUPTED)
