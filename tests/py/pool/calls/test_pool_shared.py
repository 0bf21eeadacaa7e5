"""What the Pool promises of an array that recurs in one call: put once, and each task's own to write."""

from __future__ import annotations

import functools
import gc
import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks
import pytest
import shared_tasks as tasks
from conftest import eventually
from pool_support import workers_of
from test_pool_arrays import gauges

import cableway as cw
from cableway._transport.shared_arguments import Shared, recurring

MIB = 1 << 20


def ones() -> Any:
    return np.ones(MIB)  # 8 MiB


def shared_bytes(function: Any, items: tuple[Any, ...]) -> int:
    """How many bytes the tasks of a call have in common."""
    return sum(a.nbytes for a in recurring(function, items, 1, with_function=True))


def test_each_task_sees_the_callers_array_and_writes_to_its_own(pool: cw.Pool) -> None:
    given = ones()
    assert pool.starmap(tasks.first_then_write, [(given, i) for i in range(40)], 1) == [1.0] * 40
    found = list(pool.imap(tasks.first_then_write_pair, [(given, i) for i in range(20)]))
    assert found == [1.0] * 20
    unordered = pool.imap_unordered(tasks.first_then_write_pair, ((given, i) for i in range(20)))
    assert list(unordered) == [1.0] * 20
    assert (given == 1).all()


def test_it_lies_in_memory_once_whatever_tasks_keep(forked: cw.Pool) -> None:
    given = ones()
    forked.map(pool_tasks.square, range(4))
    before = gauges()["bytes"]
    pids = forked.starmap(tasks.keep_and_write, [(given, i) for i in range(40)], 1)
    assert len(set(pids)) >= 1
    assert gauges()["bytes"] - before <= 3 * given.nbytes
    assert forked.map(tasks.kept_are_own, range(8), 1) == [True] * 8
    # The memory of later calls is not theirs.
    for i in range(5):
        other = np.full(MIB, float(i + 5))
        assert forked.starmap(tasks.at, [(other, i)] * 8, 1) == [float(i + 5)] * 8
    assert forked.map(tasks.kept_are_own, range(8), 1) == [True] * 8


def test_a_later_call_sees_what_the_caller_changed(forked: cw.Pool) -> None:
    given = ones()
    for i in range(20):
        given[:] = i
        assert forked.starmap(tasks.at, [(given, j) for j in range(6)], 1) == [float(i)] * 6
        if i % 3 == 0:
            assert (
                forked.starmap(tasks.first_then_write, [(given, j) for j in range(6)], 1)
                == [float(i)] * 6
            )


def test_it_is_found_wherever_a_call_may_hold_it(forked: cw.Pool) -> None:
    given = np.arange(float(MIB))
    expected = [float(i) for i in range(6)]
    holder = tasks.Holder(given)

    def check(found: Any, function: Any, items: list[Any]) -> None:
        assert found == expected
        assert shared_bytes(function, tuple(items)) == given.nbytes

    pairs = [(given, i) for i in range(6)]
    check(forked.starmap(tasks.at, pairs, 1), tasks.at, pairs)
    dicts = [{"values": given, "i": i} for i in range(6)]
    check(forked.map(tasks.at_in_dict, dicts, 1), tasks.at_in_dict, dicts)
    holders = [tasks.Holder(given, i) for i in range(6)]
    check(forked.map(tasks.at_of_holder, holders, 1), tasks.at_of_holder, holders)
    named = [tasks.Pair(given, i) for i in range(6)]
    check(forked.map(tasks.at_of_holder, named, 1), tasks.at_of_holder, named)
    numbers = list(range(6))
    for function in (
        functools.partial(tasks.at, given),
        holder.at,
        holder,
        lambda i: float(given[i]),
        lambda i: [float(given[j]) for j in (i,)][0],
        functools.partial(lambda values, i: float(values[i]), given),
    ):
        check(forked.map(function, numbers, 1), function, numbers)
    with cw.Executor(2, "fork") as executor:
        assert list(executor.map(tasks.at, itertools.repeat(given, 6), numbers)) == expected
        assert list(executor.map(tasks.at, [given] * 6, numbers, chunksize=2)) == expected


def test_every_kind_of_array_arrives_as_when_it_comes_alone(pool: cw.Pool, tmp_path: Path) -> None:
    cube = np.arange(40 * 50 * 60, dtype="f8").reshape(40, 50, 60)
    mapped = np.memmap(tmp_path / "mapped", "f8", "w+", shape=(100, 200))
    mapped[:] = 3
    readonly = np.arange(30_000.0)
    readonly.setflags(write=False)
    records = np.zeros(9000, [("a", "i8"), ("b", "f8")])
    records["a"] = 5
    for given in (
        cube, np.asfortranarray(cube), cube.transpose(1, 0, 2), cube[:, ::2, 1:], cube[::-1],
        np.full(20_000, "text", "U7"), records, np.asarray(mapped), readonly, mapped.T.view(np.ndarray),
        np.broadcast_to(np.arange(5.0), (30_000, 5)),
    ):  # fmt: skip
        alone = pool.apply(tasks.kind_of, (given, 0))
        assert pool.starmap(tasks.kind_of, [(given, i) for i in range(4)], 1) == [alone] * 4
        assert shared_bytes(tasks.kind_of, ((given, 0), (given, 1))) == given.nbytes
    for given in (mapped, records.view(np.recarray)):  # subclasses travel as ever
        alone = pool.apply(tasks.kind_of, (given, 0))
        assert pool.starmap(tasks.kind_of, [(given, i) for i in range(4)], 1) == [alone] * 4


