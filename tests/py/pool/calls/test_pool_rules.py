"""What breaks the rules between a Pool and its workers costs one worker, and nobody waits for ever."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import signal
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from waiting import eventually

import cableway as cw
from cableway._pool import engine

LONG = 60
_WORKERS_AT, _WORKER_BYTES, _DONE_AT = 64 + 256, 192, 64  # shm/tasks/dispatch.h, ipc/tasks/pool.c


def claim_answers(count: int) -> None:
    """Says, in a worker by fork, that it has given so many answers more; then it goes on."""
    frame: Any = sys._getframe()
    while "place" not in frame.f_locals or "memory" not in frame.f_locals:
        frame = frame.f_back
    at = frame.f_locals["memory"].address + _WORKERS_AT + _DONE_AT
    at += _WORKER_BYTES * frame.f_locals["place"].slot
    ctypes.c_uint64.from_address(at).value += count
    time.sleep(LONG)


@pytest.mark.parametrize("count", [1, 1 << 40])
def test_a_worker_that_breaks_the_rules_is_killed(count: int) -> None:
    with cw.Pool(2, context="fork") as pool:
        others = pool.map_async(tasks.slow_square, range(40), chunksize=1)
        bad = pool.apply_async(claim_answers, (count,))
        with pytest.raises(cw.WorkerDied, match="damaged the Pool's memory"):
            bad.get(LONG)
        assert others.get(LONG) == [x * x for x in range(40)]
        assert pool.map(tasks.square, range(4)) == [0, 1, 4, 9]


def test_methods_of_objects_have_the_state_of_now(forked: cw.Pool) -> None:
    known: dict[str, int] = {}
    assert forked.map(known.get, ["x"]) == [None]
    known["x"] = 1
    assert forked.map(known.get, ["x"]) == [1]
    assert forked.apply(known.get, ("x",)) == 1


def interrupt(seconds: float) -> None:
    """A SIGINT for this process's main thread after a while."""
    threading.Timer(seconds, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()


def late_large(path: str) -> Any:
    tasks.wait_for(path)
    return np.zeros(100_000)


def test_a_call_left_by_ctrl_c_holds_its_worker_no_longer(tmp_path: Path) -> None:
    with cw.Pool(1, context="fork") as pool:
        assert pool.apply(os.getpid) > 0
        for number in range(3):
            go = tmp_path / str(number)
            with pytest.raises(KeyboardInterrupt):
                interrupt(0.1)
                pool.apply(late_large, (str(go),))
            go.touch()
        assert pool.apply_async(tasks.square, (3,)).get(LONG) == 9


def test_a_call_left_before_a_worker_took_it_is_not_run(forked: cw.Pool, tmp_path: Path) -> None:
    go = tmp_path / "go"
    busy = [forked.apply_async(tasks.wait_for, (str(go),)) for _ in range(2)]
    before = forked.stats()["tasks"]
    with pytest.raises(KeyboardInterrupt):
        interrupt(0.1)
        forked.apply(tasks.square, (1,))
    go.touch()
    assert [one.get(LONG) for one in busy] == [str(go)] * 2
    assert forked.apply(tasks.square, (2,)) == 4
    assert forked.stats()["tasks"] - before == 3


_CALLS: dict[str, Any] = {
    "apply": lambda pool, given: pool.apply(tasks.fail, (given,)),
    "get": lambda pool, given: pool.apply_async(tasks.fail, (given,)).get(LONG),
    "map": lambda pool, given: pool.map(tasks.fail, [given]),
    "imap": lambda pool, given: next(pool.imap(tasks.fail, [given])),
}


@pytest.mark.parametrize("call", _CALLS)
def test_what_a_failed_call_took_along_goes_with_its_exception(forked: cw.Pool, call: str) -> None:
    gc.collect()
    gc.disable()
    try:
        given = np.zeros(20_000)
        gone = weakref.ref(given)
        failed = False
        try:
            _CALLS[call](forked, given)
        except tasks.Fault:
            failed = True
        del given
        assert failed and eventually(lambda: gone() is None)
    finally:
        gc.enable()


def test_a_child_cannot_use_its_parents_results(forked: cw.Pool, tmp_path: Path) -> None:
    waiting = forked.apply_async(tasks.wait_for, (go := str(tmp_path / "go"),))
    pid = os.fork()
    if pid == 0:
        try:
            waiting.get(5)
        except ValueError as error:
            os._exit(0 if "another one has made it" in str(error) else 2)
        except BaseException:
            os._exit(3)
        os._exit(4)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    Path(go).touch()
    assert waiting.get(LONG) == go


def test_results_that_come_while_others_wait_are_told_at_once(
    forked: cw.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four threads with an imap each: none sleeps through what another one has collected for it."""
    monkeypatch.setattr(engine, "_SLICE_SECONDS", LONG)  # nobody looks up by himself
    late: list[float] = []

    def consume() -> None:
        row = forked.imap(tasks.nap, [random.random() / 500 for _ in range(150)])
        while True:
            before = time.monotonic()
            try:
                row.next(LONG)
            except StopIteration:
                return
            late.append(time.monotonic() - before)

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(late) == 600 and max(late) < LONG / 2


def test_what_a_reducer_raises_fails_its_task_alone(forked: cw.Pool) -> None:
    import copyreg

    def refuse(value: Any) -> Any:
        raise RuntimeError("no")

    copyreg.pickle(np.float16, refuse)
    try:
        with pytest.raises(RuntimeError, match="no"):
            forked.apply_async(tasks.same, (np.float16(1),)).get(LONG)
        with pytest.raises(RuntimeError, match="no"):
            forked.map(tasks.same, [np.float16(1)] * 3, chunksize=1)
    finally:
        del copyreg.dispatch_table[np.float16]
    assert forked.apply(tasks.square, (3,)) == 9
