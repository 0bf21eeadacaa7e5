"""An executor that is shut down, or whose workers are ended, in the midst of a call on it: by another thread, a signal's handler, or
a finaliser.

The call is made, or says that it comes after the shutdown or that the executor has ended. Nobody waits for ever, and nothing stays.
"""

from __future__ import annotations

import pytest
from closing_support import holds

import cableway as cw

PROGRAM = """
import gc, multiprocessing, os, sys, time
from concurrent import futures
from itertools import count
import numpy as np
import cableway as cw
from cableway import _executor, _pool, executor as executors

FOLDERS = _pool.__path__[0], _executor.__path__[0], executors.__file__
use, way, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
big, heard, begun = np.ones(20_000), [], []
uses = {
    "first": lambda e: e.submit(abs, -1).result(30),
    "submit": lambda e: e.submit(abs, -1).result(30),
    "local": lambda e: e.submit(lambda x: x, 1).exception(30),
    "arrays": lambda e: e.submit(np.negative, big).result(30),
    "callback": lambda e: (begun[0].add_done_callback(heard.append), begun[0].result(30)),
    "look": lambda e: (begun[0].running(), begun[0].done(), begun[1].cancel(), begun[0].exception(30)),
    "wait": lambda e: futures.wait([e.submit(abs, number) for number in range(3)], 30).not_done and sys.exit("not done"),
    "map": lambda e: list(e.map(abs, range(9))),
    "ahead": lambda e: list(e.map(abs, range(4), buffersize=2)),
    "told": lambda e: (e.is_usable(), e._processes, e._broken, e._pending_work_items, repr(e), e.stats()),
    "end": lambda e: e.shutdown(cancel_futures=True),
}
ways = {
    "shutdown": lambda e: e.shutdown(),
    "cancel": lambda e: e.shutdown(cancel_futures=True),
    "terminate": lambda e: e.terminate_workers(),
}

def end(executor):
    try:
        ways[way](executor)
    except RuntimeError as error:
        assert "this thread cannot wait" in str(error), error

def is_traced(code):
    return code.co_filename.startswith(FOLDERS)

def close_at(place):
    executor = cw.Executor(1, mp_context="fork")
    if use != "first":
        begun[:] = [executor.submit(time.sleep, 0.001) for _ in range(3)]
    came = closing(executor, place, end, is_traced)
    try:
        uses[use](executor)
    except RuntimeError as error:
        refused = "cannot schedule new futures after shutdown" in str(error)
        ended = isinstance(error, executors.ExecutorBroken) and "was terminated" in str(error)
        assert refused or (ended and way == "terminate"), (place, repr(error))
    except futures.CancelledError:
        assert use == "end" or way == "cancel", place
    finally:
        sys.settrace(None)
    assert not came or not executor.is_usable(), place
    executor.shutdown()
    assert all(future.done() for future in begun), place
    return came

leaves_nothing(close_at, step, lambda: (begun.clear(), heard.clear()))
"""
# How many instructions lie between two at which it is closed.
USES = {
    "first": 101,
    "submit": 7,
    "local": 31,
    "arrays": 61,
    "callback": 7,
    "look": 31,
    "wait": 17,
    "map": 61,
    "ahead": 101,
    "told": 61,
    "end": 61,
}


@pytest.mark.parametrize("use", USES)
def test_workers_may_be_ended_between_any_two_steps_of_a_call(use: str) -> None:
    holds(PROGRAM, use, "terminate", str(USES[use]))


@pytest.mark.parametrize("way", ["shutdown", "cancel"])
@pytest.mark.parametrize("use", ["first", "callback", "ahead"])
def test_an_executor_may_be_shut_down_between_any_two_steps_of_a_call(use: str, way: str) -> None:
    holds(PROGRAM, use, way, str(2 * USES[use] + 1))


def test_a_handler_that_submits_while_the_executor_starts_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the thread would wait for itself, or start workers twice."""
    start, told = cw.Executor._start, []

    def interrupted(executor: cw.Executor, pid: int) -> object:
        with pytest.raises(RuntimeError, match="starting the executor's workers already") as raised:
            executor.submit(abs, -2)
        told.append(raised.value)
        return start(executor, pid)

    monkeypatch.setattr(cw.Executor, "_start", interrupted)
    with cw.Executor(1, mp_context="fork") as executor:
        assert executor.submit(abs, -1).result(60) == 1
    assert len(told) == 1
