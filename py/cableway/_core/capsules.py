"""Arrays of other libraries whose dtype NumPy and `__cuda_array_interface__` cannot tell, by DLPack: PyTorch's bfloat16.

A tensor of int4 or uint4 of PyTorch goes out by DLPack as if its bytes were numbers of 8 bits each: it is known by the name
of its dtype, and its bytes are taken.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from cableway import _dlpack
from cableway._core import words
from cableway._core.layouts import Layout
from cableway._core.library import ffi, keeping

__all__ = ["Seen", "host_values", "look", "of_torch"]

_HOST = (1, 0)
_READ_ONLY = 1


class Seen(NamedTuple):
    """What a capsule says.

    Attributes:
        address: of element 0.
        device: DLPack's type and number.
        owner: what keeps the memory.
    """

    address: int
    device: tuple[int, int]
    layout: Layout
    readonly: bool
    owner: Any


def of_torch(obj: Any) -> str:
    """The word of a tensor of PyTorch's; "" of everything else."""
    name = words.torch_name(getattr(obj, "dtype", None))
    found = words.of_torch(name) if name else None
    return found.dtype if found is not None and found.dtype[0].isalpha() else ""


def look(obj: Any, **options: Any) -> Seen:
    """What obj says by DLPack.

    Args:
        options: of its `__dlpack__`, such as the stream.

    Raises:
        TypeError: its dtype is none that we have.
        BufferError: obj cannot be told by DLPack.
    """
    word, source = of_torch(obj), obj
    if word in ("int4_x2", "uint4_x2"):
        source = obj.view(sys.modules["torch"].uint8)
    capsule = source.__dlpack__(**options)
    address, device, shape, steps, code, bits, lanes, flags = _dlpack.look(capsule)
    row = words.of_text(word) if source is not obj else words.of_dlpack(code, bits, lanes)
    if row is None:
        raise TypeError(
            f"a {type(obj).__name__} of dtype {getattr(obj, 'dtype', '?')}, which is none here (DLPack's code {code}, {bits} "
            f"bits, {lanes} lanes); share its bytes, a view as unsigned integers"
        )
    strides = None if steps is None else tuple(step * row.size_bytes for step in steps)
    layout = Layout.of_row(shape, row, strides)
    return Seen(address, device, layout, bool(flags & _READ_ONLY), (obj, capsule))


def host_values(obj: Any) -> np.ndarray[Any, Any] | None:
    """An array of another library in host memory as NumPy sees it, not copied, if NumPy could not take it by itself; else
    None.
    """
    if isinstance(obj, (np.ndarray, np.generic, list, tuple, int, float)):
        return None
    if not of_torch(obj) and hasattr(obj, "__array__"):
        return None
    place = getattr(obj, "__dlpack_device__", None)
    if place is None or tuple(place()) != _HOST or hasattr(obj, "__array_interface__"):
        return None
    seen = look(obj)
    layout = seen.layout
    if not words.word(layout.dtype):
        return None
    low = ffi.cast("char *", seen.address - layout.origin)
    memory: Any = ffi.buffer(keeping(low, seen.owner), layout.span) if layout.size else b""
    found: np.ndarray[Any, Any] = np.ndarray(
        layout.shape, layout.dtype, memory, layout.origin, layout.strides
    )
    if seen.readonly:
        found.flags.writeable = False
    return found
