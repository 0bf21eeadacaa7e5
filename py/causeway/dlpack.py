"""DLPack: capsules through which any array library takes our memory without a copy.

>>> import numpy as np, causeway as cw
>>> w = cw.asarray([1.5, 2.5])
>>> np.from_dlpack(w)
array([1.5, 2.5])
"""

from __future__ import annotations

from typing import Any

import numpy as np

from causeway import _dlpack
from causeway.views import Lease

__all__ = ["HOST", "export"]

HOST = (1, 0)  # kDLCPU
_READ_ONLY = 1
_IS_COPIED = 2
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


def export(
    lease: Lease,
    array: np.ndarray[Any, Any],
    *,
    max_version: tuple[int, int] | None,
    copied: bool,
) -> object:
    """A capsule over array, whose memory lease keeps. Versioned if the consumer understands it.

    Raises:
        BufferError: DLPack cannot tell the dtype, the strides, or (unversioned) that it is read-only.
    """
    dtype = array.dtype
    code = _CODES.get(dtype.kind)
    if code is None or not dtype.isnative or dtype.char in "gG":
        raise BufferError(
            f"DLPack has no dtype for {dtype}; take causeway.Array.numpy(), or convert to a native number"
        )
    if any(step % dtype.itemsize for step in array.strides):
        raise BufferError(
            "DLPack tells strides in whole elements, which these are not; copy the array first"
        )
    versioned = max_version is not None and max_version[0] >= 1
    readonly = not array.flags.writeable
    if readonly and not versioned:
        raise BufferError(
            "the array is read-only and the consumer's DLPack (before 1.0) cannot tell so; "
            "copy it first, or get the array without readonly=True"
        )
    flags = (_READ_ONLY if readonly else 0) | (_IS_COPIED if copied else 0)
    return _dlpack.capsule(
        lease,
        array.__array_interface__["data"][0],
        array.shape,
        tuple(step // dtype.itemsize for step in array.strides),
        code,
        dtype.itemsize * 8,
        flags,
        versioned,
    )
