"""Whether an object that came out of a message is the same as the one that went in: then its maker may go on with that one."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["alike"]

# Packages whose objects are values: no locks, no files, no identity. What is of another package stays as it is.
_VALUES = frozenset({"pandas", "pyarrow", "scipy", "sparse"})
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})


def alike(old: object, new: object) -> bool:
    """Whether nobody can tell them apart, their values being equal: types, the order of elements in memory, attributes."""
    kind = type(old)
    if kind is not type(new):
        return False
    if kind in _PLAIN:
        return True
    if isinstance(old, np.ndarray):
        return kind is np.ndarray and _arrays(old, new)
    if kind in (list, tuple):
        return len(old) == len(new) and all(map(alike, old, new))  # type: ignore[call-overload]
    if kind is dict:
        return list(old) == list(new) and all(map(alike, old.values(), new.values()))  # type: ignore[attr-defined]
    if isinstance(old, np.generic):
        return True
    return kind.__module__.partition(".")[0] in _VALUES and _own(old) == _own(new)


def _arrays(old: np.ndarray[Any, Any], new: Any) -> bool:
    return (
        old.dtype == new.dtype
        and old.dtype.metadata == new.dtype.metadata
        and old.dtype.isalignedstruct == new.dtype.isalignedstruct
        and not old.dtype.hasobject
        and old.shape == new.shape
        and old.strides == new.strides
        and old.flags.writeable == new.flags.writeable
    )


def _own(obj: object) -> set[str]:
    """Public attributes that somebody gave the object, which its class does not have."""
    return {
        name
        for name in getattr(obj, "__dict__", ())
        if not name.startswith("_") and not hasattr(type(obj), name)
    }
