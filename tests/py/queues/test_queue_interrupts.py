"""What a signal's handler raises in put() and get(), as Ctrl-C does: no item is lost, none comes twice, and the order stays.

Python 3.10 looks for signals between the `return` of a function and the store of what it returned. There no function can keep what
it has given, and these tests say so.

Runs in `make test-more`.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import select
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cli_support import run_json
from conftest import eventually

import cableway as cw
from cableway._queue import items

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork"),
    pytest.mark.skipif(
        sys.version_info < (3, 11), reason="Python 3.10 raises behind a return, too"
    ),
]
TIMES = int(os.environ.get("CABLEWAY_INTERRUPTS", "3000"))
NOTHING = object()


class Alarm(Exception):
    """What the handler raises: of no special class."""


class _Handler:
    def __init__(self) -> None:
        self.came = 0

    def __call__(self, _number: int, _frame: Any) -> None:
        self.came += 1
        raise Alarm

    def within(self, seconds: float) -> None:
        """One signal, at some moment of that time."""
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, seconds))

    def wait(self, came: int) -> None:
        """Until it raises. A function of its own: where a loop goes back Python 3.13 raises outside of the try that it is in."""
        while self.came == came:
            time.sleep(0)  # CPython may miss a signal until the GIL is taken again


@pytest.fixture
def alarm() -> Iterator[_Handler]:
    random.seed(os.environ.get("CABLEWAY_SEED", "15"))
    handler = _Handler()
    before = signal.signal(signal.SIGALRM, handler)
    yield handler
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def transits() -> int:
    """How many handles are under way."""
    gc.collect()
    return int(run_json("status")["gauges"]["transits"])


def readonly(n: int) -> Any:
    cw.put("interrupts/readonly", np.full(10, n))
    return cw.get("interrupts/readonly", readonly=True)


# Of each kind of item: what makes the n-th one, its number, and how long put and get take at most, about.
ITEMS: dict[str, tuple[Callable[[int], Any], Callable[[Any], int], float]] = {
    "plain": (lambda n: n, int, 60e-6),
    "tuple": (lambda n: (n, "x" * 300), lambda got: got[0], 60e-6),
    "pickled": (lambda n: OrderedDict(n=n), lambda got: got["n"], 60e-6),
    "long": (lambda n: OrderedDict(n=n, x="x" * 400_000), lambda got: got["n"], 300e-6),
    "ndarray": (lambda n: np.full(40_000, n), lambda got: int(got[-1]), 200e-6),
    "array": (lambda n: cw.asarray(np.full(10, n)), lambda got: int(got[-1]), 200e-6),
    "readonly": (readonly, lambda got: int(got[-1]), 300e-6),
    "several": (
        lambda n: [cw.asarray(np.full(10, n)), readonly(n), np.full(40_000, 1.0)],
        lambda got: int(got[0][-1] + got[1][-1]) // 2,
        400e-6,
    ),
}


def interrupted_gets(q: Any, kind: str, alarm: _Handler, times: int) -> tuple[list[int], int]:
    """Puts and gets so many items, each get with a signal in it; what came, and how often none did."""
    make, number, seconds = ITEMS[kind]
    found, raised = [], 0
    for n in range(times):
        q.put(make(n))
        got, came = NOTHING, alarm.came
        try:
            alarm.within(seconds)
            got = q.get()
            alarm.wait(came)
        except Alarm:
            raised += got is NOTHING
        if got is not NOTHING:
            found.append(number(got))
        got = NOTHING
    while not q.empty():
        found.append(number(q.get()))
    return found, raised


@pytest.mark.parametrize("kind", ITEMS)
def test_no_item_is_lost_by_what_a_handler_raises_in_get(alarm: _Handler, kind: str) -> None:
    found, raised = interrupted_gets(cw.Queue(), kind, alarm, TIMES)
    assert found == list(range(TIMES))
    assert raised > TIMES // 100, "else nothing was tried"


@pytest.mark.parametrize("kind", ["plain", "several"])
def test_nor_while_the_interpreter_has_not_specialised_the_code(
    alarm: _Handler, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first calls of a function go other ways through the interpreter than later ones, as they do under a debugger."""
    make, number, seconds = ITEMS[kind]
    functions = [cw.Queue.get, cw.Queue._get, items.decode]

    def made(n: int) -> Any:
        for function in functions:
            function.__code__ = function.__code__.replace()
        return make(n)

    monkeypatch.setitem(ITEMS, kind, (made, number, seconds))
    found, raised = interrupted_gets(cw.Queue(), kind, alarm, TIMES)
    assert found == list(range(TIMES)) and raised > TIMES // 100


