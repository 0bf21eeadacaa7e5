"""`In`, `Out`, `InOut`: the caller's arrays, which a task gets on its worker's GPU. PyCUDA has the same for kernels.

>>> import numpy as np, cableway as cw
>>> x, y = np.arange(4.0), np.empty(4)
>>> def double(x, y):
...     y.copy_from(2 * np.asarray(x))
>>> with cw.Pool(1, context="fork") as pool:   # devices="cuda": x and y are on the GPU there
...     pool.apply(double, (cw.In(x), cw.Out(y)))
>>> y.tolist()
[0.0, 2.0, 4.0, 6.0]
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import itemgetter
from typing import Any

import numpy as np

from cableway._core import capsules, dtypes
from cableway._core.leases import bounds
from cableway.array import Array

__all__ = ["In", "InOut", "Out", "check_distinct", "overlap"]

_LOOK_AT = 65536  # arguments of one call that are looked at for memory given twice
_DEPTH = 4
_made = [False]  # whether this process has ever made an Out; most have not, and pay nothing
_begin = itemgetter(0)
_TooHard: Any = getattr(np, "exceptions", np).TooHardError
_OVERLAP_WORK: Any = 100_000  # steps to find out whether two strided arrays share an element


class _Transfer:
    """Holds an array until its task has ended."""

    __slots__ = ("array",)
    array: Any  # a NumPy array, or an Array

    def __repr__(self) -> str:
        return f"cableway.{type(self).__name__}({self.array!r})"

    def __reduce__(self) -> Any:
        raise TypeError(
            f"cableway.{type(self).__name__} is for arguments of a task of cableway's Pool or Executor, and cannot be sent "
            "elsewhere; give the array itself"
        )


class In(_Transfer):
    """An argument that the task gets as a `cableway.Array` of its own: on its worker's GPU, or in host memory if the Pool has
    no devices. The task may write to it; nothing comes back.

    The array is read when the task is sent, or, if it is a `cableway.Array`, at any time until the task begins. An array on a
    GPU is passed as without In: if the task runs on that GPU it gets the array itself, and others see what it writes.

    Args:
        array: array-like, without Python objects.

    Raises:
        TypeError: its dtype holds objects, or it has a mask.
    """

    __slots__ = ()

    def __init__(self, array: Any) -> None:
        if not isinstance(array, Array):
            if isinstance(array, np.ma.MaskedArray):
                raise TypeError(
                    "a masked array's mask would be lost; give array.filled(), and the mask as another argument"
                )
            of_library = capsules.host_values(array)
            array = np.asarray(array) if of_library is None else of_library
            dtypes.encode(array.dtype)
        self.array = array


class Out(_Transfer):
    """An argument that the task fills. The function gets a `cableway.Array` of this shape and dtype, with undefined contents, on
    its worker's GPU, or in host memory if the Pool has no devices. When the function has returned and its GPU work is
    complete, its values are copied into the caller's array.

    If the task raises, or its worker dies, the caller's array does not change. Do not write to it while the task runs. Two tasks
    at a time cannot have the same array as Out.

    Args:
        array: a NumPy array that can be written, of any strides, or a `cableway.Array` on the host.

    Raises:
        TypeError: it is none of these, or holds objects.
        ValueError: it is read-only.
    """

    __slots__ = ()

    def __init__(self, array: Any) -> None:
        kind = type(self).__name__
        if isinstance(array, Array):
            if array.device != "cpu":
                raise TypeError(
                    f"{kind} is for host memory that a copy is to come back to, and this array lies on {array.device}: "
                    "give it itself, the task writes into it"
                )
            writeable = not array.readonly
        elif isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray):
            dtypes.encode(array.dtype)
            writeable = array.flags.writeable
        else:
            raise TypeError(
                f"{kind} needs a NumPy array or a cableway.Array, which the result is written into, "
                f"not {type(array).__name__}"
            )
        if not writeable:
            raise ValueError(
                f"{kind} needs an array that can be written, and this one is read-only"
            )
        self.array = array
        _made[0] = True


class InOut(Out):
    """`In` and `Out` in one: the task gets the values of the array and may change them, and they are copied back. See both."""

    __slots__ = ()


def check_distinct(items: Any) -> None:
    """Refuses arguments of one call in which an element is the Out of two tasks, or of one task twice.

    Raises:
        ValueError: an element is the Out of two tasks, or twice of one; no task was begun.
    """
    if not _made[0]:
        return
    found: list[tuple[int, int, int, np.ndarray[Any, Any]]] = []
    longest = 0
    for one in _outs_in(items):
        values = one.array.numpy() if isinstance(one.array, Array) else one.array
        low, high = bounds(values)
        if overlap(found, longest, low, high, values):
            raise ValueError(
                "an array is the Out of two items of this call, or parts of it are, and one result would overwrite the "
                "other; give each its own"
            )
        insort(found, (low, high, len(found), values))
        longest = max(longest, high - low)


def overlap(
    sorted_spans: list[tuple[int, int, int, np.ndarray[Any, Any]]],
    longest: int,
    low: int,
    high: int,
    values: np.ndarray[Any, Any],
) -> bool:
    """Whether an array has an element in common with other arrays, or it would take too long to find out.

    Args:
        sorted_spans: for each other array the addresses where it begins and ends, a number, and the array.
        longest: bytes of the longest of them.
        low: the address where the array begins.
        high: the address where it ends.
        values: the array.
    """
    for i in range(bisect_left(sorted_spans, high, key=_begin), 0, -1):
        begin, end, _, other = sorted_spans[i - 1]
        if begin + longest <= low:  # it has ended before, and so have all that begin before it
            break
        if end > low:
            try:
                if np.shares_memory(values, other, max_work=_OVERLAP_WORK):
                    return True
            except _TooHard:
                return True
    return False


def _outs_in(items: Any) -> list[Out]:
    found: list[Out] = []
    level = list(items)
    for _ in range(_DEPTH):
        kinds = set(map(type, level))
        if kinds & {Out, InOut}:
            found.extend(one for one in level if isinstance(one, Out))
        if not kinds & {tuple, list, dict}:
            break
        below: list[Any] = []
        for one in level:
            if isinstance(one, (tuple, list)):
                below.extend(one)
            elif isinstance(one, dict):
                below.extend(one.values())
            if len(below) > _LOOK_AT:
                break
        level = below
    return found
