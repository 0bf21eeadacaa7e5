"""Calls that go the quick way (csrc/dispatch_begin.c), and what must not go wrong there: more of them than there are
cells, others among them, results that are not plain, cancelling, deaths, the end.
"""

from __future__ import annotations

import gc
import os
import pickle
import random
import signal
import struct
import threading
import time
import weakref
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from waiting import eventually

import cableway as cw
from cableway import _dispatch
from cableway._pool.async_result import AsyncResult
from cableway.executor import ExecutorWorkerDied

MANY = 2000  # beyond the cells of a Pool of two


@pytest.fixture
def executor():
    with cw.Executor(2, "fork") as made:
        made.submit(tasks.same, 0).result(60)  # its function has a slot from now on
        yield made


@pytest.fixture
def pool():
    with cw.Pool(2, context="fork") as made:
        made.apply_async(tasks.same, (0,)).get(60)
        yield made


# ---- pickles


_small = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=5).map(tuple),
    max_leaves=20,
)


@given(_small | st.lists(_small, max_size=40))
@example([(1, (2,)), "a", None])
@example(((1, -1), (255, 256, 65535, 65536, -(2**31), 2**31, 2**63 - 1, -(2**63)), ("x" * 255,)))
@example(float("inf"))
@example(tuple(range(32)))
def test_a_small_pickle_is_one_that_the_pickler_reads_and_reads_back_the_same(value):
    data = _dispatch.small_dump(value)
    if data is None:
        return
    assert pickle.loads(data) == value
    (found,) = _dispatch.small_load(data)
    assert found == value and type(found) is type(value)
    assert repr(found) == repr(value)  # True is not 1


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        "x" * 256,
        b"x" * 256,
        "\ud800",
        ([1],),
        [[1]],
        {},
        ((((((1,),),),),),),
        tuple(range(33)),
        1j,
    ]
    + [np.float64(1), type("Sub", (int,), {})(1)],
)
def test_what_is_not_small_is_left_to_the_pickler(value):
    assert _dispatch.small_dump(value) is None


@given(st.binary(max_size=40), _small | st.lists(_small, max_size=4))
def test_damaged_pickles_are_left_to_the_pickler(noise, value):
    data = _dispatch.small_dump(value) or b"\x80\x05N."
    place = random.Random(noise).randrange(2, len(data))
    for damaged in (noise, b"\x80\x05" + noise, data[:place], data[:place] + noise + data[place:]):
        found = _dispatch.small_load(damaged)
        if found:
            assert _same(pickle.loads(damaged), found[0])


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    return type(one) is type(other) and one == other


# ---- many at once


def test_calls_of_plain_objects_go_the_quick_way_and_others_do_not(pool):
    def quick(function: Any, *args: Any) -> Any:
        engine = pool._engine
        return engine.begin(AsyncResult, engine, pool, function, args, None)

    assert quick(tasks.same, 5).get(60) == 5
    assert quick(tasks.same, [5, {"a": 1.5}]).get(60) == [5, {"a": 1.5}]
    assert quick(lambda x: x, 5) is None
    assert quick([5].count, 5) is None
    assert quick(tasks.same, object()) is None
    pool.close()
    assert quick(tasks.same, 5) is None


def test_more_calls_than_there_is_room_for_all_come_back(executor, pool):
    calls = [executor.submit(tasks.same, number) for number in range(MANY)]
    others = [pool.apply_async(tasks.same, (number,)) for number in range(MANY)]
    assert [call.result(60) for call in calls] == list(range(MANY))
    assert [call.get(60) for call in others] == list(range(MANY))


def test_what_nobody_waits_for_is_collected_all_the_same(executor, pool):
    calls = [executor.submit(tasks.same, number) for number in range(MANY)]
    others = [pool.apply_async(tasks.same, (number,)) for number in range(MANY)]
    assert eventually(lambda: all(call._state == "FINISHED" for call in calls), 60)
    assert eventually(lambda: all(call._state == "FINISHED" for call in others), 60)


def test_calls_of_every_kind_take_turns_and_none_is_lost(executor):
    lock, big = threading.Lock(), np.arange(300_000.0)
    found = []
    for number in range(600):
        if number % 50 == 7:
            found.append((executor.submit(np.sum, big), big.sum()))  # a block of memory
        elif number % 50 == 13:
            found.append((executor.submit(lambda x, y=number: x + y, 1), number + 1))
        elif number % 50 == 21:
            found.append((executor.submit(tasks.same, [number] * 4000), [number] * 4000))
        elif number % 50 == 33:
            found.append((executor.submit(tasks.same, lock), TypeError))
        elif number % 50 == 41:
            found.append((executor.submit(divmod, number, 0), ZeroDivisionError))
        else:
            found.append((executor.submit(tasks.same, number), number))
    for call, expected in found:
        if isinstance(expected, type):
            assert isinstance(call.exception(60), expected)
        else:
            assert call.result(60) == expected


