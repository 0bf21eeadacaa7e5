"""`Pool.spmd`: one function at once on n distinct workers, each with its Group."""

from __future__ import annotations

import functools
import operator
import threading
from typing import Any

import numpy as np
import pytest
import spmd_tasks as ranks
from pool_support import LONG, in_thread, joined
from waiting import eventually

import cableway as cw

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_each_rank_has_a_worker_of_its_own(method: str) -> None:
    with cw.Pool(3, context=method) as pool:
        for _ in range(3):
            found = pool.spmd(ranks.who)
            assert [one[1:] for one in found] == [(rank, 3, 3) for rank in range(3)]
            assert len({one[0] for one in found}) == 3
        assert len({one[0] for one in pool.spmd(ranks.who, n=2)}) == 2
        assert pool.map(abs, [-1, -2]) == [1, 2]
    assert not cw.names(".group/spmd")


def test_the_function_may_be_a_lambda_a_partial_or_a_method() -> None:
    factor = np.arange(100_000)  # goes along, and is large

    class Model:
        def step(self, g: cw.Group, x: int) -> int:
            return int(g.allreduce(x) * factor[2])

    with cw.Pool(2) as pool:
        assert pool.spmd(lambda g, x: g.allreduce(x), 3) == [6, 6]
        assert pool.spmd(functools.partial(Model().step, x=2)) == [8, 8]
        assert pool.spmd(Model().step, 1) == [4, 4]
        assert pool.spmd(operator.attrgetter("rank")) == [0, 1]


def test_large_arguments_are_each_ranks_own_and_our_arrays_are_shared() -> None:
    values, shared = np.zeros(100_000), cw.zeros(2, "i8")
    with cw.Pool(2) as pool:
        assert pool.spmd(ranks.writes, values) == [0.0, 100_000.0]
        assert not values.any()
        assert pool.spmd(ranks.into, shared) == [3, 3]
        assert shared.numpy().tolist() == [1, 2]
        with pytest.raises(ValueError, match="the Out of two items"):
            pool.spmd(ranks.writes, cw.Out(values))
        assert pool.spmd(ranks.who)[0][3] == 1


def test_large_results_come_by_rank() -> None:
    with cw.Pool(2) as pool:
        found = pool.spmd(lambda g: np.full(50_000, g.rank))
        assert [(int(one[0]), len(one)) for one in found] == [(0, 50_000), (1, 50_000)]


def test_it_waits_for_busy_workers_and_others_wait_for_it() -> None:
    flags = cw.zeros(3, "i8")
    with cw.Pool(2) as pool:
        busy = pool.apply_async(ranks.hold, (flags, 1))
        assert eventually(lambda: bool(flags.numpy()[1]))
        thread, said = in_thread(pool.spmd, ranks.who)
        assert eventually(lambda: pool._engine.gangs.lock.locked())
        after = pool.apply_async(ranks.pid)
        assert not busy.ready()
        assert not said
        flags.numpy()[0] = 1
        joined(thread)
        assert [one[1] for one in said[0]] == [0, 1]
        assert busy.get(LONG) in {one[0] for one in said[0]}
        assert after.get(LONG)


def test_calls_of_many_threads_take_turns() -> None:
    with cw.Pool(3) as pool:
        started = [in_thread(pool.spmd, ranks.who) for _ in range(8)]
        tasks = pool.map_async(ranks.pid, range(200), chunksize=1)
        for thread, said in started:
            joined(thread)
            assert [one[1:] for one in said[0]] == [(rank, 3, 3) for rank in range(3)]
        assert len(set(tasks.get(LONG))) <= 3


def test_what_a_rank_raises_is_raised_with_its_rank() -> None:
    with cw.Pool(3) as pool:
        for rank in range(3):
            with pytest.raises(KeyError, match=f"of rank {rank}") as raised:
                pool.spmd(ranks.raises_in, rank)
            assert raised.value.rank == rank  # type: ignore[attr-defined]
            assert f"rank {rank} of 3" in "".join(
                getattr(raised.value, "__notes__", [])
            ) or not hasattr(raised.value, "add_note")
            assert "raises_in" in str(raised.value.__cause__)
        assert len(pool.spmd(ranks.who)) == 3


def test_who_leaves_early_breaks_the_gang() -> None:
    with cw.Pool(3) as pool:
        with pytest.raises(cw.GroupBroken, match="rank 1") as raised:
            pool.spmd(ranks.leaves_alone)
        assert (raised.value.rank, raised.value.reason) == (1, "left")
        assert len(pool.spmd(ranks.who)) == 3


