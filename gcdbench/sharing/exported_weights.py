"""Trained weights of a cell as a folder that can be put on a model hub, and back.

The folder holds the cell's record, predictions and kept weights, the whole backbone under timm's
names (``model.safetensors``) and a model card. Neither the results folder nor the file that the
backbone was loaded from is needed to use it.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from gcdbench.core.config import build
from gcdbench.core.files import write_atomically
from gcdbench.core.hub_weights import check_hub_name, is_hub_name, repository
from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.names import OWN, check_name
from gcdbench.core.settings import BACKBONES, BackboneConfig, TaskConfig, TrainConfig
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import Record
from gcdbench.nn.parallel import SingleProcess
from gcdbench.runner.merge import Merged, merge, valid_records
from gcdbench.sharing.model_card import model_card
from gcdbench.training import weights
from gcdbench.training.assemble import Assembly, assemble
from gcdbench.training.evaluator import Evaluation, evaluate
from gcdbench.training.features.store import FeatureStore

MODEL = "model.safetensors"  # the name that timm and the hub look for
FILES = (records.RECORD, records.PREDICTIONS, records.WEIGHTS)  # of the cell itself
log = logging.getLogger(__name__)


def export_all(
    results: Path, out: Path, *, methods: tuple[str, ...] = (), data_root: Path | None = None
) -> Iterator[Path]:
    """Export every cell of a results folder that has kept weights; yield the new folders."""
    refused: list[tuple[Path, str]] = []
    for path, record in valid_records(results, refused):
        chosen = not methods or record.method in methods
        if chosen and (path.parent / records.WEIGHTS).exists():
            folder = _folder_for(record, out)
            export(path.parent, folder, data_root=data_root)
            yield folder
    for path, reason in refused:
        log.warning("%s %s", path, reason)


def _folder_for(record: Record, out: Path) -> Path:
    """Return the folder of an export, with a name that a repository may have."""
    name = f"{record.method}-{record.dataset}-seed{record.seed}"
    folder = out / re.sub(r"[^\w.-]", "-", name)
    there = records.read_record(folder / records.RECORD)
    taken = isinstance(there, Record) and there.key != record.key  # with other settings
    return folder.with_name(f"{folder.name}-{record.key}") if taken else folder


def export(cell_folder: Path, out: Path, *, data_root: Path | None = None) -> None:
    """Write the weights of a cell, its record and a model card into a folder."""
    record = _record(cell_folder)
    parts = restored(cell_folder, record, data_root=data_root)
    vit = parts.model.backbone.vit
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in vit.state_dict().items()}
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / MODEL, save(state, {"format": "pt"}))
    for name in FILES:
        shutil.copyfile(cell_folder / name, out / name)
    of_timm = record.backbone_name != "embedded"
    if of_timm:
        write_atomically(out / "config.json", json.dumps(_timm_config(record, vit)).encode())
    card = model_card(record, library="timm" if of_timm else "gcdbench")
    write_atomically(out / "README.md", card.encode())


def _timm_config(record: Record, vit: Any) -> dict[str, Any]:
    """Return what timm reads to build a model from the hub."""
    name = BACKBONES.get(record.backbone_name, record.backbone_name)
    given = vit.pretrained_cfg
    kept = ("mean", "std", "interpolation", "crop_pct")
    return {
        "architecture": name.split(".")[0],
        "num_classes": 0,
        "num_features": vit.num_features,
        "model_args": {"img_size": vit.patch_embed.img_size[-1]},
        "pretrained_cfg": {
            **{key: given[key] for key in kept if key in given},
            "input_size": [3, *vit.patch_embed.img_size],
            "num_classes": 0,
        },
    }


def import_weights(place: str, into: Path) -> Merged:
    """Put an exported cell into a results folder, where ``plot`` looks for weights."""
    folder = local_folder(place)
    record = _record(folder)
    weights.read(folder, record.key)  # refuses those of another cell
    with tempfile.TemporaryDirectory() as temporary:
        target = Path(temporary) / _cell_place(record)
        target.mkdir(parents=True)
        for name in FILES:
            shutil.copyfile(folder / name, target / name)
        return merge([Path(temporary)], into)


def _cell_place(record: Record) -> Path:
    """Return where a record belongs below a results folder; its names may be anybody's."""
    dataset = check_name(record.dataset, "the record's dataset", own=OWN)
    method = check_name(record.method, "the record's method")
    return Path(dataset, method, check_name(f"seed{record.seed}-{record.key}", "the record's key"))


