"""What the Pool promises: multiprocessing.Pool's interface, arrays through shared memory, and that nothing hangs."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import multiprocessing.pool
import operator
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from conftest import Script, broker_pid, eventually

import causeway as cw
from causeway._pool_cpus import usable_cpus

LONG = 60  # seconds after which a test has failed; nothing here takes long
MIB = 1 << 20


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def method(request: pytest.FixtureRequest) -> str:
    """Each start method."""
    return str(request.param)


@pytest.fixture
def pool(method: str) -> Iterator[cw.Pool]:
    """A pool of two workers."""
    with cw.Pool(2, context=method) as made:
        yield made
    made.join()


@pytest.fixture
def forked() -> Iterator[cw.Pool]:
    """A pool of two workers by fork, for what does not depend on the start method."""
    with cw.Pool(2, context="fork") as made:
        yield made
    made.join()


@pytest.fixture(scope="module")
def standard() -> Iterator[Any]:
    """The standard library's pool, for comparison."""
    with multiprocessing.get_context("fork").Pool(2) as made:
        yield made


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def all_have_started(pool: cw.Pool) -> bool:
    return all(worker.state == "idle" for worker in pool._engine._crew._workers if worker) and all(
        pool._engine._crew._workers
    )


# ---- the methods give what multiprocessing.Pool's give


def test_every_method_gives_the_same_as_the_standard_pool(pool: cw.Pool, standard: Any) -> None:
    items = list(range(37))
    pairs = [(x, x + 1) for x in items]
    calls: list[Callable[[Any], Any]] = [
        lambda p: p.apply(tasks.add, (1,), {"z": 5}),
        lambda p: p.apply(tasks.add, [1, 2]),
        lambda p: p.apply_async(tasks.add, (1, 2)).get(LONG),
        lambda p: p.map(tasks.square, items),
        lambda p: p.map(tasks.slow_square, items, chunksize=4),
        lambda p: p.map(tasks.square, iter(items), 1),
        lambda p: p.map(tasks.square, np.arange(5)),
        lambda p: p.map(tasks.square, "ab" and range(3)),
        lambda p: p.map_async(tasks.square, items, chunksize=100).get(LONG),
        lambda p: p.starmap(tasks.add, pairs),
        lambda p: p.starmap_async(tasks.add, pairs, chunksize=3).get(LONG),
        lambda p: list(p.imap(tasks.slow_square, items)),
        lambda p: list(p.imap(tasks.slow_square, iter(items), chunksize=5)),
        lambda p: sorted(p.imap_unordered(tasks.slow_square, items)),
        lambda p: sorted(p.imap_unordered(tasks.slow_square, iter(items), chunksize=5)),
        lambda p: p.map(tasks.square, []),
        lambda p: p.map(tasks.square, iter(())),
        lambda p: list(p.imap(tasks.square, [])),
        lambda p: list(p.imap(tasks.square, iter(()))),
        lambda p: list(p.imap_unordered(tasks.square, iter(()))),
        lambda p: p.map(functools.partial(tasks.add, 5), items),
        lambda p: p.map(operator.neg, items),
        lambda p: p.map(str, items),
        lambda p: p.map("{}-{}".format, items[:0]),
    ]
    for number, call in enumerate(calls):
        assert call(pool) == call(standard), number


def test_lambdas_and_local_functions_work(pool: cw.Pool) -> None:
    base = 10

    def local(x: int) -> int:
        return x + base

    assert pool.map(local, range(5)) == [10, 11, 12, 13, 14]
    assert pool.apply(lambda x: x + base, (1,)) == 11


def test_results_come_as_they_are_ready_unordered_and_in_order(forked: cw.Pool) -> None:
    assert list(forked.imap(tasks.nap, [0.3, 0.0])) == [0.3, 0.0]
    assert list(forked.imap_unordered(tasks.nap, [0.3, 0.0])) == [0.0, 0.3]


def test_a_slow_task_holds_no_other_back(forked: cw.Pool) -> None:
    began = time.monotonic()
    slow = forked.apply_async(tasks.nap, (2.0,))
    assert forked.map(tasks.square, range(100), chunksize=1) == [x * x for x in range(100)]
    assert time.monotonic() - began < 1.5
    assert not slow.ready()
    assert slow.get(LONG) == 2.0


