"""Leaderboards as CSV and Markdown: mean and deviation over seeds, ranks, what is missing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from gcdbench.records import write_atomically
from gcdbench.report.collect import Collection

KEYS = ["dataset", "set", "role", "split"]


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Return mean, deviation, number of seeds and rank per dataset, set, split and method."""
    grouped = table.groupby([*KEYS, "method"], sort=False)["accuracy"]
    out = grouped.agg(mean="mean", std="std", seeds="count").reset_index()
    ranks = out.groupby(KEYS, sort=False)["mean"].rank(ascending=False, method="min")
    out["rank"] = ranks.astype("Int64")
    return out


def to_csv(collection: Collection) -> str:
    """Return the leaderboard as CSV, one row per number."""
    return summarise(collection.table).to_csv(index=False, float_format="%.4f", lineterminator="\n")


def to_markdown(collection: Collection, suite: str) -> str:
    """Return the leaderboard as Markdown: one table per dataset, best numbers in bold."""
    parts = [f"# {suite}", "Clustering accuracy in percent (mean ± deviation over seeds)."]
    summary = summarise(collection.table)
    for dataset in summary["dataset"].unique():
        parts.append(f"## {dataset}")
        parts.append(_dataset_table(summary[summary["dataset"] == dataset]))
    if collection.missing:
        cells = "; ".join(cell.label for cell in collection.missing)
        parts.append(f"Not recorded yet: {cells}.")
    if collection.left_out:
        parts.append("Left out:\n\n" + "\n".join(f"- {line}" for line in collection.left_out))
    return "\n\n".join(parts) + "\n"


def _dataset_table(summary: pd.DataFrame) -> str:
    pairs = summary[["set", "split"]].drop_duplicates()
    columns = list(zip(pairs["set"].astype(str), pairs["split"].astype(str), strict=True))
    order = summary[(summary["role"] == "shifted") & (summary["split"] == "All")]
    methods = order.groupby("method")["mean"].mean().sort_values(ascending=False).index
    head = ["method", *(f"{name} {split}" for name, split in columns), "seeds"]
    lines = [_row(head), _row(["---", *["---:"] * (len(columns) + 1)])]
    for method in methods:
        rows = summary[summary["method"] == method].set_index(["set", "split"])
        cells = [_number(rows.loc[column]) for column in columns]
        lines.append(_row([str(method), *cells, str(rows["seeds"].max())]))
    return "\n".join(lines)


def _number(row: pd.Series) -> str:
    if pd.isna(row["mean"]):
        return "–"
    text = f"{row['mean']:.1f}" if pd.isna(row["std"]) else f"{row['mean']:.1f} ± {row['std']:.1f}"
    return f"**{text}**" if row["rank"] == 1 else text


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def write(collection: Collection, suite: str, folder: Path) -> list[Path]:
    """Write the leaderboard in all formats and return the paths."""
    texts = {"csv": to_csv(collection), "md": to_markdown(collection, suite)}
    paths = []
    for suffix, text in texts.items():
        path = folder / f"{suite}.{suffix}"
        write_atomically(path, text.encode())
        paths.append(path)
    return paths
