"""What workers do in the storm of kills (pool_storm.py). Each result brings its worker: (worker, value)."""

from __future__ import annotations

import faulthandler
import os
import queue as standard
import signal
import time
from typing import Any, NamedTuple

import numpy as np
from processes import stat_fields

import cableway as cw

MIB = 1 << 20
_queue: Any = None


class Worker(NamedTuple):
    """A process: its pid, which comes again, and its start in clock ticks since the boot."""

    pid: int
    start: int


Process = tuple[int, int]  # a Worker as results bring it: a plain tuple takes the Pool's fast path
_me: Process = (0, 0)


def stat(pid: int) -> tuple[str, int]:
    """State and start of a process; raises OSError if there is none."""
    fields = stat_fields(pid)
    return fields[0], int(fields[19])


def begin(starts: str, queue: Any) -> None:
    """The initializer: the worker says that it is there, and dumps its stacks on SIGUSR1."""
    global _queue, _me
    _queue = queue
    _me = os.getpid(), stat(os.getpid())[1]
    faulthandler.register(signal.SIGUSR1)
    with open(starts, "a") as file:
        file.write(f"{_me[0]} {_me[1]}\n")


def numbers(seed: int) -> np.ndarray[Any, Any]:
    """One MiB that follows from a number."""
    return np.arange(seed, seed + MIB // 8, dtype="i8")


def square(x: int) -> tuple[Process, int]:
    if x % 7 == 0:
        time.sleep(0.002)
    return _me, x * x


def add(x: int, y: int = 0) -> tuple[Process, int]:
    return _me, x + y


def raises(x: int) -> None:
    raise LookupError(f"no {x}")


def doubled(values: Any) -> tuple[Process, Any]:
    """A NumPy array there and one back."""
    return _me, values * 2


def filled(array: cw.Array, value: int) -> tuple[Process, int]:
    """Writes into the caller's memory."""
    view = array.numpy()
    view[:] = value
    return _me, int(view.sum())


def made(value: int) -> tuple[Process, cw.Array]:
    """An array of ours that the worker makes."""
    return _me, cw.full(MIB // 8, value, "i8")


def item(number: int) -> tuple[int, Any]:
    """What goes through the queue: small, a NumPy array or an array of ours, by its number."""
    if number % 5 == 0:
        return number, numbers(number)
    if number % 5 == 1:
        return number, cw.full(1000, number, "i8")
    return number, str(number)


def is_whole(found: tuple[int, Any]) -> bool:
    """Whether an item is what its writer put."""
    number, value = found
    if number % 5 == 0:
        return bool((value == numbers(number)).all())
    if number % 5 == 1:
        return bool((value.numpy() == number).all())
    return bool(value == str(number))


def put(number: int) -> tuple[Process, int]:
    _queue.put(item(number))
    return _me, number


def get(_: int) -> tuple[Process, int | None]:
    """Takes an item, None if there is none. The item itself stays here."""
    try:
        found = _queue.get(timeout=0.02)
    except standard.Empty:
        return _me, None
    if not is_whole(found):
        raise AssertionError(f"the queue's item {found[0]} is not what was put")
    return _me, found[0]
