"""GPU arrays of PyTorch and CuPy in the tasks and results of a Pool with devices: they travel as ours do.

By themselves both pickle the values, through the host, and PyTorch also the number of the GPU, which in a worker is another
one's. Here the array becomes a `causeway.Array` (without a copy where its library allocates from us, else by one on the
GPU) whose handle travels; the task gets an array of the same library on that memory, on its worker's GPU. As with any array of ours,
what the task writes is seen by the caller where no copy was made.

What cannot go so (on the host, sparse, empty) is pickled as its library has it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from causeway import create
from causeway.array import Array
from causeway.layouts import Layout, is_gapless

__all__ = ["kinds", "reductions"]

_CLASSES = {"torch": "Tensor", "cupy": "ndarray"}
_Reduction = Callable[[Any], Any]


def kinds() -> list[tuple[str, type]]:
    """The classes of arrays of the libraries that this process has imported."""
    found = []
    for library, name in _CLASSES.items():
        kind = getattr(sys.modules.get(library), name, None)
        if isinstance(kind, type):
            found.append((library, kind))
    return found


def reductions(known: dict[Any, _Reduction]) -> dict[type, _Reduction]:
    """How those are pickled.

    Args:
        known: how they would be otherwise, if not by themselves.
    """
    ways = {"torch": _reduce_torch, "cupy": _reduce_cupy}
    return {kind: partial(ways[library], known.get(kind, _by_itself)) for library, kind in kinds()}


def _by_itself(obj: Any) -> Any:
    return obj.__reduce_ex__(5)


# ---- PyTorch

_WITHOUT_NUMPY = {1: "uint8", 2: "int16"}  # dtypes that NumPy lacks travel as these, by their bytes


def _reduce_torch(otherwise: _Reduction, tensor: Any) -> Any:
    torch = sys.modules["torch"]
    odd = tensor.is_conj() or tensor.is_neg() or tensor.layout is not torch.strided
    if tensor.device.type != "cuda" or odd or not tensor.numel():
        return otherwise(tensor)
    plain, dtype = tensor.detach(), ""
    name = str(tensor.dtype).partition(".")[2]
    if name.startswith(("bfloat", "float8")):
        plain, dtype = plain.view(getattr(torch, _WITHOUT_NUMPY[tensor.element_size()])), name
    itemsize = tensor.element_size()
    strides = tuple(step * itemsize for step in plain.stride())
    if not is_gapless(Layout(tuple(plain.shape), np.dtype(f"V{itemsize}"), strides)):
        plain = plain.contiguous()
    return _torch_again, (create.asarray(plain), dtype, tensor.requires_grad)


def _torch_again(array: Array, dtype: str, requires_grad: bool) -> Any:
    torch: Any = importlib.import_module("torch")
    made = torch.from_dlpack(array)
    if dtype:
        made = made.view(getattr(torch, dtype))
    return made.requires_grad_() if requires_grad else made


# ---- CuPy


def _reduce_cupy(otherwise: _Reduction, array: Any) -> Any:
    if not array.size or array.dtype.names is not None:
        return otherwise(array)
    if not is_gapless(Layout(array.shape, array.dtype, array.strides)):
        array = sys.modules["cupy"].ascontiguousarray(array)
    return _cupy_again, (create.asarray(array),)


def _cupy_again(array: Array) -> Any:
    cupy: Any = importlib.import_module("cupy")
    return cupy.asarray(array)
