"""Allocator hooks: GPU libraries get their memory from cableway, and give it back.

`cableway.cupy`, `cableway.torch` and `cableway.numba` use this. Memory that a library gives back is used again after all work is
complete that the GPUs of this process had been given by then.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from types import TracebackType
from typing import Any

from cableway import client
from cableway._core.library import check, failure, ffi, lib
from cableway._cuda import suballocation
from cableway.errors import DeviceError, LimitExceeded

__all__ = ["Use", "allocate", "begin", "free"]


class Use:
    """A library allocates from cableway until end(), or to the end of the `with`. Arrays stay valid after it."""

    __slots__ = ("_end",)

    def __init__(self, end: Callable[[], object]) -> None:
        self._end: Callable[[], object] | None = end

    def end(self) -> None:
        """The library allocates as before. May be repeated."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def __enter__(self) -> Use:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


def begin() -> None:
    """Memory comes over the process's connection of now.

    Raises:
        BrokerLost: no broker could be reached or started.
        DeviceError: this process was forked by one that had begun.
    """
    connection = client.current()
    if lib.cwpy_hook_begin(connection.pointer) < 0:
        raise DeviceError(
            'CUDA was in use when this process was forked; start it with the method "spawn"'
        )


def allocate(size: int, gpu: int) -> int:
    """The address of so many bytes on a GPU.

    Raises:
        LimitExceeded: no memory left there, or a limit of the broker.
        BrokerLost: the broker is gone.
    """
    suballocation.collect()
    address = lib.cwpy_hook_alloc(size, gpu, ffi.NULL)
    status = lib.cwpy_hook_status()
    if status == -errno.ECONNRESET:
        failure(status)  # forgets the lost connection: the next one is made here
        begin()
        address = lib.cwpy_hook_alloc(size, gpu, ffi.NULL)
        status = lib.cwpy_hook_status()
    if status == -errno.ENOMEM:
        raise LimitExceeded(f"no host memory to keep track of {size} bytes on cuda:{gpu}")
    check(status)
    return int(ffi.cast("uintptr_t", address))


def free(address: int, gpu: int, give: Any = lib.cwpy_hook_free, ffi: Any = ffi) -> None:
    """Gives memory of allocate() back. Serves also while the interpreter ends."""
    give(ffi.cast("void *", address), 0, gpu, ffi.NULL)
