"""NumPy's large arrays in memory of ours, so that they can be shared without a copy.

NumPy asks the *handler* of the current context (`contextvars`) for the memory of an array (its NEP 49). `use` sets ours there: arrays of
at least so many bytes lie in blocks of a broker's. `handle` names the block of one for others, who must not hear of it before the array
is gone: whoever has it can write to it. What is refused, without a broker or beyond a limit, lies in memory of NumPy's own, as ever. The
rest is csrc/allocators/numpy_memory.c, which says what a fork does.

Owner: this process; any thread may use it. Deaths: as of all leases.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from cableway import client
from cableway._core.library import exported, ffi, lib

__all__ = ["allow", "handle", "used_bytes", "use"]

_SET, _GET = 304, 305  # PyDataMem_SetHandler and PyDataMem_GetHandler in NumPy's table, which stays
_NAME = b"mem_handler"  # of the capsules in which NumPy has handlers

_python = ctypes.pythonapi
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _table() -> Any:
    try:
        from numpy._core import multiarray  # NumPy 2
    except ImportError:
        from numpy.core import multiarray  # type: ignore[no-redef]
    address = _python.PyCapsule_GetPointer(multiarray._ARRAY_API, None)
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))


_numpy = _table()
_set = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(_numpy[_SET])
_get = ctypes.PYFUNCTYPE(ctypes.py_object)(_numpy[_GET])

_beneath: Any = None  # the handler of before, which gives what we do not
_ours: Any = None  # ours, in its capsule
_of: tuple[int, int, bool] | None = None  # its connection and least size, and whether it reuses


def use(connection: client.Connection, least_bytes: int, reused: bool) -> None:
    """From now on, in this context, NumPy's arrays of at least so many bytes come over this connection. A new thread has a context of its
    own; asyncio's tasks, and what they run in threads of Dask's, have their maker's.

    Args:
        reused: only where arrays of this connection lay before and memory is free now: to use new memory takes longer than NumPy's own.
    """
    global _beneath, _ours, _of
    wanted = connection.number, least_bytes, reused
    if _of != wanted:
        if _beneath is None:
            _beneath = _get()
        below = ffi.cast("void *", _python.PyCapsule_GetPointer(_beneath, _NAME))
        handler = lib.cwpy_numpy_handler(connection.pointer, least_bytes, reused, below)
        if handler == ffi.NULL:
            return
        if _ours is None:
            address = int(ffi.cast("uintptr_t", handler))
            _ours = _python.PyCapsule_New(address, _NAME, None)
        _of = wanted
    _set(_ours)


def handle(connection: client.Connection, array: np.ndarray[Any, Any]) -> bytes | None:
    """Names the block in which an array lies whole, for as long as somebody has it: this one, or who opens the block. None: it lies
    elsewhere, or not whole.

    Raises:
        BrokerLost: the broker is gone.
    """
    memory = ffi.cast("void *", array.__array_interface__["data"][0])
    found = lib.cwpy_numpy_array(connection.pointer, memory, array.nbytes)
    return None if found == ffi.NULL else bytes(ffi.buffer(exported(found, 0)))


def allow(allowed: bool) -> None:
    """Whether new arrays may lie in memory of ours, in whatever context."""
    lib.cwpy_numpy_allow(allowed)


def used_bytes() -> int:
    """How much memory of ours arrays of this process have, that nobody else can have."""
    return int(lib.cwpy_numpy_bytes())
