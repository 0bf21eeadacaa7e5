"""The task queue of a Pool: the shared memory through which a parent and its workers pass tasks and answers.

`cw_pool` (ipc/cableway.h) lays it out in a memfd of the Pool's own. So no broker is needed to start a worker, with any start method.
It has no name that could be left behind: it goes with the last process that has it. This module has the memory, its size, and the
number of workers that may spin on this machine.
"""

from __future__ import annotations

import importlib
import os
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.process import BaseProcess
from typing import Any

from cableway import _dispatch

__all__ = ["PARENT_SPIN_SECONDS", "Memory", "TaskQueue", "spin_seconds", "spinners"]

PARENT_SPIN_SECONDS = (
    100e-6  # the wake-up of a sleeping worker (FACTS: about 50 us) and a short task
)
_CELLS_MIN, _CELLS_MAX, _CELLS_EACH = 256, 4096, 64
_ROOM_MIN = 32  # workers that a Pool can be resized to, at least
_CPUS_PER_SPINNER = 4


class TaskQueue:
    """How large the memory is.

    Attributes:
        workers: how many there can be at most.
        cells: tasks that are under way at most; others wait in the parent.
        groups: of workers, each with a queue of its own.
    """

    __slots__ = ("cells", "groups", "workers")

    def __init__(self, processes: int, groups: int = 1) -> None:
        if groups > _dispatch.GROUPS_MAX:
            raise ValueError(
                f"a Pool has at most {_dispatch.GROUPS_MAX} groups of workers, {groups} were asked for"
            )
        self.groups = groups
        self.workers = max(processes, _ROOM_MIN)
        self.cells = min(max(_CELLS_MIN, _CELLS_EACH * processes), max(_CELLS_MAX, self.workers))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole."""
        nbytes: int = _dispatch.pool_bytes(self.workers, self.cells, self.groups)
        if not nbytes:
            raise ValueError(
                f"a Pool has at most {_dispatch.WORKERS_MAX} workers, {self.workers} were asked for"
            )
        return nbytes


class Memory:
    """The memory of one task queue, mapped as long as this object lives. Pickled to a new worker, it is mapped there too.

    Args:
        nbytes: of it all.
        process: the class of the workers. A package of another name than multiprocessing (`multiprocess`, on which
            pathos stands) has its own way to pass a descriptor to a process that it starts.

    The parent keeps the descriptor until `close`, for workers to come; a mapping needs none. All of it is allocated at once,
    after the limits were looked at, and its size is sealed: nobody who touches it later is killed for want of it.

    Attributes:
        address: where it is mapped; at a page.

    Raises:
        LimitExceeded: no such memory can be had.
    """

    __slots__ = ("__weakref__", "_closing", "_fd", "_reduction", "address", "nbytes")

    def __init__(self, nbytes: int, process: type[BaseProcess] = BaseProcess) -> None:
        self._reduction = _reduction_of(process)
        self._fd = _dispatch.pool_allocate(nbytes)
        self._closing = weakref.finalize(self, os.close, self._fd)
        self._closing.atexit = False  # a Pool that ends then may still need it
        self._map(self._fd, nbytes)

    def close(self) -> None:
        """No worker comes any more. The mapping stays as long as somebody has this object. May be repeated."""
        self._closing()

    def _map(self, fd: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = _dispatch.pool_map(fd, nbytes)
        weakref.finalize(self, _dispatch.pool_unmap, self.address, nbytes).atexit = False

    def __reduce__(self) -> tuple[Callable[..., Memory], tuple[Any, int]]:
        return _received, (self._reduction.DupFd(self._fd), self.nbytes)


def _reduction_of(process: type[BaseProcess]) -> Any:
    """The module `reduction` of the package that starts such processes."""
    for base in getattr(process, "__mro__", ()):  # a context may give any callable
        if base.__name__ == BaseProcess.__name__ and base is not BaseProcess:
            try:
                return importlib.import_module(f"{base.__module__.rpartition('.')[0]}.reduction")
            except ImportError:
                break
    return reduction


def _received(descriptor: Any, nbytes: int) -> Memory:
    """In a new worker: the memory of the parent's task queue."""
    made = Memory.__new__(Memory)
    fd = descriptor.detach()
    try:
        made._map(fd, nbytes)
    finally:
        os.close(fd)
    return made


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def spinners() -> int:
    """How many idle workers of a group may spin for a task at a time, some 50 us each: none on a single CPU."""
    cpus = _cpus()
    return 0 if cpus < 2 else max(1, cpus // _CPUS_PER_SPINNER)


def spin_seconds() -> float:
    """How long a caller spins for an answer before it sleeps."""
    return PARENT_SPIN_SECONDS if _cpus() > 1 else 0.0
