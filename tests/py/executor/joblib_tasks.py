"""Tasks for the workers of joblib's backend, which find them by this module's name."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
from joblib import Parallel, delayed


class Fault(Exception):
    pass


def fail_at_three(x: int) -> int:
    if x == 3:
        raise Fault("three")
    return x


def kill_at_three(x: int) -> int:
    if x == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return x


def seen(values: np.ndarray[Any, Any], number: int) -> tuple[Any, ...]:
    """What a task sees: its sum, whether it may write, and whether the memory is a mapping of a slab."""
    address = values.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            if low <= address < high:
                return float(values.sum()) + number, values.flags.writeable, "memfd" in line
    return float(values.sum()) + number, values.flags.writeable, None


def write(values: np.ndarray[Any, Any], number: int) -> float:
    values[number] = -1
    return float((values == -1).sum())


def first_word(values: np.ndarray[Any, Any]) -> int:
    return int(values.view("u8")[0])


def inner(n: int) -> list[Any]:
    return Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(n))


def pid(_: Any = None) -> int:
    return os.getpid()


def pid_after_a_while(_: Any = None) -> int:
    time.sleep(0.02)
    return os.getpid()


def threads_allowed(_: Any = None) -> str | None:
    return os.environ.get("OMP_NUM_THREADS")
