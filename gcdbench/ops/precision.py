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
            return function(*map(widen, args), **{k: widen(v) for k, v in kwargs.items()})

    return wrapper


def widen(x: Any) -> Any:
    """Widen a float16 or bfloat16 tensor to float32; leave anything else alone."""
    return x.float() if isinstance(x, Tensor) and x.dtype in _HALF else x


_HALF = (torch.float16, torch.bfloat16)
