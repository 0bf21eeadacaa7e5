"""What becomes of a result with large buffers when its worker has answered and the parent has not opened them yet: it is
opened, refused, or lost with its worker; and the worker goes on in each case."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pool_tasks as tasks
import pytest
from cli_support import run_json
from conftest import Script, broker_pid, disconnect, eventually, running_broker, stop_broker
from pool_support import LONG, answers_of, gone, nobody_collects, workers_of

import cableway as cw
from cableway._pool import deliver, supervisor

NBYTES = 1 << 20
_sizes = itertools.count(40 << 20, 8 << 20)


@pytest.fixture
def large() -> int:
    """Bytes for which there is no room in any slab that the parent has mapped; it has nothing that it could give up."""
    gc.collect()
    disconnect()
    return next(_sizes)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent does not refuse while a test looks."""
    monkeypatch.setattr(supervisor, "OPEN_TIMEOUT_SECONDS", float(LONG))
    monkeypatch.setattr(deliver, "OPEN_TIMEOUT_SECONDS", float(LONG))


@contextlib.contextmanager
def answered(pool: Any, results: list[Any], count: int, nbytes: int = NBYTES) -> Iterator[None]:
    """Calls whose results lie there, published and not opened."""
    with nobody_collects(pool):
        before = answers_of(pool)
        results.extend(pool.apply_async(tasks.zeros, (nbytes,)) for _ in range(count))
        assert eventually(lambda: answers_of(pool) == before + count, LONG)
        yield


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can take no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)


