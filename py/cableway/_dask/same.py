"""Whether an object that came out of a message is the same as the one that went in: then its maker may go on with that one."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["alike", "may_be_another"]

# Packages whose objects are values: no locks, no files, no identity. What is of another package stays as it is.
_VALUES = frozenset({"pandas", "pyarrow", "scipy", "sparse"})
_DEPTH_MAX = 8  # of lists and dicts within each other
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})


def may_be_another(obj: Any, depth: int = _DEPTH_MAX) -> bool:
    """Whether it is worth while, and safe, to make another one of it: a plain array, or a value of those packages, or of such."""
    kind = type(obj)
    if kind in (list, tuple, dict):
        parts = obj.values() if kind is dict else obj
        return depth > 0 and all(may_be_another(part, depth - 1) for part in parts)
    if isinstance(obj, np.ndarray):
        return kind is np.ndarray and not obj.dtype.hasobject
    return kind in _PLAIN or isinstance(obj, np.generic) or _is_value(kind)


def _is_value(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _VALUES


def alike(old: Any, new: Any) -> bool:
    """Whether nobody can tell them apart, their values being equal: types, the order of elements in memory, attributes."""
    kind = type(old)
    if kind is not type(new):
        return False
    if kind in _PLAIN:
        return True
    if isinstance(old, np.ndarray):
        return kind is np.ndarray and _arrays(old, new)
    if kind in (list, tuple):
        return len(old) == len(new) and all(map(alike, old, new))
    if kind is dict:
        return list(old) == list(new) and all(map(alike, old.values(), new.values()))
    if isinstance(old, np.generic):
        return True
    return _is_value(kind) and _own(old) == _own(new)


def _arrays(old: np.ndarray[Any, Any], new: Any) -> bool:
    return (
        old.dtype == new.dtype
        and old.dtype.metadata == new.dtype.metadata
        and old.dtype.isalignedstruct == new.dtype.isalignedstruct
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
