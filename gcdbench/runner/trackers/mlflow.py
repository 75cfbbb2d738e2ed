"""MLflow: a run per cell, in the store of ``MLFLOW_TRACKING_URI`` or in the results folder."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from gcdbench.runner.trackers import TrackedCell

LONGEST = 500  # letters of a parameter that all stores take
BATCH = 100  # parameters that a request may have


class MlflowTracker:
    """Logs to the experiment of ``MLFLOW_EXPERIMENT_NAME``."""

    def __init__(self, cell: TrackedCell) -> None:
        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        store = f"sqlite:///{(cell.results / 'mlflow.db').resolve()}"
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or store)
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "gcdbench"))
        tags = {"gcdbench.key": cell.key}
        run = self._client.create_run(experiment, run_name=cell.label, tags=tags)
        self._run = run.info.run_id
        given = [Param(_name(n), str(v)[:LONGEST]) for n, v in cell.settings.items()]
        for start in range(0, len(given), BATCH):
            self._client.log_batch(self._run, params=given[start : start + BATCH])

    def _experiment(self, name: str) -> str:
        if (found := self._client.get_experiment_by_name(name)) is not None:
            return found.experiment_id
        try:
            return self._client.create_experiment(name)
        except MlflowException:  # another process was faster
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return found.experiment_id

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        now = int(1000 * time.time())
        metrics = [Metric(_name(name), value, now, epoch) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


def _name(name: str) -> str:
    """Return a name of letters that MLflow takes."""
    return re.sub(r"[^\w\-. /:]", "_", name)
