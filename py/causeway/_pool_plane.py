"""The plane of a Pool: the memory through which a parent and its workers pass tasks and answers.

It is one array of the parent, laid out by `cw_pool` (ipc/causeway.h); worker processes have it mapped by fork, or
open it as any other array. Here is how large it is, and who may spin on this machine.
"""

from __future__ import annotations

import os

from causeway import _dispatch

__all__ = ["PARENT_SPIN_SECONDS", "Plane", "spin_seconds", "spinners"]

PARENT_SPIN_SECONDS = (
    100e-6  # the wake-up of a sleeping worker (FACTS: about 50 us) and a short task
)
_CELLS_MIN, _CELLS_MAX, _CELLS_EACH = 256, 4096, 64
_ROOM_MIN = 32  # workers that a Pool can be resized to, at least
_CPUS_PER_SPINNER = 4


class Plane:
    """How large the memory is.

    Attributes:
        workers: how many there can be at most.
        cells: tasks that are under way at most; others wait in the parent.
    """

    __slots__ = ("cells", "workers")

    def __init__(self, processes: int) -> None:
        self.workers = min(max(processes, _ROOM_MIN), max(processes, _dispatch.WORKERS_MAX))
        self.cells = min(max(_CELLS_MIN, _CELLS_EACH * processes), max(_CELLS_MAX, self.workers))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole."""
        nbytes: int = _dispatch.pool_bytes(self.workers, self.cells)
        if not nbytes:
            raise ValueError(
                f"a Pool has at most {_dispatch.WORKERS_MAX} workers, {self.workers} were asked for"
            )
        return nbytes


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def spinners() -> int:
    """How many idle workers may spin for a task at a time, some 50 us each: none on a single CPU."""
    cpus = _cpus()
    return 0 if cpus < 2 else max(1, cpus // _CPUS_PER_SPINNER)


def spin_seconds() -> float:
    """How long a caller spins for an answer before it sleeps."""
    return PARENT_SPIN_SECONDS if _cpus() > 1 else 0.0
