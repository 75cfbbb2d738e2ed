"""The log of a cell: one line of JSON per event, always written."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from gcdbench.experiment.heartbeat import LOG


class JsonLines:
    """Appends one row per event in a single write, so that a killed run leaves complete lines."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG

    def write(self, event: str, row: dict[str, Any]) -> None:
        """Write an event."""
        line = json.dumps({"time": time.time(), "event": event, **row}) + "\n"
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line)
