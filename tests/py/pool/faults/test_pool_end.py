"""How a Pool ends: closed, terminated or dropped, it leaves no process, no thread and no descriptor."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
import warnings
from _thread import start_new_thread
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pool_tasks as tasks
import pytest
from conftest import eventually
from pool_support import LONG, gone

import cableway as cw
from cableway._pool import imap_feeder
from cableway._pool.callbacks import Callbacks
from cableway._pool.imap_feeder import Feeder
from cableway._pool.launch import process as processes
from cableway._pool.workers import Workers


def test_close_finishes_what_was_given(pool: cw.Pool) -> None:
    result = pool.map_async(tasks.slow_square, range(20), chunksize=1)
    lazily = pool.imap(tasks.square, (x for x in range(50)))
    pool.close()
    for call in (
        lambda: pool.apply(tasks.square, (1,)),
        lambda: pool.map_async(tasks.square, [1]),
        lambda: pool.imap(tasks.square, [1]),
        lambda: pool.__enter__(),
    ):
        with pytest.raises(ValueError, match="Pool not running"):
            call()
    pool.join()
    assert result.ready() and result.get() == [x * x for x in range(20)]
    assert list(lazily) == [x * x for x in range(50)]


def test_join_needs_close_first(forked: cw.Pool) -> None:
    with pytest.raises(ValueError, match="still running"):
        forked.join()


def test_the_initializer_has_run_when_a_closed_pool_was_joined(tmp_path: Path, method: str) -> None:
    starts = tmp_path / "starts"
    pool = cw.Pool(1, tasks.note_start, (str(starts),), context=method)
    pool.close()
    pool.join()
    assert len(starts.read_text().split()) == 1


def test_terminate_ends_running_tasks_at_once(method: str, tmp_path: Path) -> None:
    pool = cw.Pool(2, context=method)
    pids = set(pool.map(tasks.pid, range(10), chunksize=1))
    mark = tmp_path / "mark"
    running = pool.apply_async(tasks.leave_mark, (str(mark),))
    waiting = pool.map_async(tasks.nap, [60] * 10, chunksize=1)
    lazily = pool.imap(tasks.nap, iter([60] * 10))
    assert eventually(mark.exists, LONG)
    pool.terminate()
    pool.join()
    assert all(gone(pid) for pid in pids)
    for call in (running.get, waiting.get, lambda: next(lazily)):
        with pytest.raises(cw.Error, match="terminated"):
            call()
    pool.terminate()
    with pytest.raises(ValueError, match="Pool not running"):
        pool.apply(tasks.square, (1,))


def test_an_input_that_a_pool_did_not_live_to_read_has_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended, served = threading.Event(), threading.Event()

    def start_late(serve: Callable[..., None], args: tuple[object, ...]) -> int:
        def late() -> None:
            ended.wait(LONG)
            serve(*args)
            served.set()

        return start_new_thread(late, ())

    monkeypatch.setattr(imap_feeder, "start_new_thread", start_late)
    pool = cw.Pool(2)
    lazily = pool.imap(tasks.square, iter(range(10)))
    pool.terminate()
    ended.set()
    pool.join()
    assert served.wait(LONG)
    with pytest.raises(cw.Error, match="terminated"):
        next(lazily)


def test_with_ends_the_pool(method: str) -> None:
    with cw.Pool(2, context=method) as pool:
        pids = set(pool.map(tasks.pid, range(10), chunksize=1))
        assert "RUN" in repr(pool)
    assert all(gone(pid) for pid in pids)
    pool.join()


def test_a_pool_that_is_dropped_warns_and_ends(method: str) -> None:
    pool = cw.Pool(1, context=method)
    pid = pool.apply(tasks.pid)
    with pytest.warns(ResourceWarning, match="unclosed running multiprocessing pool"):
        del pool
        gc.collect()
    assert eventually(lambda: gone(pid))


def test_a_result_keeps_its_pool() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        assert cw.Pool(1, context="fork").map_async(tasks.slow_square, range(9)).get(LONG)[8] == 64


def test_pools_leave_no_thread_and_no_descriptor(method: str) -> None:
    def use() -> None:
        with cw.Pool(2, context=method) as pool:
            seen: list[int] = []
            pool.map_async(tasks.square, range(8), callback=seen.extend).wait()
            assert list(pool.imap(tasks.square, iter(range(20)))) == [x * x for x in range(20)]
            with pytest.raises(cw.WorkerDied):
                pool.apply(tasks.killed)
            pool.close()
            pool.join()

    use()
    gc.collect()
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(4):
        use()
    gc.collect()
    assert eventually(lambda: threading.active_count() <= threads)
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)


def ends_soon(pool: cw.Pool) -> bool:
    """Whether a pool that was closed ends, told by another thread than the one that fails if not."""
    pool.close()
    joins = threading.Thread(target=pool.join, daemon=True)
    joins.start()
    joins.join(LONG)
    return not joins.is_alive()


@pytest.mark.parametrize("name", ["cableway-pool-deaths", "cableway-pool"])
@pytest.mark.parametrize("make", [cw.Pool, cw.Executor])
def test_no_worker_stays_when_a_thread_of_the_pool_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, method: str, make: Any, name: str
) -> None:
    """As at the limit on threads, or where the interpreter ends: its exit would wait for an Executor's for ever."""
    before, start = set(multiprocessing.active_children()), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        made = make(2, mp_context=method) if make is cw.Executor else make(2, context=method)
        made.submit(tasks.square, 1)
    assert set(multiprocessing.active_children()) <= before


