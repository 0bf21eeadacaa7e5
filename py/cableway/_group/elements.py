"""What an operation of a group is given, as the library wants it: an address, an array of ours or none, elements and dtype.

Here in host memory; `gpu` has what lies on GPUs, and what calls this module for the rest.

>>> import numpy as np
>>> found = send(np.arange(6, dtype="f4").reshape(2, 3))
>>> found.size, found.text, found.array
(6, b'<f4', 0)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cableway import _dispatch
from cableway._core import dtypes, leases
from cableway._core.library import ffi
from cableway._cuda import stream_order
from cableway.array import Array

__all__ = ["Elements", "apart", "like", "overlap", "receive", "send", "text_of"]

_FIND_BYTES = 160  # of fewer, all that is sent goes with the call (GROUP_INLINE_MAX)
_texts: dict[np.dtype[Any], bytes] = {}


# Whether the arrays of this NumPy are read without a call to it.
READS_NDARRAYS = _dispatch.elements_types(np.ndarray, leases.Lease, _texts, stream_order.marks())


class Elements:
    """Contiguous elements in host memory.

    Attributes:
        address: of element 0.
        array: address of the `cw_array` that they lie in, 0 if their memory is not ours.
        size: number of elements.
        dtype: of one.
        text: the same for the library.
        owner: what keeps the memory.
        told: of those on a GPU, else None.
    """

    __slots__ = ("address", "array", "dtype", "owner", "size", "text")
    told: Any = None

    def __init__(self, values: np.ndarray[Any, Any], lease: Any, owner: Any) -> None:
        self.owner = owner
        self.size = values.size
        self.dtype = values.dtype
        self.text = text_of(values.dtype)
        self.address = values.__array_interface__["data"][0] if values.size else 0
        self.array = 0
        if lease is not None and type(lease) is leases.Lease:
            self.array = int(ffi.cast("uintptr_t", leases.usable(lease)))


def text_of(dtype: np.dtype[Any]) -> bytes:
    """A dtype as the library has it."""
    found = _texts.get(dtype)
    if found is None:
        found = dtypes.encode(dtype).encode()
        if dtype.names is None and dtype.metadata is None:
            _texts[dtype] = found
    return found


def _seen(what: Any, name: str) -> Elements:
    """The elements of an array of cableway or of NumPy."""
    lease: leases.Lease | None
    if isinstance(what, Array):
        values, lease = what._exact(), what._open_lease()
    else:
        values = what
        lease = leases.find(values) if values.nbytes > _FIND_BYTES else None
    if not values.flags.c_contiguous:
        raise ValueError(
            f"{name}: the elements of an operation are contiguous, and these have strides {values.strides} for shape "
            f"{values.shape}: pass numpy.ascontiguousarray() of them"
        )
    return Elements(values, lease, (what, values))


def send(what: Any, name: str = "send") -> Elements:
    """The elements of what is sent: an array, or what NumPy makes one of.

    Raises:
        TypeError: it has Python objects as elements.
        ValueError: it is an array that is not contiguous, or nothing that NumPy makes an array of.
    """
    if not isinstance(what, (Array, np.ndarray)):
        try:
            what = np.asarray(what, order="C")
        except ValueError as error:
            raise ValueError(
                f"{name}: NumPy makes no array of this {type(what).__name__} ({error}); in place of mpi4py's [array, type] pass the "
                "array, whose dtype counts"
            ) from None
    return _seen(what, name)


def receive(what: Any, name: str = "out") -> Elements:
    """The same of what is received into.

    Raises:
        TypeError: it is no array of cableway or NumPy.
        ValueError: it is not contiguous, or read-only.
    """
    if what is None:
        raise TypeError(
            f"{name}: an array to receive into is needed here, of the dtype and size of what comes; None was given"
        )
    if not isinstance(what, (Array, np.ndarray)):
        raise TypeError(
            f"{name} is an array of cableway or NumPy, or one on a GPU, not {type(what).__name__}; of a tensor on the host pass "
            "`t.numpy()`"
        )
    found = _seen(what, name)
    if not found.owner[1].flags.writeable:
        raise ValueError(f"{name} is read-only: it cannot be received into")
    return found


def overlap(a: Elements, b: Elements) -> bool:
    """Whether the two share a byte."""
    end_a, end_b = (one.address + one.size * one.dtype.itemsize for one in (a, b))
    return bool(a.address < end_b and b.address < end_a)


def apart(sent: Elements) -> Elements:
    """The same elements in memory of their own."""
    values = sent.owner[1].copy()
    return Elements(values, None, (values, values))


def like(sent: Elements, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A new array to receive into."""
    return np.empty(shape, sent.dtype)
