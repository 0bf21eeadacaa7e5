"""Two parts of an array that change places: NumPy and `random` shuffle everything that is not an ndarray by
`w[i], w[j] = w[j], w[i]`.

The right side gives two views of the memory. The first assignment overwrites what the second one is to copy, so one part would be
there twice and the other lost. To prevent this, each thread remembers the two parts that it took last, in their order. If the first
assignment matches them, the bytes that it overwrites are kept as long as the second part exists, and the second assignment writes
these. It does so only if both parts hold the same bytes, since a plain assignment would then change nothing.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from cableway._array import copies
from cableway._core import words
from cableway._core.arrays import is_array
from cableway._core.leases import copy_values
from cableway._dispatch import Fields

if TYPE_CHECKING:
    from cableway.array import Array

__all__ = ["assigned", "is_part", "taken"]


class _Half:
    """A first assignment that was made: what stands at `source` now, and before stood at `target`."""

    __slots__ = ("kept", "source", "target", "watch")

    def __init__(self, source: Any, target: Any, kept: Any, part: Any) -> None:
        self.source, self.target, self.kept = source, target, kept
        self.watch = None if part is None else weakref.ref(part, self._drop)

    def _drop(self, _: Any) -> None:
        self.kept = None


class _Taken(threading.local):
    """What this thread took last: places in memory, and of the last one a weak reference if it is an Array."""

    before: Any = None
    last: Any = None
    part: Any = None
    half: _Half | None = None


_taken = _Taken()


def _place(value: Any) -> Any:
    """Where a part lies."""
    if is_array(value):
        layout = value._layout_now()
        kind = (layout.dtype, words.word(layout.dtype))
        return id(value._open_lease()), value._offset, layout.shape, layout.strides, kind
    return np.asarray(value).__array_interface__["data"][0], value.dtype


def is_part(value: Any) -> bool:
    """Whether it is a view that an index may have given. Elements without fields are copies."""
    if isinstance(value, Fields):  # as `is_array` says, without a call: it is asked at each index
        return True
    return isinstance(value, np.void) and value.dtype.names is not None


def taken(part: Any) -> None:
    """An index has given a part, an Array or an element of a structured one."""
    state = _taken
    state.before, state.last, state.half = state.last, _place(part), None
    state.part = weakref.ref(part) if is_array(part) else None


def assigned(array: Array, key: Any, value: Any) -> bool:
    """Assigns a part to another one if that is one half of a swap. False: it is not, and nothing was done."""
    state, place = _taken, _place(value)
    half, state.half = state.half, None
    if half is not None and half.kept is not None and place == half.target:
        target = _target(array, key, value)
        if target is None or _place(target) != half.source or _bytes(target) != _bytes(value):
            return False
        _write(target, half.kept)
        return True
    if place != state.before or place == state.last:
        return False
    part = None if state.part is None else state.part()
    if part is None and is_array(value):
        return False  # nobody has it any more
    target = _target(array, key, value)
    if target is None or _place(target) != state.last:
        return False
    kept = target.copy()
    _write(target, value)
    state.half = _Half(place, state.last, kept, part)
    return True


def _target(array: Array, key: Any, value: Any) -> Any:
    """What value would be assigned to, if it is a part of its kind."""
    if is_array(value):
        found = array._at(key)
        alike = (
            is_array(found) and found.shape == value.shape and words.same(found.dtype, value.dtype)
        )
        return found if alike else None
    whole = key if isinstance(key, tuple) else (key,)
    if array._on_gpu() or not all(isinstance(part, (int, np.integer)) for part in whole):
        return None
    index = (*whole, Ellipsis)
    element = array.numpy()[index]
    return element if element.shape == () and element.dtype == value.dtype else None


def _on_host(part: Any) -> Any:
    return part.to("cpu").numpy() if is_array(part) else np.asarray(part)


def _bytes(part: Any) -> bytes:
    found: bytes = _on_host(part).tobytes()
    return found


def _write(target: Any, source: Any) -> None:
    if is_array(target) and target._on_gpu():
        copies.assign(target, source, spread=True)
    else:
        copy_values(_on_host(target), _on_host(source))