@contextlib.contextmanager
def no_memory() -> Iterator[None]:
    """This process can map no more than some MiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (8 << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


LIMITS = {"descriptors": no_descriptors, "memory": no_memory}


def ends(pool: Any) -> bool:
    """Whether close() and join() come back."""
    pool.close()
    joins = threading.Thread(target=pool.join, daemon=True)
    joins.start()
    joins.join(LONG)
    return not joins.is_alive()


@pytest.mark.parametrize("limit", LIMITS)
def test_a_worker_goes_on_when_its_result_cannot_be_opened(
    limit: str, method: str, large: int
) -> None:
    with cw.Pool(1, context=method) as pool:
        assert pool.apply(tasks.square, (3,)) == 9
        results: list[Any] = []
        with contextlib.ExitStack() as stack:
            with answered(pool, results, 1, large):
                stack.enter_context(LIMITS[limit]())
            with pytest.raises(cw.Error):
                results[0].get(LONG)
        assert pool.apply_async(tasks.square, (4,)).get(LONG) == 16
        assert pool.apply_async(tasks.zeros, (large,)).get(LONG).nbytes == large
        assert ends(pool)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("limit", LIMITS)
def test_a_result_is_not_lost_for_a_moment_without_room(limit: str, large: int) -> None:
    with cw.Pool(2) as pool:
        results: list[Any] = []
        with contextlib.ExitStack() as stack:
            with answered(pool, results, 2, large):
                stack.enter_context(LIMITS[limit]())
            helper = pool._engine._supervisor
            assert eventually(lambda: bool(helper._later), LONG)
        for result in results:
            assert result.get(LONG).nbytes == large
        assert ends(pool)


@pytest.mark.usefixtures("patient")
def test_a_pool_ends_while_results_cannot_be_opened(large: int) -> None:
    pool = cw.Pool(1)
    results: list[Any] = []
    with contextlib.ExitStack() as stack:
        with answered(pool, results, 1, large):
            stack.enter_context(no_memory())
        assert eventually(lambda: bool(pool._engine._supervisor._later), LONG)
        pool.terminate()
        pool.join()
        with pytest.raises(cw.Error):
            results[0].get(LONG)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_go_on_when_the_broker_was_lost_before_their_results_were_opened(
    workers: int, method: str, broker_folder: Path, large: int
) -> None:
    with cw.Pool(workers, context=method) as pool:
        workers_of(pool, workers)
        assert pool.apply(tasks.zeros, (300_000,)).nbytes == 300_000
        results: list[Any] = []
        with answered(pool, results, workers, large):
            os.kill(running_broker(broker_folder), signal.SIGKILL)
            assert eventually(lambda: broker_pid(broker_folder) == 0, LONG)
        for result in results:
            with pytest.raises((cw.BrokerLost, cw.Stale)):
                result.get(LONG)
        assert pool.map_async(tasks.square, range(8), 1).get(LONG) == [x * x for x in range(8)]
        assert ends(pool)


class Left(Exception):
    """Raised by a handler."""


def test_a_worker_goes_on_when_its_caller_has_left() -> None:
    def leave(*_: object) -> None:
        raise Left

    before = signal.signal(signal.SIGALRM, leave)
    try:
        with cw.Pool(1) as pool:
            for _ in range(5):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                with pytest.raises(Left):
                    pool.apply(tasks.zeros_after, (NBYTES, 0.2))
            assert pool.apply_async(tasks.square, (4,)).get(LONG) == 16
            assert ends(pool)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_block_that_was_refused_is_used_again(large: int) -> None:
    with cw.Pool(1) as pool:
        results: list[Any] = []
        for _ in range(6):
            with contextlib.ExitStack() as stack:
                with answered(pool, results, 1, large):
                    stack.enter_context(no_memory())
                with pytest.raises(cw.Error):
                    results.pop().get(LONG)
        assert pool.apply(tasks.blocks_of_this_worker) <= 1


ROUNDS = 20  # in which the broker once takes a dead worker's memory back before the parent opens it


def killed_after_its_answer(pool: Any, mark: Path) -> Any:
    """The result of a call whose worker was killed when it had answered, before that was opened."""
    (pid,) = workers_of(pool, 1)
    clients = clients_now()
    with nobody_collects(pool):
        before = answers_of(pool)
        result = pool.apply_async(tasks.mark_and_zeros, (str(mark), NBYTES))
        assert eventually(lambda: answers_of(pool) == before + 1, LONG)
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: gone(pid), LONG)
        assert eventually(lambda: clients_now() < clients, LONG)
    return result


def clients_now() -> int:
    count: int = run_json("status")["gauges"]["clients"]
    return count


def test_a_task_is_run_again_whose_worker_died_before_its_result_was_opened(
    tmp_path: Path, method: str
) -> None:
    runs = []
    while runs.count("xx") < 2 and len(runs) < ROUNDS:
        mark = tmp_path / str(len(runs))
        with cw.Pool(1, context=method, retries=1) as pool:
            assert pool.apply(tasks.zeros, (300_000,)).nbytes == 300_000
            assert (killed_after_its_answer(pool, mark).get(LONG) == 0).all()
            assert ends(pool)
        runs.append(mark.read_text())
    assert set(runs) <= {"x", "xx"} and "xx" in runs, runs


def test_a_task_has_died_with_its_worker_before_its_result_was_opened(tmp_path: Path) -> None:
    died = 0
    for number in range(ROUNDS):
        mark = tmp_path / str(number)
        with cw.Pool(1) as pool:
            assert pool.apply(tasks.zeros, (300_000,)).nbytes == 300_000
            try:
                assert (killed_after_its_answer(pool, mark).get(LONG) == 0).all()
            except cw.WorkerDied as error:
                assert "SIGKILL" in str(error)
                died += 1
            assert mark.read_text() == "x"
            assert pool.apply(tasks.square, (3,)) == 9
        if died == 2:
            break
    assert died


def test_a_worker_goes_on_when_the_broker_takes_no_more_clients(
    script: Script, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("few")
    done = script(
        """
        import os
        import threading
        os.environ["CABLEWAY_MAX_CLIENTS"] = "1"
        import numpy as np
        import cableway as cw
        def zeros(n):
            return np.zeros(n, "u1")
        def square(x):
            return x * x
        if __name__ == "__main__":
            pool = cw.Pool(1)
            result = pool.apply_async(zeros, (1 << 20,))  # the worker is the one client
            try:
                result.get(60)
            except cw.Error as error:
                print(error)
            else:
                raise AssertionError("it was opened")
            assert pool.apply_async(square, (3,)).get(60) == 9
            pool.close()
            joins = threading.Thread(target=pool.join, daemon=True)
            joins.start()
            joins.join(60)
            assert not joins.is_alive()
    """,
        env={**os.environ, "CABLEWAY_DIR": str(folder)},
    )
    assert "CABLEWAY_MAX_CLIENTS" in done.stdout or "clients" in done.stdout, done.stdout
    stop_broker(folder)
