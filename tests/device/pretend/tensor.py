"""Tensors that say they are on ``cuda:0``, and the mode in which they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from device.pretend import rules
from device.pretend.counts import current

CUDA = torch.device("cuda", 0)


class Machine:
    """The state of the pretend machine: some questions must not be asked before CUDA is used."""

    initialised = False
    pinned: ClassVar[set[int]] = set()  # addresses of memory that the device can write to
    under_way: ClassVar[list[tuple[Tensor, Tensor]]] = []  # copies to pinned memory, and the data

    @classmethod
    def arrive(cls, copies: list[tuple[Tensor, Tensor]]) -> None:
        """Let copies to the CPU end: only from now on it reads what was sent."""
        for there, data in copies:
            there.copy_(data)
        copies.clear()


class DeviceTensor(torch.Tensor):
    """A tensor on the device; ``data_on_cpu`` holds its numbers."""

    data_on_cpu: Tensor

    @staticmethod
    def __new__(cls, data: Tensor, requires_grad: bool = False) -> DeviceTensor:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            data.size(),
            strides=data.stride(),
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            layout=data.layout,
            device=CUDA,
            requires_grad=requires_grad,
        )
        made.data_on_cpu = data
        Machine.initialised = True
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({self.data_on_cpu!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.data_on_cpu.detach().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Tensor:
        made = DeviceTensor(self.data_on_cpu.clone())
        if isinstance(self, nn.Parameter):
            return nn.Parameter(made, self.requires_grad)
        return made.requires_grad_(self.requires_grad)

    @property
    def nbytes(self) -> int:
        return self.data_on_cpu.nbytes

    def data_ptr(self) -> int:
        return self.data_on_cpu.data_ptr()

    def tolist(self) -> Any:
        current().sync("tolist")
        return self.data_on_cpu.tolist()

    def numpy(self, **_: Any) -> Any:
        raise rules.DeviceError("cannot convert a cuda:0 tensor to numpy; use Tensor.cpu() first")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def new_tensor(self, data: Any, dtype: Any = None, **_: Any) -> Tensor:
        return torch.as_tensor(data, dtype=dtype or self.dtype).to(CUDA)


class DeviceMode(TorchDispatchMode):
    """Sends every operation through the rules, so that tensors can be made on the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation of torch under the rules of the device."""
    name = func._schema.name.split("::")[1]
    if name in ("_to_copy", "lift_fresh"):
        return _move(func, args, kwargs)
    flat = list(_leaves((*args, *kwargs.values())))
    here = [x for x in flat if isinstance(x, DeviceTensor)]
    cpu = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, DeviceTensor)]
    asked = kwargs.get("device")
    on_device = bool(here) if asked is None else torch.device(asked).type == "cuda"
    if not here and not on_device:
        if not kwargs.get("pin_memory"):
            return func(*args, **kwargs)
        made = func(*args, **{**kwargs, "pin_memory": False})
        Machine.pinned.add(made.data_ptr())
        return made
    if name in ("pin_memory", "_pin_memory"):
        raise rules.DeviceError("only memory of the CPU can be pinned")
    if on_device:
        generators = [x for x in flat if isinstance(x, torch.Generator)]
        rules.check_generator(name, generators[0] if generators else None)
    rules.check_same_device(func, name, args, here, cpu)
    rules.check_dtypes(name, here)
    if name == "copy_" and cpu and _is_under_way(args, kwargs):
        return args[0]
    if name in rules.COPIES and cpu:
        _count_copy_between(args, kwargs)
    else:
        rules.count(name, args)
    plain_args, plain = _mapped(_unwrap, args), _mapped(_unwrap, kwargs)
    plain |= {"device": torch.device("cpu")} if "device" in plain else {}
    plain |= {"pin_memory": False} if plain.get("pin_memory") else {}
    out = _compute(func, name, plain_args, plain)
    if isinstance(out, Tensor):
        rules.check_written(name, plain_args, plain, out)
    if not on_device:
        return out
    known = {id(x.data_on_cpu): x for x in here}  # written in place: the same object comes back

    def wrapped(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return known[id(x)] if id(x) in known else DeviceTensor(x)

    return _mapped(wrapped, out)


def _leaves(values: Any) -> Iterator[Any]:
    """Yield the arguments of an operation, without the time that pytree takes for each of them."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value


def _mapped(change: Callable[[Any], Any], values: Any) -> Any:
    """Return arguments or results with each of them changed."""
    if isinstance(values, (list, tuple)):
        return type(values)([_mapped(change, value) for value in values])
    if isinstance(values, dict):
        return {name: _mapped(change, value) for name, value in values.items()}
    return change(values)


def _is_under_way(args: Any, kwargs: dict[str, Any]) -> bool:
    """Begin a copy to pinned memory that nobody waits for; the memory holds nothing until then."""
    there, source = args[0], args[1]
    non_blocking = bool(args[2]) if len(args) > 2 else kwargs.get("non_blocking", False)
    if isinstance(there, DeviceTensor) or not non_blocking:
        return False
    if there.data_ptr() not in Machine.pinned:
        return False
    rules.count_copy("cuda", "cpu", there.nbytes, non_blocking=True, pinned=True)
    Machine.under_way.append((there, _unwrap(source).clone()))
    there.fill_(float("nan") if there.is_floating_point() else 0)
    return True


def _unwrap(x: Any) -> Any:
    return x.data_on_cpu if isinstance(x, DeviceTensor) else x


def _move(func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """Copy to another device or type."""
    source = args[0]
    there = "cuda" if isinstance(source, DeviceTensor) else "cpu"
    asked = kwargs.get("device")
    target = there if asked is None else torch.device(asked).type
    out = func(_unwrap(source), *args[1:], **{k: v for k, v in kwargs.items() if k != "device"})
    if there != target:
        waits = not kwargs.get("non_blocking", False)
        rules.count_copy(there, target, out.nbytes, non_blocking=not waits)
    elif there == "cuda":
        current().launches += 1
    out = out.clone() if out is _unwrap(source) else out
    return DeviceTensor(out) if target == "cuda" else out


def _count_copy_between(args: Any, kwargs: dict[str, Any]) -> None:
    to, source = args[0], args[1]
    non_blocking = bool(args[2]) if len(args) > 2 else kwargs.get("non_blocking", False)
    kinds = ["cuda" if isinstance(x, DeviceTensor) else "cpu" for x in (source, to)]
    rules.count_copy(kinds[0], kinds[1], _unwrap(source).nbytes, non_blocking=non_blocking)


def _compute(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on CPU data, in float32 where the CPU has no kernel for half precision."""
    if name in ("_softmax", "_log_softmax") and args[2]:  # from half to float in one kernel
        return func(args[0].float(), args[1], False)
    if name in ("_softmax_backward_data", "_log_softmax_backward_data"):
        return func(*args[:3], args[0].dtype).to(args[3])
    try:
        return func(*args, **kwargs)
    except (NotImplementedError, RuntimeError) as error:
        dtypes = {x.dtype for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        half = dtypes & rules.HALF
        if "not implemented for" not in str(error) or not half:
            raise
        narrow = half.pop()
    wide_args, wide = pytree.tree_map_only(
        Tensor, lambda x: x.float() if x.dtype == narrow else x, (args, kwargs)
    )
    out = func(*wide_args, **wide)
    return pytree.tree_map_only(
        Tensor, lambda x: x.to(narrow) if x.dtype == torch.float32 else x, out
    )
