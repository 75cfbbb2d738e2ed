"""Weights that are named ``hf-hub:owner/name``: their file in the hub's cache, and their hash.

The cache is the one of ``huggingface_hub``, which other programs share. Nothing here imports torch;
``huggingface_hub`` is imported when it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from gcdbench.errors import UserError

PREFIX = "hf-hub:"
FILES = ("model.safetensors", "pytorch_model.bin")  # of a model on the hub, in timm's order
SECONDS = 10.0  # that the hub may take to answer
_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", re.ASCII)


def is_hub_name(weights: str) -> bool:
    """Return whether weights are named on the hub, and not by a file."""
    return weights.startswith(PREFIX)


def repository(weights: str) -> str:
    """Return the name of the hub's repository.

    >>> repository("hf-hub:timm/vit_base_patch16_224.dino@main")
    'timm/vit_base_patch16_224.dino'
    """
    return weights.removeprefix(PREFIX).partition("@")[0]


def check_hub_name(weights: str) -> None:
    """Raise a ValueError unless a name is ``hf-hub:owner/name``, or that with ``@revision``."""
    if not _NAME.fullmatch(weights.removeprefix(PREFIX)):
        raise ValueError(f"weights must be a file or {PREFIX}owner/name[@revision], got {weights}")


def local_file(weights: str) -> Path | None:
    """Return the file of weights on the hub if it is in the cache; the hub is not asked."""
    import huggingface_hub

    for name in FILES:
        place, file, revision = _place(weights, name)
        found = huggingface_hub.try_to_load_from_cache(place, file, revision=revision)
        if isinstance(found, str):
            return Path(found)
    return None


def published_hash(weights: str) -> str:
    """Return the sha256 of weights as the hub publishes it; nothing is downloaded.

    The hub is asked once for a file, briefly: its client would retry for most of a minute.
    """
    import huggingface_hub

    def ask(place: str, file: str, revision: str | None) -> str:
        address = huggingface_hub.hf_hub_url(place, file, revision=revision)
        return str(huggingface_hub.get_hf_file_metadata(address, timeout=SECONDS).etag)

    found = _first_file(weights, ask)
    if not re.fullmatch("[0-9a-f]{64}", found):  # a file that is not stored as a large one
        raise UserError(f"backbone.weights: the hub gives no sha256 of {weights}")
    return found


def weights_file(weights: str) -> Path:
    """Return the file of weights; those on the hub are downloaded unless they are in its cache."""
    if not is_hub_name(weights):
        return Path(weights)
    import huggingface_hub

    def ask(place: str, file: str, revision: str | None) -> str:
        return str(huggingface_hub.hf_hub_download(place, file, revision=revision))

    return local_file(weights) or Path(_first_file(weights, ask))


def _first_file(weights: str, ask: Callable[[str, str, str | None], str]) -> str:
    """Return what the hub answers for the first file that it has; raise a UserError if none."""
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    for file in FILES:
        try:
            return ask(*_place(weights, file))
        except Exception as error:  # the hub client's errors have no common base class
            if isinstance(error, EntryNotFoundError) and not isinstance(
                error,
                LocalEntryNotFoundError,  # the hub cannot be reached
            ):
                continue
            raise UserError(
                f"backbone.weights: {weights} is not on this machine and cannot be fetched "
                f"({type(error).__name__}); download the file elsewhere and give it with "
                "--set backbone.weights=FILE"
            ) from error
    raise UserError(f"backbone.weights: {weights} has no file {' or '.join(FILES)}")


def _place(weights: str, file: str) -> tuple[str, str, str | None]:
    """Return the repository, the file and the revision, as the hub's client takes them."""
    _, _, revision = weights.partition("@")
    return repository(weights), file, revision or None
