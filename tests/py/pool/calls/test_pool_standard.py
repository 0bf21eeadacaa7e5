"""What programs written for the standard library's Pool read and expect, beside its documented interface."""

from __future__ import annotations

import multiprocessing.pool
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from waiting import eventually

import cableway as cw
from cableway._pool import engine as engines

LONG = 60


@pytest.mark.parametrize("star", [False, True])
def test_an_empty_map_is_ready_at_once_and_calls_nobody_back(forked: cw.Pool, star: bool) -> None:
    called: list[Any] = []
    begin = forked.starmap_async if star else forked.map_async
    result = begin(tasks.square, [], None, called.append, called.append)
    assert result.ready() and result.successful() and result.get(0) == []
    forked.close()
    forked.join()  # whose callbacks have run then
    assert called == []


@pytest.mark.parametrize(
    ("task", "what", "why"),
    [
        (tasks.unreadable_result, "result", "RuntimeError('not to be unpickled here')"),
        (tasks.unreadable_fault, "exception", "TypeError("),
    ],
)
def test_what_cannot_be_unpickled_here_says_so(
    forked: cw.Pool, task: Any, what: str, why: str
) -> None:
    with pytest.raises(cw.pool.MaybeEncodingError) as caught:
        forked.apply(task)
    said = f"the {what} of pool_tasks.{task.__name__} was sent, but cannot be unpickled here: {why}"
    assert str(caught.value).startswith(said)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy)) == (type(caught.value), str(caught.value))


def test_stats_count_what_comes_back_into_arrays_of_the_caller() -> None:
    nbytes = 8 << 20
    with cw.Pool(1, context="fork") as pool:
        before = pool.stats()
        pool.apply(tasks.fill_or_fail, (cw.Out(np.zeros(nbytes, "u1")),))
        out = pool.stats()
        pool.apply(tasks.fill_or_fail, (cw.InOut(np.zeros(nbytes, "u1")),))
        both = pool.stats()
        with pytest.raises(tasks.Fault):
            pool.apply(tasks.fill_or_fail, (cw.Out(np.zeros(nbytes, "u1")), True))
        failed = pool.stats()

    def came(after: dict[str, Any], than: dict[str, Any], which: str) -> int:
        return int(after[which] - than[which]) // nbytes

    assert (came(out, before, "bytes_in"), came(out, before, "bytes_out")) == (0, 1)
    assert (came(both, out, "bytes_in"), came(both, out, "bytes_out")) == (1, 1)
    assert (came(failed, both, "bytes_in"), came(failed, both, "bytes_out")) == (0, 0)


