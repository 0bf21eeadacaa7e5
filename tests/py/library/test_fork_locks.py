"""A fork may come while any thread of the parent holds any lock: nothing in the child waits for one that nobody there has."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import pkgutil
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import numpy as np
import pytest

import cableway as cw
from cableway._pool import write_back

pytest.importorskip("joblib")
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
FORK = multiprocessing.get_context("fork")
LOCKS = (type(threading.Lock()), type(threading.RLock()))
THEIRS = {
    "torch",
    "cupy",
    "numba",
    "vllm",
    "sglang",
    "_dask",
    "dask",
    "_ray",
    "ray",
}  # modules that need a library

EXECUTOR: Any = None


def square(x: int) -> int:
    return x * x


def submit_to_own(x: int) -> str:
    try:
        return str(EXECUTOR.submit(square, x).result(60))
    except RuntimeError as error:
        return str(error)


def map_on_own(x: int) -> str:
    try:
        return str(list(EXECUTOR.map(square, [x])))
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("task", [submit_to_own, map_on_own])
@pytest.mark.parametrize("first", [True, False])
def test_a_task_that_submits_to_its_own_executor_is_told(
    task: Callable[[int], str], first: bool
) -> None:
    """The first task's workers are forked in the middle of the start; their successors afterwards."""
    global EXECUTOR
    EXECUTOR = cw.Executor(2, mp_context="fork", max_tasks_per_child=None if first else 1)
    try:
        if not first:
            assert [EXECUTOR.submit(square, i).result(60) for i in range(6)][5] == 25
        found = EXECUTOR.submit(task, 3).result(60)
        assert f"belongs to the process {os.getpid()}" in found
        assert EXECUTOR.submit(square, 4).result(60) == 16
    finally:
        EXECUTOR.shutdown()


def in_a_child(work: Callable[[], object]) -> Any:
    """What work() returns in a process that is forked here, or None if that takes a minute."""
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: theirs.send(work()))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(60) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()


def held_elsewhere(locks: list[Any], work: Callable[[], Any]) -> Any:
    """work() while another thread holds locks."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        taken.set()
        done.wait()
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        return work()
    finally:
        done.set()
        thread.join()


def module_locks() -> Iterator[tuple[str, Any]]:
    """Each lock of the package that a module has, or an object that a module has."""
    for found in pkgutil.walk_packages(cw.__path__, "cableway."):
        if THEIRS.intersection(found.name.split(".")):
            continue
        module = importlib.import_module(found.name)
        for name, value in list(vars(module).items()):
            if isinstance(value, LOCKS):
                yield f"{found.name}.{name}", value
            elif type(value).__module__.startswith("cableway") and hasattr(value, "__dict__"):
                for part, inner in vars(value).items():
                    if isinstance(inner, LOCKS):
                        yield f"{found.name}.{name}.{part}", inner


def test_no_module_of_a_child_has_a_lock_that_a_thread_of_the_parent_held() -> None:
    names = [name for name, _ in module_locks()]
    assert {"cableway.client._lock", "cableway.joblib._workers._lock"} <= set(names)

    def held_here() -> list[str]:
        return [name for name, lock in module_locks() if not lock.acquire(blocking=False)]

    locks = list({id(lock): lock for _, lock in module_locks()}.values())
    assert held_elsewhere(locks, functools.partial(in_a_child, held_here)) == []


def test_a_child_uses_what_a_thread_of_the_parent_was_in() -> None:
    """Each object with a lock that a child of a fork can get at: used there while the parent's is held."""
    q: Any = cw.Queue()
    q.put(np.zeros(100_000))
    q.get()
    unused, used = cw.Executor(1, mp_context="fork"), cw.Executor(1, mp_context="fork")
    assert used.submit(square, 2).result(60) == 4
    pool = cw.Pool(1, context=FORK)
    array, target = cw.put("for/the/child", np.arange(10.0)), np.zeros(10)
    constant = cw.constant(list(range(100)))
    landing = write_back.WriteBack(target, None, "C")  # type: ignore[arg-type]

    def refused(call: Callable[[], object]) -> bool:
        try:
            call()
        except (RuntimeError, ValueError):
            return True
        return False

    def use() -> list[object]:
        q.put(np.ones(100_000))
        own = write_back.WriteBack(target, None, "C")  # type: ignore[arg-type]
        own.end()
        landing.end()
        import cableway.joblib

        cableway.joblib.shutdown()
        future: futures.Future[int] = futures.Future()
        future.set_result(1)
        found: list[object] = [
            float(q.get().sum()), refused(lambda: used.submit(square, 3)),
            refused(lambda: pool.map(square, [1])), refused(lambda: pool.apply_async(square, (1,))),
            refused(lambda: pool.imap(square, [1])), unused.submit(square, 5).result(60), used.is_usable(),
            float(np.asarray(array).sum()), float(np.asarray(cw.get("for/the/child")).sum()), len(constant.value),
        ]  # fmt: skip
        used.shutdown()
        unused.shutdown()
        pool.close()
        pool.join()
        pool.terminate()
        return found

    locks = [lock for _, lock in module_locks()]
    for holder in (
        unused,
        used,
        used._engine,
        pool._engine,
        pool._engine.functions,
        pool._engine._submit_queue,
    ):
        locks.append(holder._lock)  # type: ignore[union-attr]
    found = held_elsewhere(locks, functools.partial(in_a_child, use))
    assert found == [100_000.0, True, True, True, True, 25, False, 45.0, 45.0, 100]
    assert pool.map(square, [7]) == [49] and used.submit(square, 3).result(60) == 9
    landing.end()
    pool.terminate()
    pool.join()
    used.shutdown()
    unused.shutdown()
