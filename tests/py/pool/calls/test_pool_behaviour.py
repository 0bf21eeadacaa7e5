"""What people do with a Pool beside calling it: callbacks that raise, pools that are dropped, threads, pools in pools."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from conftest import eventually
from pool_support import LONG, gone, workers_of

import cableway as cw

# ---- callbacks


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_what_a_callback_raises_is_printed_and_nothing_else(
    forked: cw.Pool, capsys: pytest.CaptureFixture[str], kind: type[BaseException]
) -> None:
    def bad(_: Any) -> None:
        raise kind("in a callback")

    assert forked.apply_async(tasks.square, (4,), callback=bad).get(LONG) == 16
    assert forked.map_async(tasks.square, [1, 2], callback=bad).get(LONG) == [1, 4]
    assert forked.starmap_async(tasks.add, [(1, 2)], callback=bad).get(LONG) == [3]
    assert forked.map_async(tasks.square, [], callback=bad).get(LONG) == []  # calls nobody
    with pytest.raises(tasks.Fault):
        forked.apply_async(tasks.fail, (1,), error_callback=bad).get(LONG)
    with pytest.raises(cw.WorkerDied):
        forked.map_async(tasks.killed, [1], error_callback=bad).get(LONG)
    seen: list[int] = []
    assert forked.apply_async(tasks.square, (5,), callback=seen.append).get(LONG) == 25
    assert seen == [25]
    assert capsys.readouterr().err.count(f"\n{kind.__name__}: in a callback\n") == 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_hook_for_exceptions_that_raises_stops_no_callback(
    forked: cw.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(*_: Any) -> None:
        raise RuntimeError("in a callback, or in the hook")

    for hook in ("sys.excepthook", "threading.excepthook"):
        monkeypatch.setattr(hook, bad)
    assert forked.apply_async(tasks.square, (4,), callback=bad).get(5) == 16
    seen: list[int] = []
    assert forked.apply_async(tasks.square, (5,), callback=seen.append).get(10) == 25
    assert seen == [25]


def test_a_callback_may_use_the_pool(forked: cw.Pool) -> None:
    seen: list[Any] = []
    result = forked.apply_async(
        tasks.square, (3,), callback=lambda v: seen.append(forked.apply(tasks.square, (v,)))
    )
    assert result.get(LONG) == 9
    assert seen == [81]
    done = threading.Event()

    def again(value: int) -> None:
        if value < 100:
            forked.apply_async(tasks.add, (value, 1), callback=again)
        else:
            done.set()

    forked.apply_async(tasks.same, (0,), callback=again)
    assert done.wait(LONG)


def test_a_slow_callback_holds_up_no_other_result(forked: cw.Pool) -> None:
    go, began = threading.Event(), threading.Event()

    def slow(_: Any) -> None:
        began.set()
        assert go.wait(LONG)

    held = forked.apply_async(tasks.square, (3,), callback=slow)
    assert began.wait(LONG)
    assert forked.map_async(tasks.square, range(20), 1).get(LONG) == [x * x for x in range(20)]
    assert list(forked.imap(tasks.square, iter(range(20)))) == [x * x for x in range(20)]
    assert not held.ready()
    go.set()
    assert held.get(LONG) == 9


@pytest.mark.parametrize("end", ["close", "terminate"])
def test_a_callback_may_end_the_pool(end: str) -> None:
    pool = cw.Pool(2, context="fork")
    pids = workers_of(pool, 2)
    result = pool.apply_async(tasks.square, (3,), callback=lambda _: getattr(pool, end)())
    assert result.get(LONG) == 9
    with pytest.raises(ValueError, match="Pool not running"):
        pool.apply(tasks.square, (1,))
    pool.join()
    assert all(gone(pid) for pid in pids)


# ---- dropped pools


def test_a_dropped_pool_ends_what_was_given_first(method: str, tmp_path: Path) -> None:
    seen: list[int] = []
    pool = cw.Pool(2, context=method)
    pids = workers_of(pool, 2)
    pool.apply_async(tasks.wait_for, (str(tmp_path / "go"),))
    pool.map_async(tasks.square, range(20), 1, callback=seen.extend)
    with pytest.warns(ResourceWarning, match="unclosed running multiprocessing pool"):
        del pool
        gc.collect()
        (tmp_path / "go").touch()
        assert eventually(lambda: all(gone(pid) for pid in pids), LONG)
    assert seen == [x * x for x in range(20)]


def test_a_dropped_iterator_ends_its_dropped_pool(forked: cw.Pool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        pool = cw.Pool(2, context="fork")
        pids = workers_of(pool, 2)
        results = pool.imap(tasks.square, iter(range(1000)))
        assert next(results) == 0
        del pool, results
        gc.collect()
        assert eventually(lambda: all(gone(pid) for pid in pids), LONG)


# ---- threads


def test_threads_share_a_pool(pool: cw.Pool) -> None:
    big = np.arange(20_000.0)
    expected: list[tuple[Callable[[int], Any], Callable[[int], Any]]] = [
        (lambda n: pool.apply(tasks.add, (n, 1)), lambda n: n + 1),
        (lambda n: pool.map(tasks.square, range(n, n + 9)), lambda n: _squares(n)),
        (lambda n: pool.map(tasks.square, range(n, n + 9), 1), lambda n: _squares(n)),
        (lambda n: list(pool.imap(tasks.square, range(n, n + 9))), lambda n: _squares(n)),
        (lambda n: list(pool.imap(tasks.square, iter(range(n, n + 9)), 2)), lambda n: _squares(n)),
        (
            lambda n: sorted(pool.imap_unordered(tasks.square, iter(range(n, n + 9)))),
            lambda n: _squares(n),
        ),
        (lambda n: pool.starmap(tasks.add, [(n, i) for i in range(5)]), lambda n: list(range(n, n + 5))),
        (lambda n: pool.apply(lambda x: x - n, (n,)), lambda _: 0),
        (lambda n: float(pool.apply(tasks.doubled, (big + n,)).sum()), lambda n: 2 * float((big + n).sum())),
    ]  # fmt: skip
    wrong: list[Any] = []
    done: list[int] = []

    def use(number: int) -> None:
        order = np.random.default_rng(number).permutation(len(expected) * 5) % len(expected)
        for step, which in enumerate(order):
            call, answer = expected[which]
            n = number * 1000 + step
            try:
                if (found := call(n)) != answer(n):
                    wrong.append((int(which), n, found))
            except BaseException as error:
                wrong.append((int(which), n, error))
                raise
        done.append(number)

    threads = [threading.Thread(target=use, args=(n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert not wrong
    assert sorted(done) == list(range(8))


def _squares(n: int) -> list[int]:
    return [x * x for x in range(n, n + 9)]


def test_a_pool_outlives_the_thread_that_made_it(method: str) -> None:
    made: list[Any] = []

    def make() -> None:
        pool = cw.Pool(2, context=method)
        made.extend([pool, workers_of(pool, 2)])

    thread = threading.Thread(target=make)
    thread.start()
    thread.join(LONG)
    pool, pids = made
    with pool:
        assert pool.map(tasks.square, range(20), 1) == [x * x for x in range(20)]
        assert workers_of(pool, 2) == pids


# ---- pools in pools: workers of a Pool are daemons, as the standard library's, and may have no children


@pytest.mark.parametrize("make", [tasks.nested_pool, tasks.nested_executor])
def test_a_pools_worker_may_have_no_pool_and_says_so(
    method: str, make: Callable[[int], Any]
) -> None:
    with cw.Pool(1, context=method) as pool:
        for attempt in range(5):
            with pytest.raises(AssertionError, match="daemonic processes are not allowed to have"):
                pool.apply(make, (3,))
            if attempt == 0:
                before = pool.apply(tasks.open_descriptors)
        assert pool.apply(tasks.open_descriptors) <= before
        assert pool.map(tasks.square, range(4), 1) == [0, 1, 4, 9]


def test_an_executors_worker_may_have_pools(method: str) -> None:
    with cw.Executor(2, method) as executor:
        for make in (tasks.nested_pool, tasks.nested_executor):
            assert list(executor.map(make, [3, 4])) == [[0, 1, 4], [0, 1, 4, 9]]


def test_a_pool_that_came_by_fork_is_not_the_childs(forked: cw.Pool) -> None:
    tasks.inherited = forked
    try:
        with (
            cw.Pool(1, context="fork") as other,
            pytest.raises(ValueError, match=f"belongs to the process {os.getpid()}"),
        ):
            other.apply(tasks.use_inherited)
    finally:
        tasks.inherited = None
    assert forked.apply(tasks.square, (3,)) == 9


def test_imap_unordered_remembers_no_more_than_what_is_under_way(forked: cw.Pool) -> None:
    """It must know what it has handed out, since an answer may be told twice; and not each number of a million."""
    results = forked.imap_unordered(abs, range(20_000))
    most = 0
    found = []
    for value in results:
        found.append(value)
        most = max(most, len(results._handed.ranges))
    assert sorted(found) == list(range(20_000))
    assert results._handed.ranges == [(0, 20_000)]
    assert most <= forked._engine._workers.task_queue.cells + 1


def test_one_slow_task_does_not_let_an_unordered_iterator_grow(forked: cw.Pool) -> None:
    items = ["slow", *range(5000)]
    results = forked.imap_unordered(tasks.nap_if_slow, items)
    before_slow = 0
    for value in results:
        if value == "slow":
            break
        before_slow += 1
        assert len(results._handed.ranges) <= forked._engine._workers.task_queue.cells + 1
    assert before_slow + 1 + sum(1 for _ in results) == len(items)


def test_an_answer_that_is_told_twice_is_handed_out_once(forked: cw.Pool) -> None:
    results = forked.imap_unordered(abs, range(100))
    found = []
    for value in results:
        found.append(value)
        results.task_done(value, True, [value])  # again
    assert sorted(found) == list(range(100))
