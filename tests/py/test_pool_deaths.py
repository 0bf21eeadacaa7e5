"""Whatever ends a worker ends its own task alone, and another worker takes its place."""

from __future__ import annotations

import os
import pickle
import signal
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


def test_a_worker_killed_at_its_start_is_replaced(tmp_path: Path) -> None:
    with cw.Pool(1, tasks.die_at_first_start, (str(tmp_path / "mark"),), context="fork") as pool:
        assert pool.map_async(tasks.square, range(3)).get(LONG) == [0, 1, 4]
