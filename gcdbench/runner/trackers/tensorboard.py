"""TensorBoard: event files in the folder of the cell."""

from __future__ import annotations

from collections.abc import Mapping

from torch.utils.tensorboard import SummaryWriter

from gcdbench.runner.trackers import TrackedCell


class TensorBoardTracker:
    """Writes scalars for ``tensorboard --logdir <results>``."""

    def __init__(self, cell: TrackedCell) -> None:
        # what an earlier attempt has written is not shown
        self._writer = SummaryWriter(cell.folder / "tensorboard", purge_step=0)

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, epoch)

    def close(self, *, failed: bool) -> None:
        self._writer.close()