def test_small_arrays_and_single_ones_are_not_shared() -> None:
    small, large = np.zeros(1000), np.zeros(100_000)
    assert shared_bytes(abs, (small, small)) == 0
    assert shared_bytes(abs, (large, large.copy(), 3)) == 0
    assert shared_bytes(abs, (np.full(20_000, None),) * 2) == 0
    assert not recurring(abs, (large, large), 2, with_function=True)  # one task
    assert shared_bytes(abs, (large, [[large]])) == large.nbytes
    assert not recurring(functools.partial(abs, large), (1, 2), 1, with_function=False)


def test_the_search_is_bounded_and_runs_no_code_of_the_users() -> None:
    large = np.zeros(100_000)

    class Watched:
        def __init__(self) -> None:
            self.large = large

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    assert shared_bytes(abs, (Watched(), Watched())) == 0
    loop: list[Any] = [large]
    loop += [loop] * 100
    assert shared_bytes(abs, (loop, loop)) == large.nbytes
    assert shared_bytes(abs, tuple(range(100_000)) + (large, large)) == 0
    assert shared_bytes(abs, (Exception, type, threading, threading.Lock(), abs, len)) == 0


def test_an_iterators_buffer_may_be_filled_anew(forked: cw.Pool) -> None:
    buffer = np.zeros(100_000)

    def filled() -> Any:
        for i in range(30):
            buffer[:] = i
            yield buffer

    # It is read ahead of the tasks: what was sent is a copy.
    for i, found in enumerate(forked.imap(pool_tasks.describe, filled())):
        assert len(set(np.frombuffer(found[-1]))) == 1, i
    assert forked.map(pool_tasks.sum_of, filled(), 1) == [29.0 * buffer.size] * 30


def test_objects_that_fill_a_buffer_when_they_are_pickled_arrive(forked: cw.Pool) -> None:
    assert forked.map(tasks.is_its_own, [tasks.Refilled(i) for i in range(12)], 1) == [True] * 12


def test_a_child_of_a_task_has_its_own_copy(pool: cw.Pool) -> None:
    given = ones()
    items = [(given, i + 2) for i in range(6)]
    assert pool.starmap(tasks.fork_and_write, items, 1) == [(0, True)] * 6
    assert pool.starmap(tasks.first_then_write, items, 1) == [1.0] * 6


def test_a_killed_worker_takes_nothing_along(forked: cw.Pool) -> None:
    given = np.arange(float(MIB))
    with pytest.raises(cw.WorkerDied):
        forked.starmap(tasks.killed_at, [(given, i) for i in range(12)], 1)
    found = forked.imap_unordered(functools.partial(tasks.killed_at, given), list(range(12)))
    seen, deaths = [], 0
    while True:
        try:
            seen.append(found.next(60))
        except StopIteration:
            break
        except cw.WorkerDied:
            deaths += 1
    assert sorted(seen) == [float(i) for i in range(12) if i != 5] and deaths == 1


def test_exceptions_and_results_do_not_keep_it(forked: cw.Pool) -> None:
    given = ones()
    with pytest.raises(ValueError, match=f"0 of {MIB}"):
        forked.starmap(tasks.fail_with, [(given, 0)] * 4, 1)
    for found in forked.starmap(tasks.doubled, [(given, i) for i in range(6)], 1):
        assert (found == 2).all() and found.flags.writeable
    assert (given == 1).all()


def test_calls_of_several_threads_share_apart(forked: cw.Pool) -> None:
    given = ones()
    faults: list[Any] = []

    def call(number: int) -> None:
        own = np.full(MIB, float(number))
        for _ in range(5):
            items = [(given, 0), (own, 1)] * 6
            found = forked.starmap(tasks.first_then_write, items, 1)
            if found != [1.0, float(number)] * 6:
                faults.append(found)

    threads = [threading.Thread(target=call, args=(i + 5,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_the_memory_comes_back(tmp_path: Path) -> None:
    def grown() -> bool:
        gc.collect()
        cw.empty(10)  # looks for what came back
        return gauges()["bytes"] <= before + 4 * MIB

    given = np.ones(4 * MIB)
    with cw.Pool(2, context="fork") as pool:
        workers_of(pool, 2)
        before = gauges()["bytes"]
        for _ in range(10):
            assert pool.starmap(tasks.at, [(given, i) for i in range(4)], 1) == [1.0] * 4
        # What is free is kept for the next calls: one call's, and what each worker, and whoever told
        # the last result, had not let go of yet when the next call began. Without that it were ten.
        assert gauges()["bytes"] <= before + 5.5 * given.nbytes
        mark = tmp_path / "mark"
        pool.starmap_async(tasks.nap_with, [(given, str(mark))] * 4, 1)
        assert eventually(mark.exists)
        before = gauges()["bytes"]
    pool.join()
    assert eventually(grown)


def test_a_closed_one_shares_nothing_any_more() -> None:
    from cableway._transport.blocks import BlockStore

    store = BlockStore(MIB)
    given = ones()
    shared = Shared(store, [given])
    filled: list[Any] = []
    fill = lambda block, values: filled.append(block)  # noqa: E731
    block = shared.block_of(given, fill)
    assert block is not None and shared.block_of(given, fill) is block and filled == [block]
    assert shared.block_of(given.copy(), fill) is None
    shared.close()
    shared.close()
    assert shared.block_of(given, fill) is None and block.array is None

    def refuse(block: Any, values: Any) -> None:
        raise cw.LimitExceeded("no")

    shared = Shared(store, [given])
    with pytest.raises(cw.LimitExceeded):
        shared.block_of(given, refuse)
    assert shared.block_of(given, fill) is not None
    shared.close()
    store.close()
