"""Full and Empty of a queue come of what it holds: never of somebody else who is putting, or taking, at that moment.

Runs in `make test-more`.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import logging.handlers
import multiprocessing
import os
import queue as standard
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import queue_tasks as tasks
from cli_support import suspend

import cableway as cw

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
FORK = multiprocessing.get_context("fork")
PUT, GET = (
    64 // 8,
    (64 + 128) // 8,
)  # the words of the turns (struct head in ipc/tasks/queue.c, shm/tasks/queue.h)
QUEUES = [cw.Queue, FORK.Queue]


def task_word(tid: int) -> int:
    """As shm/base/task.h names a thread."""
    with open(f"/proc/{tid}/stat", encoding="ascii", errors="replace") as stat:
        started = int(stat.read().rpartition(")")[2].split()[19])
    return started << 22 | tid


def turns(q: Any) -> Any:
    return np.asarray(q._memory).view("u8")


@contextlib.contextmanager
def in_its_turn(q: Any, end: int, tid: int) -> Iterator[None]:
    """That thread has the turn of an end, as if it had lost its core there."""
    turns(q)[end] = task_word(tid)
    try:
        yield
    finally:
        turns(q)[end] = 0


class Busy:
    """A process that always runs, or could; then one that is stopped, or dead."""

    def __enter__(self) -> Any:
        self.process = FORK.Process(target=tasks.spin, daemon=True)
        self.process.start()
        return self.process

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.join()


def answer(call: Callable[[], object]) -> list[object]:
    """What a call in another thread returns or raises, once it has."""
    out: list[object] = []

    def run() -> None:
        try:
            out.append(call())
        except Exception as error:
            out.append(type(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    out.append(thread)
    return out


def result(out: list[Any]) -> Any:
    out[0].join(60)
    assert len(out) == 2, "it still waits"
    return out[1]


PUTS: list[Callable[[Any], object]] = [
    lambda q: q.put_nowait(1),
    lambda q: q.put(1, timeout=0.01),
    lambda q: q.put(1, timeout=-1),
    lambda q: q.put_nowait(np.ones(100_000, "u1")),
]
GETS: list[Callable[[Any], object]] = [
    lambda q: q.get_nowait(),
    lambda q: q.get(timeout=0.01),
    lambda q: q.get(timeout=-1),
]


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("put", PUTS)
def test_a_queue_with_room_is_not_full_while_another_is_putting(
    put: Callable[[Any], object], size: int
) -> None:
    q = cw.Queue(size)
    with Busy() as other:
        with in_its_turn(q, PUT, other.pid):
            out = answer(lambda: put(q))
            out[0].join(1.5)  # type: ignore[attr-defined]  # beyond the patience for one that stands still
            assert len(out) == 1, "it waits for room that there is"
        assert result(out) is None
    assert q.qsize() == 1


@pytest.mark.parametrize("get", GETS)
def test_a_queue_with_an_item_is_not_empty_while_another_is_taking(
    get: Callable[[Any], object],
) -> None:
    q = cw.Queue()
    q.put("x")
    with Busy() as other:
        with in_its_turn(q, GET, other.pid):
            out = answer(lambda: get(q))
            out[0].join(1.5)  # type: ignore[attr-defined]
            assert len(out) == 1, "it waits for an item that there is"
        assert result(out) == "x"


def test_a_full_queue_is_full_and_an_empty_one_empty_whoever_has_the_turn() -> None:
    q = cw.Queue(1)
    with Busy() as other:
        with in_its_turn(q, GET, other.pid), pytest.raises(standard.Empty):
            q.get_nowait()
        with in_its_turn(q, PUT, other.pid), pytest.raises(standard.Empty):
            q.get(timeout=0.01)  # what is being put is not there yet
        q.put(1)
        with in_its_turn(q, PUT, other.pid), pytest.raises(standard.Full):
            q.put_nowait(2)
        with in_its_turn(q, GET, other.pid), pytest.raises(standard.Full):
            q.put(2, timeout=0.01)


@pytest.mark.parametrize("end", [PUT, GET])
def test_one_that_is_stopped_in_its_turn_is_told_and_not_waited_for(end: int) -> None:
    q = cw.Queue()
    q.put("x")
    calls = PUTS if end == PUT else GETS
    with Busy() as other:
        suspend(other.pid)
        with in_its_turn(q, end, other.pid):
            for call in calls:
                with pytest.raises(cw.QueueBlocked, match=f"thread {other.pid} .* stopped"):
                    call(q)
            assert q.qsize() == 1
            if end == PUT:  # the other end is not concerned
                assert q.get_nowait() == "x"
            else:
                q.put_nowait("y")
            waits = answer(lambda: q.put(1) if end == PUT else q.get())
            other.kill()
            other.join()
            result(waits)
        assert q.qsize() == 1


@pytest.mark.parametrize("end", [PUT, GET])
def test_one_that_is_stopped_in_its_turn_is_told_also_while_signals_come(end: int) -> None:
    q = cw.Queue()
    q.put("x")
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        with Busy() as other:
            suspend(other.pid)
            with in_its_turn(q, end, other.pid):
                signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
                with pytest.raises(cw.QueueBlocked):
                    q.put_nowait(1) if end == PUT else q.get_nowait()
                with pytest.raises(cw.QueueBlocked):
                    q.put(1, timeout=0.1) if end == PUT else q.get(timeout=0.1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen


def test_one_that_was_killed_in_its_turn_is_passed_by() -> None:
    q = cw.Queue()
    q.put("x")
    with Busy() as other:
        word = task_word(other.pid)
    for _ in range(5):
        turns(q)[PUT] = turns(q)[GET] = word
        q.put_nowait("y")
        assert q.get_nowait() in ("x", "y", "z")
        turns(q)[PUT] = turns(q)[GET] = word
        q.put("z", timeout=0.001)
        assert q.get(timeout=0.001) in ("x", "y", "z")
    assert q.qsize() == 1


# ---- in the standard library's idioms, beside it


def rounds(few: int) -> int:
    return 1000 if os.environ.get("CABLEWAY_SOAK") else few


@pytest.mark.parametrize("make", QUEUES)
def test_no_log_record_is_lost(make: Any, capsys: Any) -> None:
    """The cookbook's: a listener in the parent, a QueueHandler (put_nowait) in each process and thread."""
    for _ in range(rounds(8)):
        q, found = make(), collections.Counter[str]()

        class Count(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                found[record.getMessage()] += 1  # noqa: B023

        listener = logging.handlers.QueueListener(q, Count())
        listener.start()
        processes = [FORK.Process(target=tasks.log, args=(q, k, 50)) for k in range(3)]
        threads = [threading.Thread(target=tasks.log, args=(q, k, 50)) for k in range(3, 5)]
        for one in processes + threads:
            one.start()
        for one in processes + threads:
            one.join()
        sys.stderr.flush()
        deadline = time.monotonic() + 60
        while sum(found.values()) < 250 and time.monotonic() < deadline:
            time.sleep(0.001)  # the standard library's feeders may still be at it
        listener.stop()
        assert found == {f"{k} {i}": 1 for k in range(5) for i in range(50)}
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("make", QUEUES)
@pytest.mark.parametrize("size", [0, 30_000])
def test_threads_that_put_at_once_never_find_it_full(make: Any, size: int) -> None:
    for _ in range(rounds(3)):
        q = make(size)
        refused: list[int] = []

        def put_all(k: int) -> None:
            for i in range(300):
                try:
                    q.put_nowait((k, i))  # noqa: B023
                except standard.Full:
                    refused.append(i)  # noqa: B023

        threads = [threading.Thread(target=put_all, args=(k,)) for k in range(10)]
        for thread in threads:
            thread.start()
        found = {q.get() for _ in range(3000)}
        for thread in threads:
            thread.join()
        assert not refused and len(found) == 3000


def test_readers_that_take_at_once_leave_nothing() -> None:
    """What was there before all began is taken by who asks for it without waiting."""
    for _ in range(rounds(3)):
        q, out = cw.Queue(), cw.Queue()
        for i in range(2000):
            q.put(i)
        readers = [FORK.Process(target=tasks.drain_at_once, args=(q, out)) for _ in range(3)]
        for reader in readers:
            reader.start()
        taken = [item for _ in readers for item in out.get(timeout=60)]
        for reader in readers:
            reader.join()
        assert sorted(taken) == list(range(2000))