@pytest.mark.parametrize("make", [cw.SimpleQueue, cw.JoinableQueue])
def test_nor_of_another_queue(alarm: _Handler, make: Any) -> None:
    q = make()
    found, raised = interrupted_gets(q, "plain", alarm, TIMES)
    assert found == list(range(TIMES)) and raised > TIMES // 100
    if make is cw.JoinableQueue:
        for _ in range(TIMES):
            q.task_done()
        q.join()


@pytest.mark.parametrize("kind", ["plain", "pickled", "ndarray", "several"])
def test_what_a_handler_raises_in_put_says_that_the_item_is_not_there(
    alarm: _Handler, kind: str
) -> None:
    make, number, seconds = ITEMS[kind]
    q, there = cw.Queue(), []
    for n in range(TIMES):
        item, done, came = make(n), False, alarm.came
        try:
            alarm.within(3 * seconds)
            done = q.put(item) is None
            alarm.wait(came)
            time.sleep(0)  # what was raised for behind put() comes now
        except Alarm:
            pass
        if done:
            there.append(n)
        assert q.qsize() == int(done)
        if done:
            assert number(q.get(timeout=10)) == n
    assert 0 < len(there) < TIMES


@pytest.mark.parametrize("kind", ["long", "ndarray", "array", "several"])
def test_a_put_that_was_interrupted_leaves_nothing_under_way(alarm: _Handler, kind: str) -> None:
    """Neither a handle at the broker, which would keep its array for `transit_seconds`, nor an item."""
    make, number, seconds = ITEMS[kind]
    q, before, raised = cw.Queue(), transits(), 0
    for n in range(TIMES // 3):
        item, came = make(n), alarm.came
        try:
            alarm.within(2 * seconds)
            q.put(item)
            alarm.wait(came)
            time.sleep(0)
        except Alarm:
            raised += q.empty()
        if not q.empty():
            assert number(q.get()) == n
    del item
    assert raised > TIMES // 300, "else nothing was tried"
    assert eventually(lambda: transits() <= before), (before, transits())


# ---- what was taken and not given: an item in whose unpickling a handler raises is taken for certain

_armed: list[Callable[[], None]] = []


def _unpickled(n: int) -> int:
    if _armed:
        _armed.pop()()
    return n


class Interrupts:
    """Unpickled it is n; the first time something else happens in between."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __reduce__(self) -> Any:
        return _unpickled, (self.n,)


def take_and_keep(q: Any, then: Callable[[], None] = lambda: None) -> None:
    """The item that is next, an Interrupts, is taken and not given."""

    def interrupt() -> None:
        then()
        signal.raise_signal(signal.SIGALRM)

    _armed.append(interrupt)
    with pytest.raises(Alarm):
        q.get()


def readable(q: Any) -> bool:
    return bool(select.select([q._reader], [], [], 0)[0])


@pytest.mark.parametrize("make", [cw.Queue, cw.JoinableQueue, cw.SimpleQueue])
def test_what_was_taken_and_not_given_counts_as_there_and_comes_next(
    alarm: _Handler, make: Any
) -> None:
    q = make()
    assert not readable(q)
    for n in range(3):
        q.put(Interrupts(n))
    for n in range(3):
        take_and_keep(q)
        assert readable(q) and not q.empty()
        if make is not cw.SimpleQueue:
            assert q.qsize() == 3 - n
        assert q.get() == n
    assert q.empty() and not readable(q)


def test_it_does_not_take_room(alarm: _Handler) -> None:
    q: Any = cw.Queue(1)
    q.put(Interrupts(0))
    take_and_keep(q)
    assert not q.full() and q.qsize() == 1
    q.put(1, timeout=10)
    assert q.full() and q.qsize() == 2
    assert q.get_nowait() == 0 and q.get_nowait() == 1


def test_all_objects_of_one_queue_in_a_process_give_it(alarm: _Handler) -> None:
    q, way = cw.Queue(), cw.Queue()
    way.put(q)
    other = way.get(timeout=10)
    for n in range(2):
        q.put(Interrupts(n))
    take_and_keep(q)
    assert other.qsize() == 2 and readable(other) and other.get() == 0
    take_and_keep(other)
    other.close()
    assert q.get() == 1 and q.empty()


def test_a_thread_that_waits_gets_it(alarm: _Handler) -> None:
    q, found = cw.Queue(), []
    waits = threading.Thread(target=lambda: found.append(q.get(timeout=60)))

    def wait_beside() -> None:
        waits.start()
        time.sleep(0.2)  # until it sleeps

    q.put(Interrupts(7))
    take_and_keep(q, wait_beside)
    waits.join(30)
    assert found == [7]


def test_it_stays_with_the_process_that_has_taken_it(alarm: _Handler) -> None:
    q: Any = cw.Queue()
    q.put(Interrupts(0))
    q.put(1)
    take_and_keep(q)

    def child() -> None:
        assert q.qsize() == 1 and q.get(timeout=10) == 1 and q.empty()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert q.get() == 0 and q.empty()


def test_close_tells_of_it(alarm: _Handler) -> None:
    q: Any = cw.Queue()
    q.put(Interrupts(0))
    take_and_keep(q)
    q.close()
    assert q.qsize() == 1


class Unloadable:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_what_cannot_be_unpickled_is_lost_as_its_own_error_says() -> None:
    q = cw.Queue()
    for item in (Unloadable(), [Unloadable(), cw.zeros(3)], 2):
        q.put(item)
    for _ in range(2):
        with pytest.raises(ValueError, match="no number"):
            q.get()
    assert q.get() == 2 and q.empty()


@pytest.mark.parametrize("wait", ["get", "put", "join"])
def test_a_signal_that_comes_as_a_wait_begins_ends_it(alarm: _Handler, wait: str) -> None:
    """At the moment at which the call goes to sleep: none is slept through."""
    q = cw.JoinableQueue(1)
    if wait != "get":
        q.put(1)
    late = threading.Timer(120, lambda: os._exit(3))  # join() has no timeout
    late.start()
    for _ in range(
        TIMES // (60 if wait == "join" else 6)
    ):  # join sleeps sooner: each third one is met
        with pytest.raises(Alarm):
            alarm.within(30e-6)
            if wait == "get":
                q.get(timeout=100)
            elif wait == "put":
                q.put(2, timeout=100)
            else:
                q.join()
    late.cancel()


def test_workers_end_by_the_first_ctrl_c() -> None:
    """Right behind an item, when who waits for the next one has looked in vain and is about to sleep."""

    def worker(there: Any, back: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            while True:
                back.put(there.get())
        except KeyboardInterrupt:
            os._exit(0)

    context = multiprocessing.get_context("fork")
    for _ in range(15):
        there, back = cw.Queue(), cw.Queue()
        process = context.Process(target=worker, args=(there, back))
        process.start()
        for n in range(100):
            there.put(n)
            assert back.get(timeout=60) == n
        os.kill(process.pid or 0, signal.SIGINT)
        process.join(60)
        try:
            assert process.exitcode == 0
        finally:
            process.kill()
            process.join()
