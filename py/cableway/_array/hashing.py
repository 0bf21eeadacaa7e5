"""Hashes of the contents of an array, for libraries that remember results by their arguments: joblib.hash (and Memory) and
dask's tokenize.

A pickle of an array names its memory, so no two pickles are equal. These libraries need a hash of the contents: equal contents,
equal hash, in every process. joblib's hasher is a pickler without a hook for a class of ours, so we recognise it by its stack
frame. For an array it hashes a pair with NumPy's view of the array, of which it hashes the bytes as usual; for a constant it
hashes the value.
"""

from __future__ import annotations

import hashlib
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from cableway._core import dtypes, words

if TYPE_CHECKING:
    from cableway.array import Array

__all__ = ["PROTOCOL", "by_joblib", "content", "digest", "of_value", "token"]

PROTOCOL = 3  # what joblib's hasher pickles by, and hardly anybody else


def by_joblib(frame: FrameType) -> bool:
    """Whether that frame is of joblib's hasher, which asks how to pickle an object."""
    hashing = sys.modules.get("joblib.hashing")
    return hashing is not None and isinstance(frame.f_locals.get("self"), hashing.Hasher)


def content(array: Array) -> tuple[Any, tuple[Any, ...]]:
    """What the hasher takes in place of a pickle: the values, from wherever they lie."""
    values, word = array.to("cpu").numpy(), words.word(array.dtype)
    # By its word, and not by what this process has for it: ml_dtypes may be missing in another.
    return _contents, (values,) if not word else (word, values.view(f"u{values.itemsize}"))


def of_value(value: Any) -> tuple[Any, tuple[Any, ...]]:
    """The same for a constant: the object that it stands for."""
    return _contents, (value,)


def _contents(*values: Any) -> Any:
    raise TypeError("a hash is no pickle: there is nothing to load")


def token(array: Array) -> tuple[Any, ...]:
    """Equal for equal contents: dtype, shape, and a hash of the bytes in C order."""
    values = np.ascontiguousarray(array.to("cpu").numpy())
    taken: Any = values.reshape(-1).view(np.uint8) if values.nbytes else b""
    return "cableway.Array", dtypes.encode(array.dtype), array.shape, digest(taken)


def digest(taken: Any) -> str:
    """A hash of bytes."""
    return hashlib.blake2b(taken, digest_size=20).hexdigest()
