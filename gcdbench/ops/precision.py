"""Full precision inside autocast, for losses whose inputs have half precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate `function` to run outside autocast, with half-precision inputs in float32.

    Temperatures of 0.04, logarithms of small probabilities and sums over all pairs of a batch are
    not accurate enough in half precision. float32 and float64 arguments pass unchanged.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        with torch.autocast(tensors[0].device.type, enabled=False):
            return function(*map(_widen, args), **{k: _widen(v) for k, v in kwargs.items()})

    return wrapper


def _widen(x: Any) -> Any:
    """Return a float16 or bfloat16 tensor as float32, anything else unchanged."""
    return x.float() if isinstance(x, Tensor) and x.dtype in _HALF else x


_HALF = (torch.float16, torch.bfloat16)
