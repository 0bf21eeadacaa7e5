"""What programs written for multiprocessing's queues expect beside their interface."""

from __future__ import annotations

import errno
import multiprocessing
import queue as standard
import types
from typing import Any

import pytest

import cableway as cw


def test_a_signal_does_not_make_a_timeout_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes after nine of ten seconds: one is left."""
    q: Any = cw.Queue()
    left: list[int] = []
    now = iter([0, 9_000_000_000])

    class Interrupted:
        def get(self, slot: Any, address: int, timeout_ns: int) -> Any:
            slot.status = -errno.EINTR
            left.append(timeout_ns)
            return slot

    def again(pointer: Any, item: Any, timeout_ns: int) -> int:
        left.append(timeout_ns)
        return -errno.ETIMEDOUT

    q._open().plain = Interrupted()
    monkeypatch.setattr(cw.queue, "_queue_get", again)
    monkeypatch.setattr(cw.queue, "time", types.SimpleNamespace(monotonic_ns=lambda: next(now)))
    with pytest.raises(standard.Empty):
        q.get(timeout=10)
    assert left == [10_000_000_000, 1_000_000_000]


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