def test_a_pool_ends_whose_input_could_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    pool = cw.Pool(1, context="fork")
    with monkeypatch.context() as patched:
        patched.setattr(Feeder, "start", start)
        with pytest.raises(RuntimeError, match="can't start"):
            pool.imap(tasks.square, iter([1]))
    assert pool.map(tasks.square, [2]) == [4]
    assert ends_soon(pool)


def test_a_pool_ends_whose_callback_was_interrupted_when_its_thread_had_started() -> None:
    """A Ctrl-C may come when the thread runs and has been told nothing yet: the next callback starts no second one."""
    callbacks, ran = Callbacks(), []
    put, told = callbacks._queue.put, []

    class Interrupted:
        get = callbacks._queue.get

        @staticmethod
        def put(entry: object) -> None:
            told.append(entry)
            if len(told) == 1:
                raise KeyboardInterrupt
            put(entry)  # type: ignore[arg-type]

    callbacks._queue = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        callbacks.run(lambda: ran.append(1), lambda: None)
    callbacks.run(lambda: ran.append(2), lambda: None)
    callbacks.end()
    callbacks.join()
    assert ran == [2] and len(callbacks._threads) == 1
    assert eventually(lambda: callbacks._threads[0] not in sys._current_frames(), LONG)


def test_a_wait_within_a_wait_leaves_the_outer_one_told(forked: cw.Pool) -> None:
    """As that of a signal's handler."""
    engine, seen = forked._engine, []

    def looks() -> bool:
        if not seen:
            engine.wait_until(lambda: True, None)
            seen.append(set(engine._waiters))
        return True

    assert engine.wait_until(looks, None)
    assert seen == [{threading.get_ident()}]
    assert not engine._waiters


def test_a_closed_pool_replaces_workers_while_there_is_work(tmp_path: Path, method: str) -> None:
    """Else tasks that need each other would wait for ever, and others for one worker after the other."""
    pool = cw.Pool(2, maxtasksperchild=1, context=method)
    result = pool.map_async(tasks.meet, [(str(tmp_path), i) for i in range(8)], chunksize=1)
    assert ends_soon(pool)
    assert result.get() == list(range(8))


@pytest.mark.parametrize("end", ["close", "terminate"])
def test_join_ends_a_pool_whose_end_was_interrupted(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = cw.Pool(1, context="fork")
    pool.apply(tasks.square, (2,))
    results = pool.imap(tasks.square, iter([3, 4]), buffersize=1)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pool._engine, "wake", interrupted)
        patched.setattr(Workers, "terminate", lambda _: interrupted())
        with pytest.raises(KeyboardInterrupt):
            getattr(pool, end)()
    joins = threading.Thread(target=pool.join, daemon=True)
    joins.start()
    joins.join(LONG)
    assert not joins.is_alive()
    if end == "close":
        assert list(results) == [9, 16]


@pytest.mark.parametrize("after", ["start", "watch"])
@pytest.mark.parametrize("when", ["first", "later"])
def test_a_worker_whose_start_fails_late_is_not_left(
    after: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is there by then: a handler raises, or there is no descriptor to watch it by."""
    started: list[int] = []

    def fails(real: Any, process: Any) -> Any:
        result = real(process)
        if armed:
            started.append(process.pid)
            raise OSError("no more of that")
        return result

    place, name = {"start": (BaseProcess, "start"), "watch": (processes, "open_pidfd")}[after]
    real: Any = getattr(place, name)
    armed = when == "first"
    monkeypatch.setattr(place, name, lambda process: fails(real, process))
    if when == "first":
        with pytest.raises(OSError, match="no more of that"):
            cw.Pool(2, context="spawn")
    else:
        pool = cw.Pool(1, context="spawn", initializer=os.getpid)
        assert pool.apply(tasks.square, (2,)) == 4
        armed = True
        pool._pool[0].kill()  # it has a successor
        with pytest.raises(OSError, match="no more of that"):
            while True:
                pool.apply(tasks.square, (2,))
        pool.terminate()
        pool.join()
    assert len(started) == 1
    assert eventually(lambda: gone(started[0]))
