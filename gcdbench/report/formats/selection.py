"""The study of criteria as Markdown and CSV."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from gcdbench.report.columns import DASH, number, signed
from gcdbench.report.formats.tuned import draws_csv
from gcdbench.report.titles import dataset_title, method_title
from gcdbench.report.tuning.selection import (
    DEFAULT,
    Estimate,
    Line,
    Summary,
    Trial,
    order_of_methods,
    summaries,
)

ABOUT = (
    "{draws} draws of settings (draw 0: the defaults) for each of {methods} methods on {datasets} "
    "dataset{s} of {suite}, {done} of {planned} method-dataset pairs complete. Each draw was "
    "trained twice: on a fold that hides a quarter of the old classes, where the criteria are "
    "measured without any hidden label, and on the true split, where the target is measured: the "
    "mean of All on source and shifted images, last epoch, one seed.\n\n*Correlation* is "
    "Spearman's, of criterion and target over the draws; *regret* is the best draw's target minus "
    "that of the chosen draw, in points; *gain* is the chosen draw's target minus that of the "
    "defaults. Intervals are 95%, by bootstrap over draws (single rows) or over method-dataset "
    "pairs (means). `oracle` reads the hidden labels of the fold's run: selected with hidden "
    "labels, a bound and no result."
)
TITLE = "# What can settings be chosen by?"


def markdown(found: Sequence[Line], trials: Sequence[Trial], *, suite: str, planned: int) -> str:
    """Return the page."""
    if not trials:
        return (
            "# What can settings be chosen by?\n\nNo pair of method and dataset is complete yet.\n"
        )
    total = summaries(found)
    datasets = list(dict.fromkeys(trial.dataset for trial in trials))
    parts = [
        TITLE,
        ABOUT.format(
            draws=len(trials[0].target) + trials[0].failed,
            methods=len({trial.method for trial in trials}),
            datasets=len(datasets),
            s="s" * (len(datasets) > 1),
            suite=suite,
            done=len(trials),
            planned=planned,
        ),
        "## All pairs",
        _summary_table(total),
        reading(total, trials),
        "## By method and dataset",
        _table(found, trials),
    ]
    minutes = sum(trial.seconds for trial in trials) / 60
    failed = sum(trial.failed for trial in trials)
    parts.append(
        f"The runs took {minutes:.0f} minutes of processor time; {failed} draws failed and are "
        "left out."
    )
    return "\n\n".join(parts) + "\n"


def reading(total: Sequence[Summary], trials: Sequence[Trial]) -> str:
    """Say what the numbers show, and what they do not."""
    usable = [one for one in total if one.criterion not in (DEFAULT, "oracle")]
    best = min(usable, key=lambda one: one.regret.value)
    default = next(one for one in total if one.criterion == DEFAULT)
    sure = not math.isnan(best.gain.low) and (best.gain.low > 0 or best.gain.high < 0)
    changed = order_of_methods(trials, best.criterion)
    taus = ", ".join(f"{dataset_title(name)} {tau:.2f}" for name, tau in changed.items())
    text = (
        f"Of the criteria that see no hidden label, `{best.criterion}` has the least mean regret: "
        f"{number(best.regret.value)} points, against {number(default.regret.value)} of the "
        f"defaults. Choosing by it changes the target by {signed(best.gain.value)} points on "
        f"average (better in {best.better}, worse in {best.worse} of {len(trials)} pairs"
        f"{'' if sure else '; the interval of the mean includes 0, or there are too few pairs'})."
    )
    if taus:
        text += (
            " Kendall's tau between the order of the methods with defaults and when tuned by it "
            f"(1: the same order): {taus}."
        )
    return text


def to_csv(found: Sequence[Line]) -> str:
    """Return one line per pair and criterion."""
    return draws_csv(
        [
            {
                "dataset": line.trial.dataset,
                "method": line.trial.method,
                "criterion": line.criterion,
                "draws": len(line.trial.target),
                "correlation": line.correlation.value,
                "low": line.correlation.low,
                "high": line.correlation.high,
                "regret": line.regret,
                "gain": line.gain,
            }
            for line in found
        ]
    )


def draws_to_csv(trials: Sequence[Trial]) -> str:
    """Return one line per draw, from which everything else here follows."""
    return draws_csv(
        [
            {
                "dataset": trial.dataset,
                "method": trial.method,
                "settings": json.dumps(trial.settings[row]),
                **{name: values[row] for name, values in trial.values.items()},
                "target": target,
            }
            for trial in trials
            for row, target in enumerate(trial.target)
        ],
        digits=12,
    )


def _summary_table(total: Sequence[Summary]) -> str:
    head = ["criterion", "correlation", "regret", "gain over the defaults", "better : worse"]
    lines = []
    for one in total:
        is_default = one.criterion == DEFAULT
        lines.append(
            [
                one.criterion,
                DASH if is_default else _estimate(one.correlation, 2),
                _estimate(one.regret, 1),
                DASH if is_default else _estimate(one.gain, 1, sign=True),
                DASH if is_default else f"{one.better} : {one.worse}",
            ]
        )
    return _markdown(head, lines, left=1)


def _table(found: Sequence[Line], trials: Sequence[Trial]) -> str:
    names = list(dict.fromkeys(line.criterion for line in found if line.criterion != DEFAULT))
    by = {(id(line.trial), line.criterion): line for line in found}
    head = ["dataset", "method", "default", "best"]
    head += [f"{name}: correlation, regret" for name in names]
    lines = []
    for trial in trials:
        cells = [dataset_title(trial.dataset), method_title(trial.method)]
        cells += [number(trial.target[0]), number(trial.oracle)]
        for name in names:
            line = by[id(trial), name]
            cells.append(f"{_estimate(line.correlation, 2)}, {number(line.regret)}")
        lines.append(cells)
    return _markdown(head, lines, left=2)


def _estimate(one: Estimate, digits: int, *, sign: bool = False) -> str:
    def text(value: float) -> str:
        return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")

    if math.isnan(one.value):
        return DASH
    if math.isnan(one.low):
        return text(one.value)
    return f"{text(one.value)} ({text(one.low)} to {text(one.high)})"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]], left: int) -> str:
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))
