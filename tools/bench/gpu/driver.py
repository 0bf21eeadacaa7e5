"""The CUDA driver's own calls, by ctypes: what our figures on GPUs stand beside."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_cuda = ctypes.CDLL(os.environ.get("CABLEWAY_CUDA_DRIVER", "libcuda.so.1"))
FD = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def call(name: str, *arguments: Any) -> None:
    """One call; raises what it returns."""
    status = getattr(_cuda, name)(*arguments)
    if status:
        raise RuntimeError(f"{name}: CUDA error {status}")


def enter(gpu: int = 0) -> None:
    """Makes the primary context of a GPU current."""
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
    call("cuCtxSetCurrent", context)


def stream() -> ctypes.c_void_p:
    """A non-blocking stream."""
    made = ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(made), 1)
    return made


def event() -> ctypes.c_void_p:
    """An event that tells no time."""
    made = ctypes.c_void_p()
    call("cuEventCreate", ctypes.byref(made), 2)
    return made


def finish(of: ctypes.c_void_p) -> None:
    """Waits for a stream."""
    call("cuStreamSynchronize", of)


def pinned(size_bytes: int) -> int:
    """Host memory that the driver made."""
    at = ctypes.c_void_p()
    call("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(size_bytes), 0)
    assert at.value is not None
    return at.value


def free_pinned(at: int) -> None:
    """Ends what pinned() made."""
    call("cuMemFreeHost", ctypes.c_void_p(at))


def memory(size_bytes: int) -> int:
    """GPU memory by cuMemAlloc."""
    at = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size_bytes))
    return at.value


def free(at: int) -> None:
    """Ends what memory() made."""
    call("cuMemFree_v2", ctypes.c_uint64(at))


def copy(kind: str, target: int, source: int, size_bytes: int, on: ctypes.c_void_p) -> None:
    """kind: HtoD, DtoH or DtoD."""
    pointer = {"H": ctypes.c_void_p, "D": ctypes.c_uint64}
    call(
        f"cuMemcpy{kind}Async_v2",
        pointer[kind[3]](target),
        pointer[kind[0]](source),
        ctypes.c_size_t(size_bytes),
        on,
    )


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("order", ctypes.c_int),
        ("source", _Location),
        ("target", _Location),
        ("flags", ctypes.c_uint),
    )


class Batch:
    """Copies of one size that the driver takes by one call, where it has it (CUDA 13)."""

    def __init__(self, targets: list[int], sources: list[int], size_bytes: int) -> None:
        n = len(targets)
        self._to, self._of = (ctypes.c_uint64 * n)(*targets), (ctypes.c_uint64 * n)(*sources)
        self._sizes, self._count = (ctypes.c_size_t * n)(*[size_bytes] * n), ctypes.c_size_t(n)
        self._attributes = _Attributes(1)
        self._first = ctypes.c_size_t(0)

    def submit(self, on: ctypes.c_void_p) -> None:
        """Gives them to a stream; RuntimeError where there is no such call."""
        name = "cuMemcpyBatchAsync_v2"
        if not hasattr(_cuda, name):
            raise RuntimeError(f"the driver has no {name}")
        attributes, first = ctypes.byref(self._attributes), ctypes.byref(self._first)
        one = ctypes.c_size_t(1)
        call(name, self._to, self._of, self._sizes, self._count, attributes, first, one, on)


def peers(size_bytes: int, count: int) -> tuple[list[int], list[int]]:
    """Memory on the GPUs 0 and 1, each with access to the other's; GPU 0 is current afterwards."""
    contexts = []
    for gpu in (0, 1):
        enter(gpu)
        context = ctypes.c_void_p()
        call("cuCtxGetCurrent", ctypes.byref(context))
        contexts.append(context)
    found = []
    for mine, other in (contexts[::-1], contexts):
        call("cuCtxSetCurrent", mine)
        status = _cuda.cuCtxEnablePeerAccess(other, 0)
        assert status in (0, 704), status  # done, or done before
        found.append([memory(size_bytes) for _ in range(count)])
    return found[1], found[0]


def export(size_bytes: int, gpu: int = 0) -> int:
    """A descriptor of new memory that processes can share."""
    properties = _Properties(1, FD, _Location(1, gpu), None)
    handle, fd = ctypes.c_uint64(), ctypes.c_int()
    size = ctypes.c_size_t(size_bytes)
    call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), ctypes.c_uint64(0))
    call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, FD, ctypes.c_uint64(0))
    call("cuMemRelease", handle)
    return fd.value


def map_fd(fd: int, size_bytes: int, gpu: int = 0) -> int:
    """Imports and maps it."""
    handle, at, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t(size_bytes)
    zero = ctypes.c_uint64(0)
    call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), FD)
    call("cuMemAddressReserve", ctypes.byref(at), size, ctypes.c_size_t(0), zero, zero)
    call("cuMemMap", at, size, ctypes.c_size_t(0), handle, zero)
    access = _Access(_Location(1, gpu), 3)
    call("cuMemSetAccess", at, size, ctypes.byref(access), ctypes.c_size_t(1))
    call("cuMemRelease", handle)
    return at.value
