"""What programs written for multiprocessing's queues expect beside their interface."""

from __future__ import annotations

import multiprocessing
import queue as standard
import random
import signal
import time
from typing import Any

import pytest

import cableway as cw


@pytest.mark.parametrize("make", [multiprocessing.Queue, cw.Queue])
def test_signals_do_not_make_a_timeout_longer(make: Any) -> None:
    """They come until it is over: a wait that began anew after each of them would not end."""
    q, full = make(), make(1)
    full.put(1)
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _frame: came.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        for call, error in (
            (q.get, standard.Empty),
            (lambda timeout: full.put(2, timeout=timeout), standard.Full),
        ):
            begun = time.monotonic()
            with pytest.raises(error):
                call(timeout=0.5)
            assert 0.5 <= time.monotonic() - begun < 30
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(came) > 3


@pytest.mark.parametrize("make", [multiprocessing.Queue, cw.Queue])
def test_a_closed_queue_tells_what_it_held_as_the_standard_librarys_does(make: Any) -> None:
    q = make(2)
    for n in range(2):
        q.put(n)
    assert q._maxsize == 2 and make()._maxsize == make(-1)._maxsize == 0x7FFFFFFF and not q._closed
    q.close()
    assert (q.qsize(), q.full(), q._maxsize, q._closed) == (2, True, 2, True)
    q.cancel_join_thread()
    unused = make()
    unused.close()
    assert unused.empty() and unused.qsize() == 0 and not unused.full()
    for call in (lambda: q.put(1), q.get):
        with pytest.raises(ValueError, match="is closed"):
            call()


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("make", [multiprocessing.SimpleQueue, cw.SimpleQueue])
def test_a_closed_simple_queue_is_not_empty_but_closed_as_in_the_standard_library(
    make: Any, used: bool
) -> None:
    q = make()
    if used:
        q.put(1)
    q.close()
    with pytest.raises(OSError, match="is closed"):
        q.empty()


@pytest.mark.parametrize("make", [multiprocessing.Queue, cw.Queue])
def test_a_queue_takes_one_argument_by_position(make: Any) -> None:
    with pytest.raises(TypeError):
        make(1, 2)


def test_a_signal_at_the_end_of_a_timeout_does_not_make_it_endless() -> None:
    """The time that is left was computed from two looks at the clock: past the end between them, it was below 0, for ever."""
    q, chosen = cw.Queue(), random.Random(1)
    ends = float("inf")

    def late(_number: int, _frame: Any) -> None:
        assert time.monotonic() < ends, "get() did not end"

    before = signal.signal(signal.SIGALRM, late)
    try:
        for _ in range(20_000):
            ends = time.monotonic() + 30
            signal.setitimer(signal.ITIMER_REAL, 0.0002 + chosen.uniform(-3e-5, 6e-5), 1)
            with pytest.raises(standard.Empty):
                q.get(timeout=0.0002)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
