"""Idle memory, and how it is given up before a process is refused memory.

Idle memory is kept for later use: free blocks of the senders of a Pool or a Queue (`_transport.blocks`) and, in C, entirely free
slabs. All of it counts against the broker's limits. A process that is refused memory (`leases.lease_again`) first gives up its own
idle memory and tries again. Then it asks the other processes of its Pools through their task queues (shm/tasks/dispatch.h: ask,
heed), and tries again after each round of answers:

    a sleeping worker           is woken, gives up its idle memory, and answers
    a worker with a task        does so when the task is done
    the parent                  its supervisor does so
    a process that asks itself  gives up its own and answers others each time it looks for answers

A round ends when all have answered. What they gave up becomes free only after the broker has seen it, and the part of it that is an
empty slab goes with the next round. So another round follows after a pause: at least `_ROUNDS` in all, and more as long as anybody
gave something up. No thread waits longer than `WAIT_SECONDS` for all this, whichever process is stopped, busy or dies. Nobody waits
for a process that asks. To answer needs no wait either: neither the broker nor another process is asked.

Not asked: processes that share no Pool with this one, and the workers of another Pool of the parent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from cableway import client
from cableway._core.library import ffi, lib

__all__ = [
    "WAIT_SECONDS",
    "add_end",
    "end",
    "give_up",
    "given_up",
    "heed",
    "kept",
    "remove_end",
    "settle",
    "trim",
]

WAIT_SECONDS = 2.0  # for others, before memory is refused: they may have to wait for a core
_ROUNDS = 9  # with their naps some 250 ms: for a broker that gets to run late
_LOOK_SECONDS = 50e-6  # between two looks whether all have answered, at first
_NAP_SECONDS = 0.001  # between two rounds, at first
_NAP_MAX_SECONDS = 0.06

_END_SECONDS = 0.05
_ALL = (1 << 64) - 1
_KEPT_AFTER_BYTES = 64 << 20  # free slabs that stay after a Pool's end

# Each lets go of memory that is kept to be used again, and says whether there was some. They may take locks for a moment;
# whoever calls them holds none of these.
kept: list[Callable[[], bool]] = []
_ends: list[Any] = []  # this process's ends of task queues


def add_end(end: Any) -> None:
    """Through this end of a task queue others are asked (`_dispatch.Dispatch`, `_dispatch.WorkerEnd`)."""
    _ends.append(end)


def remove_end(end: Any) -> None:
    """Through this one no more."""
    if end in _ends:
        _ends.remove(end)


def _forget_ends() -> None:
    """In a forked child they are the parent's."""
    _ends.clear()


os.register_at_fork(after_in_child=_forget_ends)


def trim(keep_bytes: int) -> tuple[int, int]:
    """Gives up entirely free slabs of host memory beyond keep_bytes: how many bytes these were, and how many arrays that
    were let go of have not come back. Never blocks.
    """
    connection = client.known()
    if connection is None or connection.closed:
        return 0, 0
    waiting = ffi.new("uint64_t *")
    return int(lib.cw_trim(connection.pointer, keep_bytes, waiting)), int(waiting[0])


def settle() -> int:
    """Gives up what the broker has handed back beyond the process's cache (CABLEWAY_CACHE_BYTES): how many arrays that were let go
    of have not come back. Never blocks.
    """
    return trim(_ALL)[1]


def give_up() -> bool:
    """Gives up all that this process keeps idle: whether there was some. Never blocks."""
    some = sum(each() for each in kept) > 0
    return trim(0)[0] > 0 or some


def end(close: Callable[[], None]) -> None:
    """Closes what kept memory for a Pool, and gives up what was made for it: a program may never have another Pool. Waits
    `_END_SECONDS` at most for the broker to hand back what was closed.
    """
    _, before = trim(_KEPT_AFTER_BYTES)
    close()
    until = time.monotonic() + _END_SECONDS
    while trim(_KEPT_AFTER_BYTES)[1] > before and time.monotonic() < until:
        time.sleep(_NAP_SECONDS)


def heed(end: Any) -> None:
    """Gives up what this process keeps idle, if somebody has asked for it through this end. Never blocks."""
    number = end.wanted()
    if number is not None:
        end.heed(number, give_up())


def given_up(*, ask_others: bool) -> Iterator[None]:
    """After a refusal: each time that something may have come free. Blocks `WAIT_SECONDS` at most."""
    some = give_up()
    if some:
        yield
    ends = list(_ends)
    if not ends or not ask_others:
        return
    until = time.monotonic() + WAIT_SECONDS
    nap, rounds = _NAP_SECONDS, 0
    while (rounds < _ROUNDS or some) and time.monotonic() < until:
        some |= _ask(ends, until)
        yield
        rounds += 1
        time.sleep(nap)
        nap = min(2 * nap, _NAP_MAX_SECONDS)


def _ask(ends: list[Any], until: float) -> bool:
    """One round: whether somebody gave something up."""
    asked = [(end, end.ask()) for end in ends]
    nap = _LOOK_SECONDS
    while True:
        for end in ends:
            heed(end)
        answers = [end.unheeded(number) for end, number in asked]
        if not any(missing for missing, _ in answers) or time.monotonic() >= until:
            return any(some for _, some in answers)
        time.sleep(nap)
        nap = min(2 * nap, _NAP_SECONDS)
