"""A pool that is closed or terminated in the midst of a call on it: by another thread, a signal's handler, or a finaliser.

The call is made, or says that the pool does not run or was terminated. Nobody waits for ever, and nothing stays.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pool_tasks as tasks
import pytest
from closing_support import holds
from pool_support import LONG
from waiting import eventually

import cableway as cw
from cableway._pool import workers

PROGRAM = """
import sys, threading, time
import numpy as np
import cableway as cw
from cableway import _pool, pool as pools

FOLDERS = _pool.__path__[0], pools.__file__
use, way, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
big, heard, fed = np.ones(20_000), [], lambda: (x for x in range(-3, 3))
uses = {
    "apply": lambda p: p.apply(abs, (-1,)),
    "local": lambda p: p.apply(lambda x: x, (1,)),
    "arrays": lambda p: p.apply(np.negative, (big,)),
    "result": lambda p: p.apply_async(abs, (-1,)).get(30),
    "callback": lambda p: p.apply_async(abs, (-1,), {}, heard.append, heard.append).get(30),
    "map": lambda p: p.map(abs, range(9)),
    "imap": lambda p: list(p.imap(abs, range(9), chunksize=2)),
    "fed": lambda p: list(p.imap_unordered(abs, fed(), buffersize=2)),
    "given": lambda p: p.map(np.negative, [big, big]),
    "spmd": lambda p: p.spmd(lambda group: group.rank),
    "told": lambda p: (p.stats(), p._pool, p._cache, p.resize(1), repr(p)),
    "end": lambda p: (p.close(), p.join()),
}
ways = {
    "terminate": lambda p: (p.terminate(), p.join()),
    "close": lambda p: (p.close(), p.join()),
}

def end(pool):
    try:
        ways[way](pool)
    except RuntimeError as error:
        assert "this thread cannot wait" in str(error), error

def is_traced(code):
    return code.co_filename.startswith(FOLDERS)

def close_at(place):
    pool = cw.Pool(1, context="fork")
    came = closing(pool, place, end, is_traced)
    try:
        uses[use](pool)
    except (ValueError, cw.Error) as error:
        refused = type(error) is ValueError and "Pool not running" in str(error)
        ended = type(error) is cw.Error and "the Pool was terminated" in str(error)
        assert refused or (ended and way == "terminate"), (place, repr(error))
    finally:
        sys.settrace(None)
    assert not came or not pool._engine.is_open, place
    pool.close()
    pool.join()
    return came

leaves_nothing(close_at, step)
"""
# How many instructions lie between two at which it is closed.
USES = {
    "apply": 11,
    "local": 13,
    "arrays": 31,
    "result": 11,
    "callback": 7,
    "map": 17,
    "imap": 23,
    "fed": 41,
    "given": 61,
    "spmd": 41,
    "told": 23,
    "end": 7,
}


@pytest.mark.parametrize("use", USES)
def test_a_pool_may_be_terminated_between_any_two_steps_of_a_call(use: str) -> None:
    holds(PROGRAM, use, "terminate", str(USES[use]))


@pytest.mark.parametrize("use", ["arrays", "callback", "given", "fed", "end"])
def test_a_pool_may_be_closed_between_any_two_steps_of_a_call(use: str) -> None:
    holds(PROGRAM, use, "close", str(2 * USES[use] + 1))


def test_a_finaliser_may_terminate_a_pool_on_the_thread_that_watches_its_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = cw.Pool(1, context="fork")
    assert pool.apply(tasks.square, (2,)) == 4
    ended, on = workers._ended, []

    def finalises(worker: Any, seconds: float | None) -> bool:
        if threading.current_thread().name == "cableway-pool-deaths" and not on:
            on.append(pool.terminate())
        return ended(worker, seconds)

    monkeypatch.setattr(workers, "_ended", finalises)
    os.kill(pool._pool[0].pid, signal.SIGKILL)
    assert eventually(lambda: on == [None], LONG), "its threads wait for each other"
    pool.join()
