"""How a Pool ends: closed, terminated or dropped, it leaves no process, no thread and no descriptor."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from pathlib import Path

import pool_tasks as tasks
import pytest
from conftest import eventually
from pool_support import LONG, gone

import cableway as cw


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
