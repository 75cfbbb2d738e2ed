"""The model card of exported weights: README.md, as model hubs show it."""

from __future__ import annotations

import json

from gcdbench.experiment.record import Record

CARD = """---
library_name: {library}
pipeline_tag: image-feature-extraction
tags: [gcdbench, generalized-category-discovery, domain-shift]
---
# {method} on {dataset}

Trained and scored by gcdbench {version}, in the setting of [HiLo](https://arxiv.org/abs/2408.04591).
{status}

| evaluation set | role | images | All | Old | New |
|---|---|---:|---:|---:|---:|
{rows}

Clustering accuracies in percent, protocol {protocol}. Seed {seed}, key `{key}`, backbone {backbone}
({blocks} of its blocks trained), {epochs} epochs, device {device}.

## Files
| file | what it holds |
|---|---|
| `model.safetensors` | the whole backbone after training, under timm's names |
| `weights.safetensors` | all that was trained: blocks, heads, memories |
| `record.json`, `predictions.npz` | settings, scores, learning curve, predictions |

## Use
```
gcdbench evaluate --weights FOLDER                         # predict and score again
gcdbench results import-weights FOLDER                     # for gcdbench plot pca, plot attention
gcdbench run --suite SUITE --set backbone.name={backbone} --set backbone.weights=hf-hub:OWNER/NAME
```
`FOLDER` is this folder, or `hf-hub:OWNER/NAME` once it is on the hub.

## Settings
```json
{settings}
```
"""
QUICK = "\n**A smoke test (`--quick`), not a result.**\n"


def model_card(record: Record, *, library: str) -> str:
    """Return the text of the model card of a record's weights."""
    rows = [
        f"| {_cell(name)} | {_cell(one.role)} | {one.n} | {_percent(one.all)} "
        f"| {_percent(one.old)} | {_percent(one.new)} |"
        for name, one in record.sets.items()
    ]
    return CARD.format(
        library=library,
        method=record.method,
        dataset=record.dataset,
        version=record.provenance.versions.get("gcdbench", ""),
        status=QUICK if record.limit is not None else "",
        rows="\n".join(rows),
        protocol=record.settings.get("protocol", ""),
        seed=record.seed,
        key=record.key,
        backbone=record.backbone_name,
        blocks=record.backbone.get("train_blocks"),
        epochs=record.epochs,
        device=record.provenance.device,
        settings=json.dumps(record.settings, indent=1),
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def _cell(text: str) -> str:
    """Return a text that cannot end a cell of a table."""
    return text.replace("|", "\\|")
