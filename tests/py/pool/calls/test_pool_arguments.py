"""A wrong argument of one call is that call's: it is told at once, and the Pool or Executor goes on, calls under way included."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pool_tasks as tasks
import pytest

import cableway as cw

XS = [1, 2, 3]
WRONG: dict[str, Callable[[Any], Any]] = {
    "imap": lambda pool: list(pool.imap(tasks.square, XS, 1.5)),
    "imap_unordered": lambda pool: list(pool.imap_unordered(tasks.square, XS, 1.5)),
    "imap of a generator": lambda pool: list(pool.imap(tasks.square, iter(XS), "a")),
    "map of none": lambda pool: pool.map(tasks.square, XS, 0),  # a list of None there
    "starmap of none": lambda pool: pool.starmap(tasks.square, [(1,)], 0),
    "imap of none": lambda pool: list(pool.imap(tasks.square, XS, 0)),
    "map": lambda pool: pool.map(tasks.square, XS, 1.5),
    "starmap": lambda pool: pool.starmap(pow, [(1, 2)], 1.5),
    "resize": lambda pool: pool.resize(1.5),
    "resize to 0": lambda pool: pool.resize(0),
    "resize to too many": lambda pool: pool.resize(1 << 70),
}
EXECUTOR_WRONG: dict[str, Callable[[Any], Any]] = {
    "map": lambda executor: list(executor.map(tasks.square, XS, chunksize=1.5)),
    "map ahead": lambda executor: list(executor.map(tasks.square, XS, chunksize=1.5, buffersize=2)),
    "map of none": lambda executor: list(executor.map(tasks.square, XS, chunksize=0)),
    "resize": lambda executor: executor.resize(1.5),
}


@pytest.mark.parametrize("way", list(WRONG))
def test_a_wrong_argument_costs_its_own_call_alone(way: str) -> None:
    with cw.Pool(2, context="fork") as pool:
        under_way = pool.apply_async(time.sleep, (0.2,))
        with pytest.raises((TypeError, ValueError)):
            WRONG[way](pool)
        assert under_way.get(30) is None
        assert pool.map(tasks.square, XS) == [1, 4, 9]


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("way", list(EXECUTOR_WRONG))
def test_a_wrong_argument_costs_its_own_call_of_an_executor_alone(way: str, warm: bool) -> None:
    with cw.Executor(2, mp_context="fork") as executor:
        if warm:
            assert executor.submit(tasks.square, 2).result(30) == 4
        with pytest.raises((TypeError, ValueError)):
            EXECUTOR_WRONG[way](executor)
        assert list(executor.map(tasks.square, XS)) == [1, 4, 9]


def test_a_chunk_may_be_larger_than_anything() -> None:
    with cw.Pool(2, context="fork", maxtasksperchild=1 << 70) as pool:
        for size in (1 << 31, 1 << 63, 1 << 70):
            assert pool.map(tasks.square, XS, size) == [1, 4, 9]
            assert list(pool.imap(tasks.square, XS, size)) == [1, 4, 9]
            assert list(pool.imap_unordered(tasks.square, iter(XS), size)) == [1, 4, 9]
            assert pool.starmap(pow, [(3, 2)], size) == [9]
    with cw.Executor(2, mp_context="fork") as executor:
        assert list(executor.map(tasks.square, XS, chunksize=1 << 70)) == [1, 4, 9]


def test_what_a_pool_is_made_with_is_told_in_its_own_words() -> None:
    with pytest.raises(TypeError, match="task_timeout must be seconds"):
        cw.Pool(1, task_timeout="a")  # type: ignore[arg-type]
    with cw.Pool(1) as pool, pytest.raises(ValueError, match="at least 1 worker"):
        pool.resize(0)
