"""CUDA's rules: what is refused, what is undefined, and what makes the host wait."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from device.pretend.counts import current, source_line

VIEWS = frozenset(
    {
        "_conj",
        "_reshape_alias",
        "_unsafe_view",
        "alias",
        "as_strided",
        "chunk",
        "detach",
        "diagonal",
        "empty",
        "empty_like",
        "empty_strided",
        "expand",
        "is_pinned",
        "lift_fresh",
        "movedim",
        "narrow",
        "new_empty",
        "new_empty_strided",
        "permute",
        "reshape",
        "resolve_conj",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unsqueeze",
        "view",
        "view_as_real",
    }
)
COPIES = frozenset({"copy_", "_to_copy", "copy"})
INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})
# operations whose result's shape or value the host must know
WAITING = frozenset(
    {
        "_linalg_svd",
        "_local_scalar_dense",
        "_unique2",
        "allclose",
        "bincount",
        "equal",
        "is_nonzero",
        "item",
        "linalg_svd",
        "masked_select",
        "nonzero",
        "repeat_interleave",
        "unique_consecutive",
        "unique_dim",
    }
)
SCALAR_OPERANDS = frozenset(
    {
        "_index_put_impl_",
        "fill",
        "fill_",
        "index_put_",
        "masked_fill",
        "masked_fill_",
        "where",
    }
)
NOT_FOR_HALF = frozenset({"_cdist_forward", "cdist", "_linalg_svd", "linalg_svd", "linalg_qr"})
NOT_FOR_INTEGERS = frozenset({"mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv"})
HALF = frozenset({torch.float16, torch.bfloat16})


class DeviceError(RuntimeError):
    """What a GPU would refuse or leave undefined."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text}, at {source_line()}")


def check_generator(name: str, generator: torch.Generator | None) -> None:
    """Refuse random numbers on the device from a generator of the CPU."""
    if generator is not None and generator.device.type != "cuda":
        raise DeviceError(f"{name}: expected a 'cuda' generator but found 'cpu'")


def check_same_device(
    func: Any, name: str, args: Any, here: list[Tensor], cpu: list[Tensor]
) -> None:
    """Refuse operands of two devices, but for scalars and for indices on the CPU."""
    if not (here and cpu) or name in COPIES:
        return
    scalars_pass = torch.Tag.pointwise in func.tags or name in SCALAR_OPERANDS
    strangers = [x for x in cpu if x.dim() or not scalars_pass]
    if not strangers:
        return
    if name not in INDEXING:
        shapes = [tuple(x.shape) for x in strangers]
        raise DeviceError(f"{name}: expected all tensors on cuda:0, but {shapes} are on the CPU")
    indexed, values = args[0], args[2] if len(args) > 2 else None
    if any(x is indexed for x in cpu):
        raise DeviceError(f"{name}: indices on cuda:0 for a tensor on the CPU")
    if any(x is values and x.dim() for x in cpu):
        raise DeviceError(f"{name}: values on the CPU for a tensor on cuda:0")
    current().sync("copy of an index to the device")


def check_dtypes(name: str, here: list[Tensor]) -> None:
    """Refuse what has no kernel on CUDA."""
    dtypes = {x.dtype for x in here}
    if name in NOT_FOR_INTEGERS and any(not d.is_floating_point for d in dtypes):
        raise DeviceError(f"{name} is not implemented for integers on CUDA")
    if name in NOT_FOR_HALF and dtypes & HALF:
        raise DeviceError(f"{name} is not implemented for half precision on CUDA")


def check_written(name: str, args: Any, kwargs: Any, out: Tensor) -> None:
    """Refuse different values written to one place: which of them stays is undefined.

    ``args`` hold CPU data; what was written is read again and must be all of it.
    """
    if name in ("index_put", "index_put_", "_index_put_impl_"):
        accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
        read, values = out[tuple(slice(None) if i is None else i for i in args[1])], args[2]
        defined = accumulate or _equal(read, values)
    elif name in ("index_copy", "index_copy_"):
        _, dim, index, values = args
        defined = _equal(out.index_select(dim, index), values)
    elif name in ("scatter", "scatter_") and isinstance(args[3], Tensor) and len(args) == 4:
        _, dim, index, values = args
        part = values[tuple(slice(length) for length in index.shape)]
        defined = _equal(out.gather(dim, index), part)
    else:
        return
    if not defined:
        raise DeviceError(f"{name}: different values for one place, undefined on CUDA")


def _equal(read: Tensor, values: Tensor) -> bool:
    values = values.to(read.dtype).expand(read.shape)
    return bool(((read == values) | (read.isnan() & values.isnan())).all())


def count(name: str, args: Any) -> None:
    """Count an operation on the device."""
    counts = current()
    counts.launches += name not in VIEWS
    if name in WAITING:
        counts.sync(name)
    masks = (torch.bool, torch.uint8)
    if name in INDEXING and any(getattr(i, "dtype", None) in masks for i in args[1]):
        counts.sync("mask as an index")


def count_copy(
    source: str, target: str, number: int, *, non_blocking: bool, pinned: bool = False
) -> None:
    """Count a copy from or to the device; one to the CPU is waited for unless it is pinned."""
    counts, direction = current(), f"{source} to {target}"
    counts.launches += 1
    counts.copied[direction] += number
    if (target == "cpu" and not pinned) or not non_blocking:
        counts.sync(f"copy {direction}")