def test_results_tell_whether_they_are_ready(forked: cw.Pool) -> None:
    result = forked.apply_async(tasks.nap, (0.5,))
    assert not result.ready()
    with pytest.raises(ValueError, match="not ready"):
        result.successful()
    result.wait(0.01)
    assert not result.ready()
    with pytest.raises(cw.Timeout):
        result.get(timeout=0.01)
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(timeout=0)
    with pytest.raises(TimeoutError):
        result.get(timeout=-1)
    assert result.get(timeout=LONG) == 0.5
    assert result.ready() and result.successful()
    bad = forked.apply_async(tasks.fail, (1,))
    bad.wait()
    assert bad.ready() and not bad.successful()


def test_imap_next_takes_a_timeout(forked: cw.Pool) -> None:
    results = forked.imap(tasks.nap, [0.4, 0.0])
    with pytest.raises(multiprocessing.TimeoutError):
        results.next(timeout=0.05)
    assert results.next(timeout=LONG) == 0.4
    assert next(results) == 0.0
    for _ in range(2):
        with pytest.raises(StopIteration):
            results.next(timeout=1)


def test_imap_reads_its_input_only_some_tasks_ahead(forked: cw.Pool) -> None:
    read = 0

    def endless() -> Iterator[float]:
        nonlocal read
        while True:
            read += 1
            yield 0.01

    results = forked.imap(tasks.nap, endless())
    assert [next(results) for _ in range(5)] == [0.01] * 5
    time.sleep(0.2)
    assert read < 200


def test_imaps_can_be_chained(forked: cw.Pool) -> None:
    inner = forked.imap(tasks.square, (x for x in range(50)))
    assert list(forked.imap(tasks.square, inner)) == [x**4 for x in range(50)]


def test_callbacks_run_before_the_result_is_ready(forked: cw.Pool) -> None:
    seen: list[Any] = []
    threads: list[str] = []

    def note(value: Any) -> None:
        threads.append(threading.current_thread().name)
        seen.append(value)

    forked.apply_async(tasks.square, (3,), callback=note).wait()
    assert seen == [9]
    forked.map_async(tasks.square, [1, 2], callback=note).wait()
    assert seen == [9, [1, 4]]
    forked.map_async(tasks.square, [], callback=note).wait()
    assert seen == [9, [1, 4], []]
    forked.apply_async(tasks.fail, (1,), callback=note, error_callback=note).wait()
    assert isinstance(seen[-1], tasks.Fault)
    forked.starmap_async(tasks.fail_at_three, [(3,)], callback=note, error_callback=note).wait()
    assert seen[-1].number == 3
    assert threading.current_thread().name not in threads


