"""The verb show: a plug-in's settings with their sources, the paper's numbers, size and cost."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gcdbench.cli.cost_tables import Total
from gcdbench.cli.plan import add_device
from gcdbench.core import registry
from gcdbench.runner.cost import DEFAULT


def add_show(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``show``."""
    add = parser.add_argument
    add("kind", choices=tuple(registry.KINDS))
    add("name")
    add("--suite", help="also show the method's size and the cost of a cell on this suite")
    add("--results", type=Path, default=Path("results/runs"), metavar="DIR", help="with records")
    add_device(parser)


def show(arguments: argparse.Namespace) -> int:
    """Show a plug-in: settings with sources, the paper's numbers, cost."""
    info = registry.get(arguments.kind, arguments.name)
    print(describe_plugin(info, registry.config_fields(info)))
    if info.kind == "method":
        print(paper_results(info.name), end="")
        if arguments.suite:
            print(size_and_cost(info.name, arguments.suite, arguments.results, arguments.on))
        else:
            print("\nsize and cost depend on the suite: add --suite NAME")
    return 0


def describe_plugin(info: registry.PluginInfo, fields: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a description of a plug-in: its settings with the sources of their defaults."""
    lines = [info.doc.strip(), ""]
    if info.constants.get("paper"):
        lines.append(f"paper: {info.constants['paper']}")
    if info.constants.get("techniques"):
        lines.append(f"techniques: {', '.join(info.constants['techniques'])}")
    if info.constants.get("train_defaults"):
        given = info.constants["train_defaults"].items()
        lines.append("training: " + ", ".join(f"{name} {value}" for name, value in given))
    code = len(info.path.read_text(encoding="utf-8").splitlines())
    lines.append(f"file: {info.path} ({code} lines)")
    if fields:
        lines += ["", f"settings (--set {info.name}.KEY=VALUE):"]
    defaults = {n: "required" if f["required"] else repr(f["default"]) for n, f in fields.items()}
    wide = max(map(len, fields), default=0), max(map(len, defaults.values()), default=0)
    for name, field in fields.items():
        text = f"  {name:<{wide[0]}}  {defaults[name]:<{wide[1]}}  {field['source']}"
        lines.append(text.rstrip())
    return "\n".join(lines)


def paper_results(method: str) -> str:
    """Return a method's numbers in the HiLo paper's main tables, empty if there are none."""
    from gcdbench.report import paper_numbers

    rows = [
        triple
        for table in ("ssb_c", "domainnet")
        for triple in paper_numbers.triples(table)
        if (triple.method, triple.variant) == (paper_numbers.title(method), "")
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
        lines.append(f"  {paper_numbers.dataset_title(dataset) or dataset:<16} {'   '.join(cells)}")
    return "\n".join(lines) + "\n"


def size_and_cost(method: str, suite: str, results: Path, device: str = DEFAULT) -> str:
    """Return a method's trained parameters and estimated cost on a suite's first dataset."""
    from gcdbench.core.suites import Suite
    from gcdbench.experiment import records
    from gcdbench.experiment.plan import Request, make_cells
    from gcdbench.nn.load import load_backbone
    from gcdbench.runner.cost import CostModel
    from gcdbench.training.assemble import make_loader, make_model

    first = next(iter(Suite.load(suite).datasets))
    cell = make_cells(Request(suite, (method,), (first,)))[0]
    backbone, given = load_backbone(cell.backbone), cell.task.num_classes
    loader = make_loader(cell, backbone.image_size)
    number = given or cell.problem().num_classes
    model = make_model(cell, loader, backbone, num_classes=number)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    inside = sum(p.numel() for p in model.backbone.parameters() if p.requires_grad)
    every = sum(p.numel() for p in model.parameters())
    cost = CostModel(records.readable(results), device).estimate(cell)
    images, flops, seconds = Total.of([cost]).words
    return (
        f"\non {first} of {suite}, with its backbone {cell.backbone.name}:\n"
        f"  size  {_millions(trained)} trained parameters ({_millions(inside)} of the backbone's, "
        f"{_millions(trained - inside)} in heads) of {_millions(every)}\n"
        f"  cost  {images} images in {cell.train.epochs} epochs, {flops} FLOPs, "
        f"{seconds} on one {device}\n"
        f"        ({cost.basis})"
    )


def _millions(number: int) -> str:
    return f"{number / 1e6:.2f} M"
