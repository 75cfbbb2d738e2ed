"""Makes torch believe that this machine has one GPU, for the length of a context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import faiss
import torch
import torch.cuda.amp.common
import torch.nn.functional as F
import torch.utils._pytree as pytree
import torch.utils.data._utils.pin_memory
from torch import Tensor

from device.pretend.counts import current
from device.pretend.rules import DeviceError
from device.pretend.tensor import CUDA, DeviceMode, DeviceTensor, Machine


def _initialise() -> None:
    Machine.initialised = True


def _once_initialised(value: Any) -> Any:
    """Return a function of a device that fails before the first use of CUDA, as torch's does."""

    def answer(device: Any = None) -> Any:
        if not Machine.initialised:
            raise DeviceError("invalid device argument: CUDA is not initialised")
        return value

    return answer


class _Event:
    """An event; copies to the CPU that began before it have arrived when it is waited for."""

    def __init__(self, **_: Any) -> None:
        self.copies: list[tuple[Tensor, Tensor]] = []

    def record(self, *_: Any) -> None:
        self.copies, Machine.under_way = Machine.under_way, []

    def synchronize(self) -> None:
        current().sync("wait for an event")
        Machine.arrive(self.copies)

    def elapsed_time(self, other: _Event) -> float:
        return 0.0


@contextmanager
def one_gpu(*, initialised: bool = True) -> Iterator[None]:
    """Let torch find one GPU; ``initialised`` tells whether it has been used before."""
    Machine.initialised = initialised
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    with ExitStack() as stack:
        for owner, name, value in [*_cuda(), *_functions()]:
            stack.enter_context(patch.object(owner, name, value))
        for module in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
            types = getattr(import_module(module), "_foreach_supported_types", None)
            if types is not None and DeviceTensor not in types:
                types.append(DeviceTensor)
        # backward in this thread: a mode belongs to a thread
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(DeviceMode())
        yield


def _cuda() -> list[tuple[Any, str, Any]]:
    cuda = torch.cuda
    return [
        (cuda, "is_available", lambda: True),
        (cuda, "is_initialized", lambda: Machine.initialised),
        (cuda, "init", _initialise),
        (cuda, "_lazy_init", _initialise),
        (cuda, "device_count", lambda: 1),
        (cuda, "current_device", lambda: 0),
        (cuda, "set_device", lambda device: None),
        (cuda, "synchronize", lambda device=None: None),
        (cuda, "get_device_name", lambda device=None: "Pretend GPU"),
        (cuda, "get_device_properties", lambda device=None: SimpleNamespace(uuid="pretend")),
        (cuda, "is_bf16_supported", lambda *_, **__: True),
        (cuda, "reset_peak_memory_stats", _once_initialised(None)),
        (cuda, "max_memory_allocated", _once_initialised(0)),
        (cuda, "current_stream", lambda device=None: None),
        (cuda, "is_current_stream_capturing", lambda: False),
        (cuda, "Event", _Event),
    ]


def _functions() -> list[tuple[Any, str, Any]]:
    pinning = torch.utils.data._utils.pin_memory
    return [
        (torch, "tensor", _tensor(torch.tensor)),
        (torch, "as_tensor", _as_tensor(torch.as_tensor)),
        (F, "scaled_dot_product_attention", _attention),
        (faiss, "get_num_gpus", lambda: 0),  # it reads tensors by their address: there is none
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        (pinning, "pin_memory", lambda data, device=None: pytree.tree_map(_pinned, data)),
    ]


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _tensor(real: Any) -> Any:
    def tensor(
        data: Any, *, device: Any = None, requires_grad: bool = False, **more: Any
    ) -> Tensor:
        if not _is_cuda(device):
            return real(data, device=device, requires_grad=requires_grad, **more)
        return real(data, **more).to(CUDA).requires_grad_(requires_grad)

    return tensor


def _as_tensor(real: Any) -> Any:
    def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
        if isinstance(data, Tensor):
            return data.to(device=device or data.device, dtype=dtype or data.dtype)
        made = real(data, dtype=dtype)
        return made.to(CUDA) if _is_cuda(device) else made

    return as_tensor


def _attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, *, scale: Any = None, **_: Any
) -> Tensor:
    """Attend as torch does, in plain steps: the fused kernels know no tensors like ours."""
    if q.is_cuda and torch.is_autocast_enabled("cuda"):
        q, k, v = (x.to(torch.get_autocast_dtype("cuda")) for x in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    with torch.autocast("cuda", enabled=False):
        weights = ((q * scale) @ k.transpose(-2, -1)).float().softmax(-1)
        return weights.to(v.dtype) @ v


def _pinned(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x