def test_a_wait_does_not_sleep_over_what_a_signals_handler_has_collected(
    forked: cw.Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The handler comes when the wait has looked, and does not sleep yet; it waits itself for both.

    Neither is answered before: nobody would have to tell of what was collected before the wait began.
    """
    mark = tmp_path / "looked"
    monkeypatch.setattr(engines, "_SLICE_SECONDS", LONG * 1000.0)
    engine = forked._engine
    ended = threading.Event()

    def wait() -> None:
        first, second = (iter(forked.imap(tasks.wait_for, [str(mark)])) for _ in range(2))
        looks: list[bool] = []

        def seen() -> bool:
            found = bool(looks)
            if not found:
                looks.append(found)
                mark.touch()
                assert [next(first), next(second)] == [str(mark)] * 2  # as a handler that comes now
            return found

        assert engine.wait_until(seen, None)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    assert ended.wait(LONG)


# ---- attributes that are private there, and read by programs


def test_a_pool_shows_its_workers_its_size_and_its_state(pool: cw.Pool) -> None:
    assert isinstance(pool, multiprocessing.pool.Pool)  # as dask asks
    assert (pool._processes, pool._state, len(pool._pool)) == (2, "RUN", 2)
    assert set(pool.map(tasks.pid_after_a_while, range(20), 1)) <= {p.pid for p in pool._pool}
    assert all(process.is_alive() and process.exitcode is None for process in pool._pool)
    victim = pool._pool[0]
    victim.terminate()
    victim.join()
    assert eventually(lambda: len(pool._pool) == 2 and victim not in pool._pool)
    pool.close()
    assert pool._state == "CLOSE"
    processes = pool._pool
    pool.terminate()
    pool.join()
    assert pool._state == "TERMINATE" and not any(process.is_alive() for process in processes)


def test_results_that_are_not_ready_stand_in_the_cache(forked: cw.Pool) -> None:
    assert not forked._cache
    count = 300  # more than there are cells
    begun = [forked.apply_async(tasks.pid_after_a_while) for _ in range(count // 3)]
    begun += [forked.apply_async(tasks.pid_after_a_while, callback=id) for _ in range(count // 3)]
    more: list[Any] = [forked.map_async(tasks.pid_after_a_while, range(20), 1)]
    more.append(forked.imap(tasks.pid_after_a_while, iter(range(20))))
    known = set(map(id, forked._cache.values()))
    assert known <= set(map(id, [*begun, *more])) and set(map(id, more)) <= known
    while forked._cache:
        pass
    assert all(result.ready() for result in begun) and list(more[1])


def test_the_cache_has_a_result_until_its_callback_has_returned(forked: cw.Pool) -> None:
    go = threading.Event()
    called: list[int] = []

    def callback(value: int) -> None:
        go.wait(LONG)
        called.append(value)

    result = forked.apply_async(tasks.square, (3,), callback=callback)
    forked.apply(tasks.square, (2,))
    assert list(forked._cache.values()) == [result] and not called
    go.set()
    assert eventually(lambda: not forked._cache)
    assert called == [9]


def test_a_map_tells_how_many_of_its_tasks_are_left(forked: cw.Pool) -> None:
    result = forked.map_async(tasks.pid_after_a_while, range(10), 3)
    seen = []
    while not result.ready():
        seen.append(result._number_left)
    assert (
        result._number_left == 0
        and seen == sorted(seen, reverse=True)
        and set(seen) <= set(range(5))
    )


@pytest.mark.parametrize("how", ["forgotten", "at exit"])
def test_a_pool_that_nobody_ends_is_told_as_the_standard_librarys(script: Any, how: str) -> None:
    text = """
        import sys
        import {module} as module

        if __name__ == "__main__":
            pool = module.Pool(1)
            assert pool.map(abs, [-1]) == [1]
            results = pool.imap(abs, [-1])
            assert next(results) == 1
            if "{how}" == "forgotten":
                del pool, results
    """
    for module, name in (
        ("cableway", "cableway.Pool"),
        ("multiprocessing", "multiprocessing.pool.Pool"),
    ):
        environment = {**os.environ, "PYTHONWARNINGS": "always"}
        done = script(text.format(module=module, how=how), env=environment)
        assert (
            f": ResourceWarning: unclosed running multiprocessing pool <{name} state="
            in done.stderr
        )


def test_an_executor_shows_its_workers_and_what_it_has_to_do(method: str) -> None:
    with cw.Executor(2, method) as executor:
        assert (executor._max_workers, executor._processes, executor._broken) == (2, {}, False)
        assert (
            executor._mp_context.get_start_method() == method and not executor._pending_work_items
        )
        begun = [executor.submit(tasks.pid_after_a_while, n) for n in range(100)]
        items = executor._pending_work_items.values()
        assert {item.future for item in items} <= set(begun)
        assert all((item.fn, item.kwargs) == (tasks.pid_after_a_while, {}) for item in items)
        assert all(begun[item.args[0]] is item.future for item in items)
        assert {future.result() for future in begun} <= set(executor._processes)
        assert not executor._pending_work_items
        processes = executor._processes
        assert not executor._shutdown_thread
    assert executor._shutdown_thread
    for process in processes.values():
        process.join()
        assert process.exitcode == 0


def test_an_executor_whose_initializer_failed_is_broken(forked: cw.Pool) -> None:
    with cw.Executor(1, "fork", initializer=tasks.fail) as executor:
        with pytest.raises(cw.executor.ExecutorBroken):
            executor.submit(tasks.square, 2).result(LONG)
        assert isinstance(executor._broken, str) and executor._broken


# ---- the ends


def interrupted_by_itself(x: Any = None) -> None:
    raise KeyboardInterrupt(f"not from the keyboard: {x}")


def test_a_keyboard_interrupt_that_a_task_raises_itself_is_its_exception(method: str) -> None:
    with cw.Executor(1, method) as executor:
        pid = executor.submit(tasks.pid).result()
        with pytest.raises(KeyboardInterrupt, match="not from the keyboard: 1"):
            executor.submit(interrupted_by_itself, 1).result(LONG)
        assert executor.submit(tasks.pid).result(LONG) == pid
    with cw.Pool(1, context=method) as pool:
        pid = pool.apply(tasks.pid)
        for call in (
            lambda: pool.apply(interrupted_by_itself, (1,)),
            lambda: pool.map(interrupted_by_itself, [1]),
            lambda: next(pool.imap_unordered(interrupted_by_itself, [1])),
        ):
            with pytest.raises(KeyboardInterrupt, match="not from the keyboard: 1"):
                call()
        assert pool.apply(tasks.pid) == pid


@pytest.mark.parametrize(
    "use",
    [
        "pool.map(abs, range(20))",
        "pool.apply(abs, (-1,))",
        "pool.apply_async(abs, (-1,)).get()",
        "list(pool.imap(abs, range(20)))",
        "list(pool.imap_unordered(abs, iter(range(20))))",
    ],
)
def test_a_daemon_thread_that_uses_a_pool_at_exit_prints_nothing(script: Any, use: str) -> None:
    text = f"""
        import threading
        import cableway as cw

        def go():
            while True:
                {use}
                begun.set()

        if __name__ == "__main__":
            pool, begun = cw.Pool(2), threading.Event()
            threading.Thread(target=go, daemon=True).start()
            begun.wait()
    """
    for _ in range(3):
        assert script(text).stderr == ""


def test_who_uses_a_pool_in_an_exit_handler_is_told_that_it_has_ended(script: Any) -> None:
    text = """
        import atexit, threading

        def late():
            errors = []
            def use():
                for call in (lambda: result.get(), lambda: pool.map(abs, [1])):
                    try:
                        call()
                    except Exception as error:
                        errors.append(error)
            use()
            thread = threading.Thread(target=use)
            thread.daemon = False
            try:
                thread.start()
                thread.join()
            except RuntimeError:  # from Python 3.12 on
                use()
            print(len(errors))

        atexit.register(late)
        import cableway as cw, time

        if __name__ == "__main__":
            pool = cw.Pool(1)
            result = pool.apply_async(time.sleep, (60,))
    """
    assert script(text).stdout == "4\n"