def test_a_callback_may_use_the_pool_and_may_raise(
    forked: cw.Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []
    result = forked.apply_async(
        tasks.square, (3,), callback=lambda v: seen.append(forked.apply(tasks.square, (v,)))
    )
    assert result.get(LONG) == 9
    assert seen == [81]

    def bad(_: Any) -> None:
        raise RuntimeError("in a callback")

    assert forked.apply_async(tasks.square, (4,), callback=bad).get(LONG) == 16
    assert forked.apply_async(tasks.square, (5,), callback=seen.append).get(LONG) == 25
    assert seen == [81, 25]
    assert "in a callback" in capsys.readouterr().err


def test_many_threads_may_share_a_pool(forked: cw.Pool) -> None:
    found: dict[int, Any] = {}

    def use(number: int) -> None:
        found[number] = [forked.apply(tasks.add, (number, i)) for i in range(50)]

    threads = [threading.Thread(target=use, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert found == {n: [n + i for i in range(50)] for n in range(8)}


# ---- exceptions


def test_an_exception_comes_back_with_the_remote_traceback(pool: cw.Pool) -> None:
    for call in (
        lambda: pool.apply(tasks.fail, (1,)),
        lambda: pool.map(tasks.fail, [1]),
        lambda: pool.starmap(tasks.fail, [(1,)]),
        lambda: list(pool.imap(tasks.fail, [1])),
        lambda: list(pool.imap_unordered(tasks.fail, iter([1]))),
    ):
        with pytest.raises(tasks.Fault, match="no 1") as caught:
            call()
        assert caught.value.number == 7
        cause = caught.value.__cause__
        assert isinstance(cause, multiprocessing.pool.RemoteTraceback)  # type: ignore[attr-defined]
        assert "in fail" in str(cause) and "raise Fault" in str(cause)


def test_map_ends_all_its_tasks_before_it_raises(forked: cw.Pool, tmp_path: Path) -> None:
    result = forked.map_async(tasks.fail_at_three, range(20), chunksize=1)
    with pytest.raises(tasks.Fault):
        result.get(LONG)
    assert forked.map(tasks.square, [2]) == [4]


def test_imap_goes_on_after_an_exception(forked: cw.Pool) -> None:
    for items in (range(6), iter(range(6))):
        results = forked.imap(tasks.fail_at_three, items)
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(tasks.Fault):
            next(results)
        assert list(results) == [4, 5]


def test_an_iterable_that_raises_raises_at_the_caller(forked: cw.Pool) -> None:
    def broken(n: int) -> Iterator[int]:
        yield from range(n)
        raise tasks.Fault("iterable", n)

    with pytest.raises(tasks.Fault):
        forked.map(tasks.square, broken(3))
    for chunksize in (1, 2):
        results = forked.imap(tasks.square, broken(4), chunksize)
        assert [next(results) for _ in range(4)] == [0, 1, 4, 9]
        with pytest.raises(tasks.Fault):
            next(results)
        with pytest.raises(StopIteration):
            next(results)
    with pytest.raises(tasks.Fault):
        list(forked.imap_unordered(tasks.square, broken(0)))


def test_what_is_no_exception_of_the_usual_kind_comes_back_too(forked: cw.Pool) -> None:
    with pytest.raises(tasks.Outcome):
        forked.apply(tasks.base_fault)
    assert forked.apply(tasks.square, (2,)) == 4


@pytest.mark.parametrize("task", ["unpicklable_result", "stubborn_result", "unpicklable_fault"])
def test_what_cannot_be_pickled_is_a_maybe_encoding_error(pool: cw.Pool, task: str) -> None:
    for _ in range(3):
        with pytest.raises(multiprocessing.pool.MaybeEncodingError) as caught:  # type: ignore[attr-defined]
            pool.apply(getattr(tasks, task))
        assert "Error sending result" in str(caught.value)
    assert pool.apply(tasks.square, (3,)) == 9


@pytest.mark.parametrize("task", ["unreadable_result", "unreadable_fault"])
def test_what_cannot_be_unpickled_here_is_reported(pool: cw.Pool, task: str) -> None:
    with pytest.raises(multiprocessing.pool.MaybeEncodingError):  # type: ignore[attr-defined]
        pool.apply_async(getattr(tasks, task)).get(LONG)
    with pytest.raises(multiprocessing.pool.MaybeEncodingError):  # type: ignore[attr-defined]
        pool.map_async(getattr(tasks, task), range(3)).get(LONG)
    assert pool.apply(tasks.square, (3,)) == 9


def test_arguments_that_cannot_be_sent_raise_at_get(forked: cw.Pool) -> None:
    for argument in (tasks.CannotBePickled(), tasks.CannotBeRead(), threading.Lock()):
        result = forked.apply_async(tasks.same, (argument,))
        with pytest.raises((RuntimeError, TypeError)):
            result.get(LONG)
    results = forked.imap(
        tasks.same, iter([tasks.ExitsWhenPickled()] * 9)
    )  # also on the helper's thread
    for _ in range(9):
        with pytest.raises(SystemExit):
            next(results)
    results = forked.imap(tasks.same, [1, tasks.CannotBePickled(), 3])
    assert next(results) == 1
    with pytest.raises(RuntimeError):
        next(results)
    assert next(results) == 3
    assert forked.apply(tasks.square, (3,)) == 9


# ---- deaths


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
        before = time.monotonic()
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
        assert time.monotonic() - before < 5
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
        took = []
        for number in range(3):
            pid = int(starts.read_text().split()[-1])
            before = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            assert eventually(lambda n=number: len(starts.read_text().split()) == 3 + n, LONG)  # type: ignore[misc]
            took.append(time.monotonic() - before)
        assert method == "spawn" or min(took) < 1  # spawn takes what Python takes to start
        assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]


def test_random_kills_lose_no_task_of_another_worker() -> None:
    rounds = 300 if os.environ.get("CAUSEWAY_SOAK") else 30
    generator = np.random.default_rng(seed := int.from_bytes(os.urandom(4), "little"))
    print(f"seed {seed}")
    payload = np.arange(20_000.0)
    with cw.Pool(3, context="fork") as pool:
        for _ in range(rounds):
            pids = {worker.pid for worker in pool._engine._crew.living()}
            result = pool.map_async(tasks.doubled, [payload] * 24, chunksize=1)
            singles = [pool.apply_async(tasks.slow_square, (i,)) for i in range(12)]
            time.sleep(float(generator.uniform(0, 0.02)))
            victim = int(generator.choice(sorted(pids)))
            os.kill(victim, signal.SIGKILL)
            died = 0
            try:
                assert all((array == payload * 2).all() for array in result.get(LONG))
            except cw.WorkerDied as error:
                assert error.pid == victim
                died += 1
            for i, single in enumerate(singles):
                try:
                    assert single.get(LONG) == i * i
                except cw.WorkerDied as error:
                    assert error.pid == victim
                    died += 1
            assert died <= 1


def test_a_death_is_seen_although_a_child_of_the_worker_lives(forked: cw.Pool) -> None:
    before = time.monotonic()
    with pytest.raises(cw.WorkerDied):
        forked.apply_async(tasks.fork_and_be_killed).get(LONG)
    assert time.monotonic() - before < 3
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
    assert eventually(lambda: all_have_started(forked), LONG)
    for pid in {worker.pid for worker in forked._engine._crew.living()}:
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


def test_the_initializer_runs_in_each_worker(method: str) -> None:
    with cw.Pool(2, tasks.remember, (1, "two"), context=method) as pool:
        assert pool.map(tasks.remembered, range(8), chunksize=1) == [[1, "two"]] * 8


def test_workers_are_replaced_after_maxtasksperchild(method: str) -> None:
    with cw.Pool(2, maxtasksperchild=2, context=method) as pool:
        pids = pool.map(tasks.pid, range(12), chunksize=1)
        assert len(set(pids)) >= 6
        assert all(pids.count(pid) <= 2 for pid in pids)
        big = np.arange(50_000.0)
        for array in pool.map(tasks.doubled, [big] * 6, chunksize=1):
            assert (array == big * 2).all()
        pool.close()
        pool.join()


def test_nothing_is_left_when_the_parent_is_killed(
    method: str, script: Script, broker_folder: Path
) -> None:
    text = f"""
        import os, sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import numpy as np
        import causeway as cw
        import pool_tasks as tasks

        if __name__ == "__main__":
            pool = cw.Pool(2, context={method!r})
            big = np.ones(1 << 20)
            kept = pool.map(tasks.doubled, [big] * 4)
            print(*{{worker.pid for worker in pool._engine._crew.living()}}, flush=True)
            pool.map_async(tasks.nap, [60] * 2, chunksize=1)
            pool.map_async(tasks.doubled, [big] * 10, chunksize=1)
            time.sleep(0.3)
            os.kill(os.getpid(), 9)
    """
    cw.names()  # a client that lives on, so that the broker does
    took = []
    for _ in range(3):
        done = script(text, check=False)
        began = time.monotonic()
        assert done.returncode == -9, done.stderr
        pids = [int(word) for word in done.stdout.split()]
        assert len(pids) == 2
        assert eventually(lambda p=pids: all(gone(pid) for pid in p))  # type: ignore[misc]
        took.append(time.monotonic() - began)
    assert min(took) < 1


def test_the_pool_outlives_its_broker(method: str, broker_folder: Path) -> None:
    big = np.arange(40_000.0)
    with cw.Pool(2, context=method) as pool:
        assert (pool.apply(tasks.doubled, (big,)) == big * 2).all()
        # A worker that starts without fork needs the broker.
        assert eventually(lambda: all_have_started(pool), LONG)
        os.kill(broker_pid(broker_folder), signal.SIGKILL)
        assert pool.map(tasks.square, range(4), chunksize=1) == [0, 1, 4, 9]

        def works() -> bool:
            try:
                cw.put("pool/alive", big)
                return all((array == big * 2).all() for array in pool.map(tasks.doubled, [big] * 4))
            except (cw.BrokerLost, cw.Stale) as error:
                print(error)
                return False

        assert eventually(works)


# ---- its end


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
    before = time.monotonic()
    pool.terminate()
    pool.join()
    assert time.monotonic() - before < 5
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


def test_a_script_that_ends_with_work_under_way_ends(method: str, script: Script) -> None:
    before = time.monotonic()
    done = script(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import causeway as cw
        import pool_tasks as tasks

        if __name__ == "__main__":
            pool = cw.Pool(2, context={method!r})
            print(pool.apply(tasks.square, (3,)))
            pool.map_async(tasks.nap, [60] * 8, chunksize=1)
    """)
    assert done.stdout == "9\n"
    assert time.monotonic() - before < 20


def test_ctrl_c_in_the_parent_works(script: Script) -> None:
    done = script(f"""
        import os, signal, sys, threading, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import causeway as cw
        import pool_tasks as tasks

        if __name__ == "__main__":
            os.setpgid(0, 0)
            with cw.Pool(2, context="fork") as pool:
                pids = set(pool.map(tasks.pid, range(10), chunksize=1))
                threading.Timer(0.3, os.killpg, (0, signal.SIGINT)).start()
                try:
                    pool.map(tasks.nap, [60] * 4, chunksize=1)
                except KeyboardInterrupt:
                    print("interrupted")
            print(all(not os.path.exists(f"/proc/{{pid}}") for pid in pids))
    """)
    assert done.stdout.split() == ["interrupted", "True"]
    assert "Traceback" not in done.stderr


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


def test_workers_look_names_up_in_the_parents_namespace(method: str) -> None:
    with cw.connect(namespace="pool-test"):
        cw.put("x", [1.0, 2.0])
        with cw.Pool(1, context=method) as pool:
            assert pool.apply(tasks.sum_of_named, ("x",)) == 3.0


def test_bad_arguments_are_refused() -> None:
    for bad in (0, -1):
        with pytest.raises(ValueError):
            cw.Pool(bad)
        with pytest.raises(ValueError):
            cw.Pool(1, maxtasksperchild=bad)
    with pytest.raises(ValueError):
        cw.Pool(1, maxtasksperchild=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        cw.Pool(1, initializer=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        cw.Pool(1, context="by magic")
    with cw.Pool(1, context="fork") as pool:
        with pytest.raises(ValueError, match="Chunksize must be 1"):
            pool.imap(tasks.square, [1], 0)
        with pytest.raises(ValueError, match="Chunksize must be 1"):
            pool.map(tasks.square, [1], -3)
        with pytest.raises(TypeError):
            pool.map(tasks.square, 5)  # type: ignore[arg-type]
        with pytest.raises(NotImplementedError):
            pickle.dumps(pool)


def test_the_number_of_workers_is_that_of_the_cpus_left(tmp_path: Path) -> None:
    with cw.Pool() as pool:
        assert f"pool_size={usable_cpus()}" in repr(pool)
    affinity = len(os.sched_getaffinity(0))
    assert 1 <= usable_cpus() <= affinity
    (tmp_path / "self").mkdir()
    group = tmp_path / "fs" / "cgroup" / "outer" / "inner"
    group.mkdir(parents=True)
    (tmp_path / "self" / "cgroup").write_text("0::/outer/inner\n")
    assert usable_cpus(tmp_path, tmp_path) == affinity
    (group / "cpu.max").write_text("max 100000\n")
    (group.parent / "cpu.max").write_text("50000 100000\n")
    assert usable_cpus(tmp_path, tmp_path) == 1
    old = tmp_path / "fs" / "cgroup" / "cpu" / "box"
    old.mkdir(parents=True)
    (tmp_path / "self" / "cgroup").write_text("3:cpu,cpuacct:/box\n1:name=systemd:/\n")
    (old / "cpu.cfs_quota_us").write_text("-1")
    (old / "cpu.cfs_period_us").write_text("100000")
    assert usable_cpus(tmp_path, tmp_path) == affinity
    (old / "cpu.cfs_quota_us").write_text("100000")
    assert usable_cpus(tmp_path, tmp_path) == 1


def test_an_idle_pool_takes_no_cpu(forked: cw.Pool) -> None:
    pids = set(forked.map(tasks.pid, range(10), chunksize=1)) | {os.getpid()}

    def ticks() -> int:
        total = 0
        for pid in pids:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(words[11]) + int(words[12])
        return total

    time.sleep(0.2)
    before = ticks()
    time.sleep(2)
    assert ticks() - before <= 1  # of 200 for each process
