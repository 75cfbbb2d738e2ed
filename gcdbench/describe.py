"""What ``gcdbench show`` says about a plug-in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gcdbench.registry import Face


def plugin(face: Face, fields: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe a plug-in and its settings with the sources of their defaults."""
    lines = [face.doc.strip(), ""]
    if face.constants.get("paper"):
        lines.append(f"paper: {face.constants['paper']}")
    if face.constants.get("techniques"):
        lines.append(f"techniques: {', '.join(face.constants['techniques'])}")
    if face.constants.get("train_defaults"):
        given = face.constants["train_defaults"].items()
        lines.append("training: " + ", ".join(f"{name} {value}" for name, value in given))
    code = len(face.path.read_text(encoding="utf-8").splitlines())
    lines.append(f"file: {face.path} ({code} lines)")
    if fields:
        lines += ["", f"settings (--set {face.name}.KEY=VALUE):"]
    defaults = {n: "required" if f["required"] else repr(f["default"]) for n, f in fields.items()}
    wide = max(map(len, fields), default=0), max(map(len, defaults.values()), default=0)
    for name, field in fields.items():
        text = f"  {name:<{wide[0]}}  {defaults[name]:<{wide[1]}}  {field['source']}"
        lines.append(text.rstrip())
    return "\n".join(lines)


def paper(method: str) -> str:
    """Return the numbers that the HiLo paper's main tables print for a method, or nothing."""
    from gcdbench.report import published

    rows = [
        triple
        for table in ("ssb_c", "domainnet")
        for triple in published.triples(table)
        if (triple.method, triple.variant) == (published.title(method), "")
    ]
    if not rows:
        return ""
    lines = [
        "",
        "in the paper's main tables (All / Old / New, in percent; ! an impossible triple):",
    ]
    for dataset in dict.fromkeys(row.dataset for row in rows):
        cells = [
            f"{row.title} "
            + " / ".join(f"{value:.1f}" for value in row.values.values())
            + ("!" if row.impossible else "")
            for row in rows
            if row.dataset == dataset
        ]
        lines.append(f"  {published.dataset_title(dataset) or dataset:<16} {'   '.join(cells)}")
    return "\n".join(lines) + "\n"


def size_and_cost(method: str, suite: str, results: Path) -> str:
    """Count what a method trains on a suite's first dataset, and judge what a cell of it costs."""
    from gcdbench import records
    from gcdbench.nn.load import load_backbone
    from gcdbench.plan import Request, make_cells
    from gcdbench.runner.cell import make_loader, make_model
    from gcdbench.runner.cost import CostModel, duration
    from gcdbench.suites import Suite

    first = next(iter(Suite.load(suite).datasets))
    cell = make_cells(Request(suite, (method,), (first,)))[0]
    backbone, told = load_backbone(cell.backbone), cell.task.num_classes
    loader = make_loader(cell, backbone.image_size)
    number = told or cell.problem().num_classes
    model = make_model(cell, loader, backbone, num_classes=number)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    inside = sum(p.numel() for p in model.backbone.parameters() if p.requires_grad)
    every = sum(p.numel() for p in model.parameters())
    sound = (record for _, record in records.read_all(results) if isinstance(record, dict))
    cost = CostModel(sound).estimate(cell)
    time = "" if cost.seconds is None else f", about {duration(cost.seconds)}"
    return (
        f"\non {first} of {suite}, with its backbone {cell.backbone.name}:\n"
        f"  size  {_millions(trained)} trained parameters ({_millions(inside)} of the backbone's, "
        f"{_millions(trained - inside)} in heads) of {_millions(every)}\n"
        f"  cost  {cost.images:,} images in {cell.train.epochs} epochs{time} ({cost.basis})"
    )


def _millions(number: int) -> str:
    return f"{number / 1e6:.2f} M"
