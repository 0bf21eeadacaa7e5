"""What workers do in the storm of kills (pool_storm.py). Each result brings its worker's pid: (pid, value)."""

from __future__ import annotations

import faulthandler
import os
import queue as standard
import signal
import time
from typing import Any

import numpy as np

import causeway as cw

MIB = 1 << 20
_queue: Any = None


def begin(starts: str, queue: Any) -> None:
    """The initializer: the worker says that it is there, and dumps its stacks on SIGUSR1."""
    global _queue
    _queue = queue
    faulthandler.register(signal.SIGUSR1)
    with open(starts, "a") as file:
        file.write(f"{os.getpid()}\n")


def numbers(seed: int) -> np.ndarray[Any, Any]:
    """One MiB that follows from a number."""
    return np.arange(seed, seed + MIB // 8, dtype="i8")


def square(x: int) -> tuple[int, int]:
    if x % 7 == 0:
        time.sleep(0.002)
    return os.getpid(), x * x


def add(x: int, y: int = 0) -> tuple[int, int]:
    return os.getpid(), x + y


def raises(x: int) -> None:
    raise LookupError(f"no {x}")


def doubled(values: Any) -> tuple[int, Any]:
    """A NumPy array there and one back."""
    return os.getpid(), values * 2


def filled(array: cw.Array, value: int) -> tuple[int, int]:
    """Writes into the caller's memory."""
    view = array.numpy()
    view[:] = value
    return os.getpid(), int(view.sum())


def made(value: int) -> tuple[int, cw.Array]:
    """An array of ours that the worker makes."""
    return os.getpid(), cw.full(MIB // 8, value, "i8")


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


def put(number: int) -> tuple[int, int]:
    _queue.put(item(number))
    return os.getpid(), number


def get(_: int) -> tuple[int, int | None]:
    """Takes an item, None if there is none. The item itself stays here."""
    try:
        found = _queue.get(timeout=0.02)
    except standard.Empty:
        return os.getpid(), None
    if not is_whole(found):
        raise AssertionError(f"the queue's item {found[0]} is not what was put")
    return os.getpid(), found[0]
