"""Log a cell's training: JSON lines always, TensorBoard on request."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

from gcdbench.errors import UserError
from gcdbench.experiment.heartbeat import LOG
from gcdbench.experiment.records import flat


class Tracker:
    """Appends one row per event in a single write, so that a killed run leaves complete lines."""

    def __init__(self, folder: Path, *, tensorboard: bool = False) -> None:
        self.path = folder / LOG
        self._writer = _summary_writer(folder) if tensorboard else None

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, event: str, **row: Any) -> None:
        """Write an event; the numbers of an epoch are also sent to TensorBoard."""
        line = json.dumps({"time": time.time(), "event": event, **row}) + "\n"
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line)
        if self._writer is not None and "epoch" in row:
            for name, value in flat({k: v for k, v in row.items() if k != "epoch"}).items():
                if isinstance(value, (int, float)):
                    self._writer.add_scalar(name.replace(".", "/", 1), value, row["epoch"])


def check_tensorboard() -> None:
    """Raise a UserError if TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            "--tensorboard: the package is not installed; pip install 'gcdbench[tensorboard]'"
        )


def _summary_writer(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder / "tensorboard")
