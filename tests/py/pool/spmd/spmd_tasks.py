"""What ranks of `Pool.spmd`, and tasks beside them, do in tests."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

import cableway as cw


def who(g: cw.Group, *args: Any) -> tuple[int, int, int, Any]:
    """(pid, rank, size, the sum of all ranks)."""
    return os.getpid(), g.rank, g.size, g.allreduce(g.rank)


def hold(flags: cw.Array, index: int = 0) -> int:
    """Keeps its worker: writes its pid into a flag, and waits until flag 0 is set."""
    words = flags.numpy()
    words[index] = os.getpid()
    while not words[0]:
        time.sleep(0.001)
    return os.getpid()


def rank_holds(g: cw.Group, flags: cw.Array) -> int:
    """Each rank says that it was called, and waits until flag 0 is set; then for all."""
    hold(flags, 1 + g.rank)
    g.barrier()
    return g.rank


def raises_in(g: cw.Group, rank: int) -> int:
    if g.rank == rank:
        raise KeyError(f"of rank {rank}")
    g.barrier()
    return g.rank


def dies_in(g: cw.Group, rank: int, flags: cw.Array, wait: bool) -> int:
    """One rank kills itself, in the barrier's midst or before it."""
    if g.rank == rank:
        words = flags.numpy()
        while wait and not words[1]:
            time.sleep(0.0005)
        os.kill(os.getpid(), signal.SIGKILL)
    flags.numpy()[1] = 1
    g.barrier()
    return g.rank


def reforms(g: cw.Group, flags: cw.Array) -> int:
    """Rank 1 dies, the others go on, and say so."""
    if g.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        g.barrier()
    except cw.GroupBroken:
        g.reform()
    flags.numpy()[g.rank] = g.allreduce(1)
    return g.rank


def writes(g: cw.Group, values: np.ndarray[Any, Any]) -> float:
    """Each rank has values of its own, which it may write to."""
    values += g.rank
    g.barrier()
    return float(values.sum())


def into(g: cw.Group, shared: cw.Array) -> int:
    """All ranks see the same array of cableway."""
    shared[g.rank] = g.rank + 1
    g.barrier()
    return int(shared.numpy().sum())


def leaves_alone(g: cw.Group) -> str:
    """Rank 1 returns at once; the others wait for it."""
    if g.rank == 1:
        return "left"
    g.barrier()
    return "came"


def slow_barrier(g: cw.Group) -> int:
    """Rank 0 comes late."""
    if g.rank == 0:
        time.sleep(1000)
    g.barrier()
    return g.rank


def pid(_: Any = None) -> int:
    return os.getpid()
