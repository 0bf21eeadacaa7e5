"""Locks and a signal's handler that raises at any moment of a `with`: the lock is free again."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cableway._core import locks

TIMES = 3000


class Alarm(Exception):
    """What the handler raises."""


@pytest.fixture
def alarms() -> Iterator[None]:
    def handler(_number: int, _frame: Any) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def raised_amid(use: Callable[[], None]) -> bool:
    """Whether a signal came to it, at some moment."""
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 3e-5))
        use()
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(0)  # what came behind it is raised now
    except Alarm:
        return True
    return False


def is_free(lock: Any) -> bool:
    """Whether another thread can have it."""
    found = []
    thread = threading.Thread(target=lambda: found.append(lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    return found == [True]


@pytest.mark.usefixtures("alarms")
@pytest.mark.parametrize("what", ["Lock", "RLock", "within"])
def test_a_handler_that_raises_leaves_the_lock_free(what: str) -> None:
    make = locks.Lock if what == "Lock" else locks.RLock
    lock: Any = make()

    def use() -> None:
        for _ in range(200):
            with lock:
                if what == "within":
                    with lock:
                        pass

    raised = 0
    while raised < TIMES:
        raised += raised_amid(use)
        if raised % 100 == 0:  # a thread that starts takes longer than all this
            assert is_free(lock)
            lock = make()


def test_it_is_one_that_can_be_taken_again_within() -> None:
    lock = locks.RLock()
    with lock, lock:
        assert not is_free(lock)
    assert is_free(lock)