def evaluate_again(
    place: str, *, data_root: Path | None = None, device: str = "cpu"
) -> tuple[Record, Evaluation]:
    """Predict and score with the weights of a cell; return its record and the new evaluation."""
    folder = local_folder(place)
    record = _record(folder)
    parts = restored(folder, record, data_root=data_root, device=device)
    return record, evaluate(parts.model, parts.problem, parts.encoder, parts.context, measure=True)


def restored(
    folder: Path, record: Record, *, data_root: Path | None = None, device: str = "cpu"
) -> Assembly:
    """Return the parts of a cell with the weights of a folder."""
    cell = cell_of(record, data_root)
    if cell.problem().fingerprint != record.fingerprints.get("problem"):
        raise UserError(f"the images or labels of {record.dataset} are not those of the record")
    kept = weights.read(folder, record.key)
    backbone = cell.backbone
    if (folder / MODEL).is_file():
        backbone = replace(backbone, weights=str(folder / MODEL))
    cell = replace(
        cell,
        backbone=backbone,
        task=TaskConfig(num_classes=kept.num_classes),  # nothing is estimated again
        train=replace(cell.train, view_bank=0),  # nothing is trained
    )
    where = torch.device(device)
    parts = assemble(cell, device=where, group=SingleProcess(), store=FeatureStore())
    if weights.trained_state(parts.model).keys() != kept.tensors.keys():
        parts.model.begin_fit(parts.context)  # it may build modules
        parts.model.to(where)
    kept.restore(parts.model)
    parts.encoder.forget()
    return parts


def cell_of(record: Record, data_root: Path | None = None) -> Cell:
    """Return the cell that a record is of, as its settings describe it."""
    settings = record.settings
    try:
        source, source_config = record.source
        spec = MethodSpec.parse(record.method)
        configs = dict(settings["config"])
        return Cell(
            dataset=record.dataset,
            spec=spec,
            seed=record.seed,
            source=source,
            source_config=dict(source_config),
            limit=record.limit,
            train=build(TrainConfig, settings["train"], "train"),
            backbone=build(BackboneConfig, settings["backbone"], "backbone"),
            task=build(TaskConfig, settings["task"], "task"),
            method_config=configs[spec.method],
            technique_configs={name: configs[name] for name in spec.techniques},
            data_root=data_root,
        )
    except UserError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # settings by hand
        text = f"{type(error).__name__}: {error}"
        raise UserError(f"{record.label}: its settings name no cell ({text})") from error


def local_folder(place: str) -> Path:
    """Return the folder of exported weights; what is on the hub is downloaded into its cache."""
    if not is_hub_name(place):
        if not Path(place).is_dir():
            raise UserError(f"no folder {place}; gcdbench results export-weights writes one")
        return Path(place)
    import huggingface_hub

    try:
        check_hub_name(place)
    except ValueError as error:
        raise UserError(str(error)) from error
    revision = place.partition("@")[2] or None
    try:
        kept = huggingface_hub.snapshot_download(
            repository(place), revision=revision, allow_patterns=[*FILES, MODEL], etag_timeout=10
        )
    except Exception as error:  # the hub client's errors have no common base class
        raise UserError(
            f"{place} is not on this machine and cannot be fetched ({type(error).__name__}); "
            "download the folder elsewhere and name it here"
        ) from error
    return Path(kept)


def _record(folder: Path) -> Record:
    """Return the record of a folder; raise a UserError if it, or what is with it, is damaged."""
    path = folder / records.RECORD
    record = records.read_record(path)
    if isinstance(record, records.Damaged):
        raise UserError(f"{path} {record.reason}")
    if reason := records.wrong_key(record) or records.wrong_predictions(folder, record):
        raise UserError(f"{path} {reason}")
    return record