def test_named_arguments_and_every_plain_kind_of_result_come_back(executor, pool):
    for value in (None, True, -1, 2**70, 1.5, "ä", b"\0", (1, (2,)), [1], {"a": None}, 1j):
        found = executor.submit(tasks.same, value).result(60)
        assert found == value and type(found) is type(value)
        assert pool.apply_async(tasks.same, (value,)).get(60) == value
    assert executor.submit(tasks.add, 1, 2, z=3).result(60) == 6
    assert pool.apply_async(tasks.add, (1, 2), {"z": 3}).get(60) == 6


# ---- who waits, and how


def test_futures_can_be_waited_for_in_every_way_while_they_come(executor):
    calls = [executor.submit(tasks.same, number) for number in range(500)]
    done, left = futures.wait(calls[:250], timeout=60)
    assert len(done) == 250 and not left
    assert sorted(call.result() for call in futures.as_completed(calls[250:], 60)) == list(
        range(250, 500)
    )
    told = []
    for number in range(500):
        executor.submit(tasks.same, number).add_done_callback(
            lambda call: told.append(call.result())
        )
    assert eventually(lambda: sorted(told) == list(range(500)), 60)


def test_threads_wait_for_each_others_results(executor):
    calls = [executor.submit(tasks.same, number) for number in range(MANY)]
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.append([call.result(60) for call in calls]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [list(range(MANY))] * 4


def test_a_result_that_takes_too_long_times_out_and_still_comes(executor, pool, tmp_path):
    go = str(tmp_path / "go")
    call, other = executor.submit(tasks.wait_for, go), pool.apply_async(tasks.wait_for, (go,))
    with pytest.raises(futures.TimeoutError):
        call.result(0.01)
    with pytest.raises(cw.Timeout):
        other.get(0.01)
    Path(go).touch()
    assert call.result(60) == other.get(60) == go


def test_a_signals_handler_may_wait_for_a_result_while_its_thread_does(executor, tmp_path):
    found, go = [], str(tmp_path / "go")

    def handle(*_: Any) -> None:
        found.append(executor.submit(tasks.same, 7).result(60))
        Path(go).touch()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        call = executor.submit(tasks.wait_for, go)  # which ends after the signal, however late
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert call.result(60) == go
    finally:
        signal.signal(signal.SIGALRM, before)
    assert found == [7]


# ---- cancelling, deaths, the end


def test_what_waits_for_room_can_be_cancelled(executor, tmp_path):
    go = str(tmp_path / "go")
    blocked = [executor.submit(tasks.wait_for, go) for _ in range(2)]
    calls = [executor.submit(tasks.same, number) for number in range(MANY)]
    assert calls[-1].cancel() and calls[-2].cancel() and calls[MANY // 2].cancel()
    Path(go).touch()
    kept = [call for call in calls if not call.cancelled()]
    assert len(kept) == MANY - 3
    expected = [n for n in range(MANY - 2) if n != MANY // 2]
    assert [call.result(60) for call in kept] == expected
    assert all(call.result(60) == go for call in blocked)


def test_shutdown_cancels_what_waits_for_room(tmp_path):
    go = str(tmp_path / "go")
    executor = cw.Executor(1, "fork")
    executor.submit(tasks.same, 0).result(60)
    blocked = executor.submit(tasks.wait_for, go)
    assert eventually(blocked.running, 60)
    calls = [executor.submit(tasks.same, number) for number in range(MANY)]

    def let_go() -> None:
        eventually(lambda: all(call.cancelled() for call in calls))
        Path(go).touch()

    threading.Thread(target=let_go).start()
    executor.shutdown(cancel_futures=True)
    assert blocked.result(0) == go and all(call.cancelled() for call in calls)


def test_the_end_tells_what_waits_for_room():
    pool = cw.Pool(1, context="fork")
    pool.apply_async(tasks.same, (0,)).get(60)
    calls = [pool.apply_async(time.sleep, (60,))]
    calls += [pool.apply_async(tasks.same, (number,)) for number in range(MANY)]
    pool.terminate()
    for call in calls:
        with pytest.raises(cw.Error):
            call.get(60)
    with pytest.raises(ValueError):
        pool.apply_async(tasks.same, (0,))


def test_closing_waits_for_what_waits_for_room():
    pool = cw.Pool(1, context="fork")
    pool.apply_async(tasks.same, (0,)).get(60)
    calls = [pool.apply_async(tasks.same, (number,)) for number in range(MANY)]
    pool.close()
    pool.join()
    assert [call.get(0) for call in calls] == list(range(MANY))


def test_a_worker_killed_in_the_middle_fails_its_own_call_alone(executor):
    calls = [executor.submit(tasks.same, number) for number in range(MANY // 2)]
    killed = executor.submit(tasks.killed)
    calls += [executor.submit(tasks.same, number) for number in range(MANY // 2, MANY)]
    assert [call.result(60) for call in calls] == list(range(MANY))
    assert isinstance(killed.exception(60), ExecutorWorkerDied)


def test_a_call_lost_with_its_worker_runs_again(tmp_path):
    with cw.Pool(2, context="fork", retries=1) as pool:
        pool.apply_async(tasks.same, (0,)).get(60)
        calls = [pool.apply_async(_killed_once, (str(tmp_path / "once"),)) for _ in range(3)]
        calls += [pool.apply_async(_killed_once, (str(tmp_path / "once"),)) for _ in range(3)]
        assert [call.get(60) for call in calls] == ["alive"] * 6


def _killed_once(path: str) -> str:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "alive"
    os.kill(os.getpid(), signal.SIGKILL)
    return "dead"


def test_a_forked_child_takes_no_part(executor):
    calls = [executor.submit(tasks.same, number) for number in range(100)]
    pid = os.fork()
    if pid == 0:
        try:
            executor.submit(tasks.same, 1)
        except RuntimeError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert [call.result(60) for call in calls] == list(range(100))


# ---- results and the garbage collector


@pytest.mark.parametrize("value", [None, True, 7, 2.5, "text", b"bytes", 1j])
def test_the_garbage_collector_passes_by_a_result_that_refers_to_nothing(executor, pool, value):
    result = pool.apply_async(tasks.same, (value,))
    future = executor.submit(tasks.same, value)
    assert result.get(60) == value and future.result(60) == value
    assert not gc.is_tracked(result) and not gc.is_tracked(future)


def test_a_result_that_refers_to_others_is_known_to_the_garbage_collector(executor, pool):
    for result in (pool.apply_async(tasks.same, ([1],)), executor.submit(tasks.same, [1])):
        assert (result.get if result.__class__ is AsyncResult else result.result)(60) == [1]
        assert gc.is_tracked(result)


class _Mark:
    pass


def _refers_to_itself(result: Any) -> weakref.ref[_Mark]:
    result.mark, result.me = _Mark(), result
    return weakref.ref(result.mark)


@pytest.mark.parametrize("when", ["before it ends", "after it ended"])
def test_a_result_that_was_made_part_of_a_cycle_is_collected(executor, pool, tmp_path, when):
    for submit, get in ((pool.apply_async, "get"), (executor.submit, "result")):
        path = str(tmp_path / get)
        pool.apply(tasks.wait_for, (str(tmp_path),))  # its function has a slot from now on
        executor.submit(tasks.wait_for, str(tmp_path)).result(60)
        result = submit(tasks.wait_for, (path,)) if get == "get" else submit(tasks.wait_for, path)
        mark = _refers_to_itself(result) if when == "before it ends" else None
        (tmp_path / get).touch()
        assert getattr(result, get)(60) == path
        if mark is None:
            assert not gc.is_tracked(result)
            mark = _refers_to_itself(result)
        assert gc.is_tracked(result)
        del result
        assert eventually(lambda: gc.collect() >= 0 and mark() is None)  # noqa: B023


def test_a_result_that_has_ended_does_not_hold_its_function(pool):
    result = pool.apply_async(tasks.same, (3,))
    assert result.function is tasks.same
    assert result.get(60) == 3
    assert result.function is None


def test_a_result_takes_its_timeout_by_position_and_by_name(executor, pool):
    for get in (pool.apply_async(tasks.same, (4,)).get, executor.submit(tasks.same, 4).result):
        assert [get(60), get(timeout=60), get(None), get(timeout=None), get()] == [4] * 5
    for get in (pool.apply_async(tasks.same, (4,)).get, executor.submit(tasks.same, 4).result):
        with pytest.raises(TypeError, match="nonsense"):
            get(nonsense=1)
        with pytest.raises(TypeError):
            get(1, 2)