def test_a_timeout_is_of_each_operation() -> None:
    with cw.Pool(2) as pool:
        with pytest.raises(cw.Timeout, match=r"0\.05.* s"):
            pool.spmd(lambda g: g.recv(source=1 - g.rank), timeout=0.05)
        assert pool.spmd(lambda g: g.timeout) == [None, None]
        assert pool.spmd(lambda g: g.timeout, timeout=7) == [7, 7]


def test_results_that_cannot_be_sent_are_that_ranks() -> None:
    with cw.Pool(2) as pool:
        with pytest.raises(cw.pool.MaybeEncodingError) as raised:
            pool.spmd(lambda g: threading.Lock() if g.rank else None)
        assert raised.value.rank == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("n", "kind", "text"),
    [
        (0, ValueError, "at least 1 worker, 0 were asked for"),
        (-3, ValueError, "at least 1 worker"),
        (3, ValueError, r"3 were asked for, and the Pool has 2; resize\(\) gives it more"),
        (1.5, TypeError, "float"),
    ],
)
def test_bad_numbers(n: Any, kind: type[Exception], text: str) -> None:
    with cw.Pool(2) as pool:
        with pytest.raises(kind, match=text):
            pool.spmd(ranks.who, n=n)
        with pytest.raises(TypeError, match="calls a function, and 'x' is none"):
            pool.spmd("x")  # type: ignore[arg-type]
        assert len(pool.spmd(ranks.who)) == 2


def test_after_close_it_is_refused() -> None:
    pool = cw.Pool(2)
    pool.close()
    with pytest.raises(ValueError, match="not running"):
        pool.spmd(ranks.who)
    pool.join()


def test_a_gang_that_runs_when_the_pool_is_closed_ends_well() -> None:
    flags = cw.zeros(4, "i8")
    pool = cw.Pool(3)
    thread, said = in_thread(pool.spmd, ranks.rank_holds, flags)
    assert eventually(lambda: bool(flags.numpy()[1:].all()))
    pool.close()
    late, refused = in_thread(pool.spmd, ranks.who)
    joined(late)
    assert isinstance(refused[0], ValueError)
    flags.numpy()[0] = 1
    pool.join()
    joined(thread)
    assert said == [[0, 1, 2]]


def test_a_gang_that_waits_for_workers_when_the_pool_is_closed_ends_well() -> None:
    flags = cw.zeros(2, "i8")
    pool = cw.Pool(3, maxtasksperchild=1)
    pool.apply_async(ranks.hold, (flags, 1))
    assert eventually(lambda: bool(flags.numpy()[1]))
    thread, said = in_thread(pool.spmd, ranks.who)
    assert eventually(lambda: len(pool._engine.unfinished()) == 2)
    waiting, refused = in_thread(pool.spmd, ranks.who)  # for its turn
    pool.close()
    flags.numpy()[0] = 1
    pool.join()
    joined(thread)
    assert [one[1] for one in said[0]] == [0, 1, 2]
    joined(waiting)
    assert isinstance(refused[0], ValueError), "it had not begun"


def test_terminate_ends_it_and_who_waits_for_his_turn() -> None:
    flags = cw.zeros(3, "i8")
    pool = cw.Pool(2)
    thread, said = in_thread(pool.spmd, ranks.rank_holds, flags)
    assert eventually(lambda: bool(flags.numpy()[1:].all()))
    waiting, refused = in_thread(pool.spmd, ranks.who)
    pool.terminate()
    pool.join()
    joined(thread)
    joined(waiting)
    assert isinstance(said[0], cw.Error)
    assert "terminated" in str(said[0])
    assert isinstance(refused[0], ValueError)


def test_a_pool_that_is_made_smaller_calls_it_off() -> None:
    flags = cw.zeros(2, "i8")
    with cw.Pool(3) as pool:
        pool.apply_async(ranks.hold, (flags, 1))
        assert eventually(lambda: bool(flags.numpy()[1]))
        thread, said = in_thread(pool.spmd, ranks.who)
        assert eventually(lambda: len(pool._engine.unfinished()) == 2)
        pool.resize(2)
        joined(thread)
        assert isinstance(said[0], cw.Error)
        assert "made smaller, to 2 workers, while 3 ranks" in str(said[0])
        flags.numpy()[0] = 1
        assert len(pool.spmd(ranks.who)) == 2
        pool.resize(4)
        assert len(pool.spmd(ranks.who)) == 4


def test_workers_that_are_replaced_after_each_task() -> None:
    with cw.Pool(2, maxtasksperchild=1) as pool:
        pids = {one[0] for _ in range(5) for one in pool.spmd(ranks.who)}
        assert len(pids) == 10
