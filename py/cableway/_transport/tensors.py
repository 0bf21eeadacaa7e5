"""How PyTorch tensors and CuPy arrays travel in an item of a Queue and, with `cableway.torch.share()`, in everything else that
multiprocessing pickles.

    memory of cableway  as a handle, without a copy: both ends see the same memory, as with PyTorch's own Queue. Such arrays are those
                        that a library made in memory of cableway (`cableway.torch.use()`), those that came from another process in
                        this way, and those of `Array.torch()`
    on a GPU            one copy on that GPU, as a handle
    in host memory      one copy: in a Queue as a NumPy array; with share() as an array of cableway, which is sent as a handle, or by
                        value if it has fewer than 256 KiB

All else is pickled as its library does it: sparse, quantised and non-leaf tensors, and other devices.

A Queue copies on a GPU in the library's current stream while the item is put. put() returns when the copy is complete, so that
neither the caller's array nor its process has to stay for it.

Owner: the process that pickles. The death of one end takes nothing from the other: an array of cableway lives until the last process
has let go of it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cableway import create
from cableway._array import copies
from cableway._core import leases
from cableway._core.layouts import Layout
from cableway._cuda import interop
from cableway._transport import external_arrays
from cableway._transport.rebuilt_tensors import Rebuild, rebuild
from cableway.array import Array
from cableway.array import make as make_array

__all__ = ["SHARED_BYTES", "Tensors"]

SHARED_BYTES = 256 << 10  # of a host tensor that is copied into an array of its own
_Reduction = Callable[[Any], Any]
_BY_BYTES = {1: "uint8", 2: "int16"}  # how NumPy sees what it has no dtype for


class _OnHost(NamedTuple):
    """A tensor in host memory.

    Attributes:
        values: its memory, as NumPy sees it.
        how: what makes it a tensor again.
    """

    values: np.ndarray[Any, Any]
    how: Rebuild


def _on_host(torch: Any, tensor: Any) -> _OnHost | None:
    """None: it lies elsewhere, or is none that NumPy could see."""
    odd = tensor.layout is not torch.strided or (tensor.requires_grad and not tensor.is_leaf)
    if tensor.device.type != "cpu" or odd:
        return None
    plain, name = tensor.detach(), str(tensor.dtype).partition(".")[2]
    try:
        if not name.startswith(("bfloat", "float8")):
            return _OnHost(plain.numpy(), ("torch", "", tensor.requires_grad))
        seen = plain.view(getattr(torch, _BY_BYTES[tensor.element_size()])).numpy()
    except (TypeError, RuntimeError):
        return None
    return _OnHost(seen, ("torch", name, tensor.requires_grad))


def _of_ours(values: np.ndarray[Any, Any]) -> Array | None:
    """An Array on the memory of values, if that is ours."""
    lease = leases.find(values) if values.size else None
    if lease is None:
        return None
    offset = values.__array_interface__["data"][0] - lease.address
    return make_array(lease, Layout(values.shape, values.dtype, values.strides), offset)


def _of_values(values: np.ndarray[Any, Any], how: Rebuild) -> Any:
    """A tensor of what came by value, or in a block."""
    import torch

    made = torch.from_numpy(values)
    if how[1]:
        made = made.view(getattr(torch, how[1]))
    return made.requires_grad_() if how[2] else made


def _parameter(data: Any, requires_grad: bool) -> Any:
    import torch

    return torch.nn.Parameter(data, requires_grad)


def _reduce_parameter(parameter: Any) -> Any:
    return _parameter, (parameter.detach(), parameter.requires_grad)


def _plain(obj: Any) -> Any:
    """obj, or of a tensor that stands for another's conjugate or negative the values themselves: PyTorch's own pickles lose that."""
    if type(obj).__module__ != "torch" or not (obj.is_conj() or obj.is_neg()):
        return obj
    return obj.resolve_conj().resolve_neg()


class _Begun(threading.local):
    """Copies that this thread has begun."""

    arrays: tuple[Array, ...] = ()


class Tensors:
    """How arrays of libraries are pickled.

    Args:
        shares: for a pickler that knows nothing of this: a host tensor that is not ours becomes an array of ours, and a copy on a
            GPU is complete at once. False: it becomes NumPy's, which the pickler brings along, and who pickles waits for `begun`.
    """

    __slots__ = ("_begun", "_shares", "lender")

    def __init__(self, shares: bool) -> None:
        self._shares = shares
        self._begun = _Begun()
        self.lender = (
            external_arrays.Lender(False)
            if shares
            else external_arrays.Lender(False, self._begin_copy)
        )

    def _begin_copy(self, told: interop.ExternalArray, stream_on: Callable[[int], int]) -> Array:
        made = copies.from_external(Array, told, stream=stream_on(told.gpu))
        self._begun.arrays += (made,)
        return made

    def begun(self) -> tuple[Array, ...]:
        """The copies that this thread has begun since it asked last. Their sources stay until `Array.wait` of each returns."""
        found = self._begun.arrays
        if found:
            self._begun.arrays = ()
        return found

    def lend(self, obj: Any) -> tuple[Array, Rebuild] | None:
        """An array of ours with what one of a library holds, without a copy where it can be, and how that is made again.
        None: `reductions` say how else.

        Raises:
            LimitExceeded: no memory left for a copy.
            BrokerLost: the broker is gone.
            DeviceError: the GPU, or the work that the array was made by, has failed.
        """
        of_torch = type(obj).__module__ == "torch"
        if of_torch and obj.requires_grad and not obj.is_leaf:
            return None  # PyTorch refuses: a graph ends with its process
        found = self.lender.lend(obj)
        if found is not None or not of_torch:
            return found
        seen = _on_host(sys.modules["torch"], obj)
        ours = None if seen is None else _of_ours(seen.values)
        return None if seen is None or ours is None else (ours, seen.how)

    def reductions(self, known: dict[Any, _Reduction]) -> dict[type, _Reduction]:
        """One for each class; known: how they would be pickled otherwise, if not by themselves."""
        found: dict[type, _Reduction] = {}
        for library, kind in external_arrays.kinds():
            found[kind] = partial(self._reduce, known.get(kind, _by_itself))
            parameter = getattr(getattr(sys.modules[library], "nn", None), "Parameter", None)
            if parameter is not None:
                found[parameter] = _reduce_parameter
        return found

    def _reduce(self, otherwise: _Reduction, obj: Any) -> Any:
        obj = _plain(obj)
        lent = self.lend(obj)
        if lent is not None:
            return rebuild, lent
        of_torch = type(obj).__module__ == "torch"
        seen = _on_host(sys.modules["torch"], obj) if of_torch else None
        if seen is None:
            return otherwise(obj)
        if self._shares and seen.values.nbytes >= SHARED_BYTES:
            return rebuild, (create.asarray(seen.values), seen.how)
        return _of_values, (seen.values, seen.how)


def _by_itself(obj: Any) -> Any:
    return obj.__reduce_ex__(5)
