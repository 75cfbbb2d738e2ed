"""What training changes in a model, and the file of it next to a cell's record.

The untouched part of the pretrained backbone is left out: it comes from the file that the cell's
settings name. Everything else that a model owns counts, whether it is frozen or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from gcdbench.core.files import write_atomically
from gcdbench.errors import UserError
from gcdbench.experiment.records import WEIGHTS
from gcdbench.nn.backbone import Backbone
from gcdbench.training.compose import Composed


@dataclass(frozen=True)
class Kept:
    """The weights of a cell."""

    path: Path
    num_classes: int  # that was passed to the method
    tensors: dict[str, Tensor]

    def restore(self, model: nn.Module) -> None:
        """Put the weights into the model of the same cell."""
        wanted = trained_state(model)
        same = self.tensors.keys() == wanted.keys()
        if not same or any(self.tensors[n].shape != wanted[n].shape for n in wanted):
            raise UserError(f"{self.path}: these weights do not fit the method; remove the file")
        model.load_state_dict(self.tensors, strict=False)


def keep(folder: Path, key: str, model: Composed) -> None:
    """Write the trained weights and the buffers of a cell's model."""
    tensors = {name: t.detach().cpu().clone() for name, t in trained_state(model).items()}
    facts = {"key": key, "num_classes": str(model.method.task.num_classes)}
    write_atomically(folder / WEIGHTS, save(tensors, facts))


def read(folder: Path, key: str) -> Kept:
    """Return the stored weights of a cell; raise a UserError if there are none."""
    path = folder / WEIGHTS
    try:
        with safe_open(path, "pt") as file:
            facts = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise UserError(
            f"the trained weights are not in {folder}: train the cell again and keep them, "
            "gcdbench run ... --rerun --keep-weights"
        ) from error
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read as weights ({error}); remove the file") from error
    if facts.get("key") != key:
        raise UserError(f"{path}: these weights are of another cell; remove the file")
    return Kept(path, int(facts["num_classes"]), tensors)


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """Return all that a model owns by name, except the untouched part of pretrained backbones."""
    backbones = [module for module in model.modules() if isinstance(module, Backbone)]
    untouched = {id(tensor) for one in backbones for tensor in one.untouched()}
    state = model.state_dict(keep_vars=True)
    return {name: t.detach() for name, t in state.items() if id(t) not in untouched}
