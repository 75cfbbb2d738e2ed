"""Draw settings from ranges: at random, or by Optuna's TPE from the draws before.

Draw 0 is always the defaults. Draw i depends on the method, the seed of the search and, with TPE,
on the values of the draws before it, so that a search can be interrupted, continued and extended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gcdbench.errors import UserError
from gcdbench.experiment.tuning.ranges import Range

Settings = dict[str, dict[str, Any]]  # section -> name -> value, as --set gives them
SAMPLERS = ("random", "tpe")


def random_draw(
    ranges: Sequence[Range], defaults: Mapping[str, Any], *, method: str, seed: int, number: int
) -> Settings:
    """Return draw ``number`` of a random search; its settings do not depend on the budget.

    ``defaults`` has the resolved default of every setting by its key.
    """
    if number == 0:
        return {}
    text = f"{method}|{seed}|{number}"
    words = np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.uint32)
    rng = np.random.RandomState(words)
    return nested({one.key: one.at(rng.random_sample(), defaults[one.key]) for one in ranges})


def tpe_draw(
    ranges: Sequence[Range],
    defaults: Mapping[str, Any],
    values: Sequence[float | None],
    *,
    seed: int,
) -> Settings:
    """Return the draw that follows those whose values are given (None: failed), by Optuna's TPE.

    All draws are asked for again, from the first one: the same seed and values give the same draw.
    """
    optuna = _optuna()
    if not values:
        return {}
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=4)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    space = {one.key: _distribution(optuna, one) for one in ranges}
    start = {one.key: _place(one, defaults[one.key]) for one in ranges}
    study.enqueue_trial(start)
    for value in values:
        trial = study.ask(space)
        if value is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, value)
    chosen = study.ask(space).params
    return nested({one.key: _value(one, chosen[one.key], defaults[one.key]) for one in ranges})


def nested(settings: Mapping[str, Any]) -> Settings:
    """Return settings by section.

    >>> nested({"train.lr": 0.1, "simgcd.sup_weight": 0.3})
    {'train': {'lr': 0.1}, 'simgcd': {'sup_weight': 0.3}}
    """
    found: Settings = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        found.setdefault(section, {})[name] = value
    return found


def check_sampler(name: str) -> None:
    """Refuse a sampler whose library is not installed."""
    if name == "tpe":
        _optuna()


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError("--sampler tpe: install Optuna (pip install 'gcdbench[tune]')") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _distribution(optuna: Any, one: Range) -> Any:
    kinds = optuna.distributions
    if one.kind in ("choice", "times"):
        return kinds.CategoricalDistribution([str(v) for v in one.values])
    if one.kind == "integer":
        return kinds.IntDistribution(*map(int, one.values))
    return kinds.FloatDistribution(*one.values, log=one.kind == "log")


def _place(one: Range, default: Any) -> Any:
    """Return the default as a value of the distribution, or the nearest one that is in it."""
    if one.kind == "times":
        return str(min(one.values, key=lambda factor: abs(factor - 1)))
    if one.kind == "choice":
        return str(default if default in one.values else one.values[0])
    low, high = one.values
    return type(low + 0)(min(max(default, low), high))


def _value(one: Range, chosen: Any, default: Any) -> Any:
    """Return the setting for a value of the distribution."""
    if one.kind in ("choice", "times"):
        value = one.values[[str(v) for v in one.values].index(chosen)]
        return one.scaled(value, default) if one.kind == "times" else value
    return float(f"{chosen:.3g}") if one.kind != "integer" else chosen


def flat_settings(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return settings by their keys: the inverse of ``nested``."""
    return {
        f"{part}.{name}": value for part, given in settings.items() for name, value in given.items()
    }
