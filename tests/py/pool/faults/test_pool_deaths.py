"""Whatever ends a worker ends its own task alone, and another worker takes its place."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import pool_tasks as tasks
import pytest
from pool_support import LONG, gone, workers_of
from waiting import eventually, soon

import cableway as cw


@pytest.mark.parametrize(
    ("task", "argument", "exitcode"),
    [
        ("killed", None, -9),
        ("exit_hard", 4, 4),
        ("exit_hard", 0, 0),
        ("exit_softly", 5, 5),
        ("exit_softly", 0, 0),
    ],
)
def test_a_worker_that_ends_in_a_task_raises_there_and_is_replaced(
    pool: cw.Pool, task: str, argument: Any, exitcode: int
) -> None:
    for _ in range(3):
        with pytest.raises(cw.WorkerDied) as caught:
            pool.apply_async(getattr(tasks, task), (argument,)).get(LONG)
        error = caught.value
        assert error.exitcode == exitcode
        assert error.signal == (9 if exitcode == -9 else None)
        assert error.function == f"pool_tasks.{task}"
        assert error.index == 0
        assert error.pid and gone(error.pid)
        assert ("SIGKILL" if exitcode == -9 else f"exit code {exitcode}") in str(error)
        assert pickle.loads(pickle.dumps(error)).pid == error.pid
    assert pool.map(tasks.square, range(20), chunksize=1) == [x * x for x in range(20)]


def test_a_death_costs_the_tasks_of_its_chunk_alone(forked: cw.Pool) -> None:
    others = forked.map_async(tasks.slow_square, range(30), chunksize=1)
    with pytest.raises(cw.WorkerDied) as caught:
        forked.map(tasks.kill_at_three, range(8), chunksize=2)
    assert caught.value.index == 2
    assert "items 2 to 3" in str(caught.value)
    assert others.get(LONG) == [x * x for x in range(30)]
    results = forked.imap(tasks.kill_at_three, range(6))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(cw.WorkerDied, match="item 3;"):
        next(results)
    assert list(results) == [4, 5]


def test_killed_idle_workers_are_replaced_and_initialized(method: str, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    with cw.Pool(2, tasks.note_start, (str(starts),), context=method) as pool:
        assert eventually(lambda: starts.exists() and len(starts.read_text().split()) == 2, LONG)
        assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]
        quick = []
        for number in range(3):
            pid = int(starts.read_text().split()[-1])
            os.kill(pid, signal.SIGKILL)
            started = lambda n=number: len(starts.read_text().split()) == 3 + n  # noqa: E731
            quick.append(soon(started))
            assert eventually(started, LONG)
        assert method == "spawn" or any(quick)  # spawn takes what Python takes to start
        assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]


def test_a_death_is_seen_although_a_child_of_the_worker_lives(
    forked: cw.Pool, tmp_path: Path
) -> None:
    pid_file = tmp_path / "child"
    with pytest.raises(cw.WorkerDied):
        forked.apply_async(tasks.fork_and_be_killed, (str(pid_file),)).get(tasks.CHILD_LIVES / 2)
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    assert forked.apply(tasks.square, (3,)) == 9


def test_a_child_that_a_task_forks_answers_nothing(forked: cw.Pool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for i in range(10):
            assert forked.apply(tasks.fork_and_return, (i,)) == i
    assert forked.map(tasks.square, range(20), chunksize=1) == [x * x for x in range(20)]


def test_an_interrupted_worker_ends_and_is_replaced(
    forked: cw.Pool, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(cw.WorkerDied) as caught:
        forked.apply_async(tasks.interrupted).get(LONG)
    assert caught.value.exitcode == 130
    for pid in workers_of(forked, 2):
        os.kill(pid, signal.SIGINT)  # between tasks it is the parent's business
    assert forked.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]
    assert "Traceback" not in capfd.readouterr().err


def test_a_failing_initializer_raises_at_the_caller(method: str) -> None:
    pool = cw.Pool(2, tasks.refuse_to_start, ("not today",), context=method)
    with pytest.raises(tasks.Fault, match="not today") as caught:
        pool.apply_async(tasks.square, (1,)).get(LONG)
    assert "in refuse_to_start" in str(caught.value.__cause__)
    for call in (lambda: pool.map(tasks.square, [1]), lambda: pool.__enter__()):
        with pytest.raises(tasks.Fault):
            call()
    pool.terminate()
    pool.join()


def test_workers_that_die_at_every_start_stop_the_pool(method: str) -> None:
    pool = cw.Pool(2, tasks.die_at_start, context=method)
    with pytest.raises(cw.WorkerDied, match="one after the other while they started") as caught:
        pool.map_async(tasks.square, [1]).get(LONG)
    assert caught.value.exitcode == 3
    pool.terminate()
    pool.join()


@pytest.mark.parametrize(("how", "exitcode"), [("exit", 3), ("raise", 1), ("fault", -11)])
def test_workers_that_die_whenever_they_are_ready_stop_the_pool(
    method: str, how: str, exitcode: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """It says how many it were, how many are borne, and how they ended."""
    pool = cw.Pool(2, tasks.die_when_ready, (how,), context=method)
    with pytest.raises(
        cw.WorkerDied, match="3 workers of the Pool died one after the other"
    ) as caught:
        eventually(lambda: bool(pool.map_async(tasks.square, [1]).get(LONG)) and False, LONG)
    assert "without having had a task" in str(caught.value) and "After 3 " in str(caught.value)
    assert caught.value.exitcode == exitcode and caught.value.pid
    assert (f"exit code {exitcode}" if exitcode > 0 else "SIGSEGV") in str(caught.value)
    pool.terminate()
    pool.join()
    assert how != "raise" or "just ready" in capfd.readouterr().err


def test_closing_does_not_wait_for_workers_that_die_whenever_they_are_ready() -> None:
    pool = cw.Pool(1, tasks.die_when_ready, ("exit",), context="fork")
    result = pool.map_async(tasks.square, range(3))
    pool.close()
    pool.join()
    with pytest.raises(cw.WorkerDied, match="without having had a task"):
        result.get(LONG)


def test_a_few_workers_that_die_when_they_are_ready_are_replaced(tmp_path: Path) -> None:
    """Two times two: what is counted are those between which no task was done."""
    mark = str(tmp_path / "mark")
    with cw.Pool(1, tasks.die_when_ready, ("exit", mark, 2), context="fork") as pool:
        assert pool.map_async(tasks.square, range(3)).get(LONG) == [0, 1, 4]
        Path(mark).write_text("")
        with pytest.raises(cw.WorkerDied, match="killed by SIGKILL while it ran"):
            pool.apply_async(tasks.killed).get(LONG)
        assert pool.map_async(tasks.square, range(3)).get(LONG) == [0, 1, 4]


def test_idle_workers_that_others_kill_are_replaced_for_ever() -> None:
    with cw.Pool(1, context="fork") as pool:
        dead: set[int] = set()
        for _ in range(8):
            assert eventually(lambda: {p.pid for p in pool._pool if p.pid} - dead != set())
            (pid,) = {p.pid for p in pool._pool} - dead
            assert eventually(
                lambda: all(worker.ready for worker in pool._engine._workers.living())
            )
            dead.add(pid)
            os.kill(pid, signal.SIGKILL)
        assert pool.map_async(tasks.square, range(3)).get(LONG) == [0, 1, 4]


def test_a_worker_killed_at_its_start_is_replaced(tmp_path: Path) -> None:
    with cw.Pool(1, tasks.die_at_first_start, (str(tmp_path / "mark"),), context="fork") as pool:
        assert pool.map_async(tasks.square, range(3)).get(LONG) == [0, 1, 4]


@pytest.mark.parametrize("how", ["dies", "raises"])
def test_a_pool_that_cannot_go_on_calls_each_error_callback_once(how: str, method: str) -> None:
    """Who waits by callbacks alone would wait for ever. (What terminate() cuts short calls none, as in multiprocessing.)"""
    told: list[tuple[str, type]] = []

    def by(name: str) -> Any:
        return lambda error: told.append((name, type(error)))

    gate = multiprocessing.get_context(method)
    initializer = tasks.die_at_start if how == "dies" else tasks.fail_at_start
    kind = cw.WorkerDied if how == "dies" else LookupError
    with cw.Pool(2, initializer, context=gate) as pool:
        results = []
        try:
            results += [pool.apply_async(len, ("x",), error_callback=by("apply"))]
            results += [pool.map_async(len, ["x"] * 9, error_callback=by("map"))]
            results += [pool.starmap_async(max, [(1, 2)] * 9, error_callback=by("starmap"))]
            results += [pool.apply_async(len, ("x",), callback=by("none"))]
        except kind:
            pass  # it could not go on before all were asked for
        names = ["apply", "map", "starmap"][: len(results)]
        for result in results:
            with pytest.raises(kind):
                result.get(60)
        assert sorted(told) == [(name, kind) for name in sorted(names)]


def test_what_terminate_cuts_short_calls_nobody(method: str) -> None:
    told: list[Any] = []
    with cw.Pool(1, context=multiprocessing.get_context(method)) as pool:
        result = pool.apply_async(
            time.sleep, (60,), callback=told.append, error_callback=told.append
        )
        pool.terminate()
        pool.join()
        with pytest.raises(cw.Error):
            result.get(60)
    assert told == []
