"""What is sent beside close() is done as a whole or refused as a whole, at the call: never half, and never cut short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pool_tasks as tasks
import pytest
from pool_idioms import Thread
from pool_support import LONG
from waiting import eventually

import cableway as cw

N = 300  # more than there are cells


def _pairs() -> list[tuple[int, int]]:
    return [(x, 2) for x in range(N)]


def _numbers() -> Iterator[int]:
    yield from range(N)


SENDS: dict[str, Callable[[cw.Pool], Any]] = {
    "apply": lambda pool: [pool.apply(tasks.square, (3,))],
    "apply_async": lambda pool: [pool.apply_async(tasks.square, (3,)).get(LONG)],
    "apply_async with a callback": lambda pool: [
        pool.apply_async(tasks.square, (3,), callback=bool).get(LONG)
    ],
    "map": lambda pool: pool.map(tasks.square, range(N), 1),
    "map_async": lambda pool: pool.map_async(tasks.square, range(N), 1).get(LONG),
    "starmap": lambda pool: pool.starmap(pow, _pairs(), 1),
    "starmap_async": lambda pool: pool.starmap_async(pow, _pairs(), 1).get(LONG),
    "imap": lambda pool: list(pool.imap(tasks.square, range(N))),
    "imap_unordered": lambda pool: sorted(pool.imap_unordered(tasks.square, range(N))),
    "imap of a generator": lambda pool: list(pool.imap(tasks.square, _numbers())),
    "imap_unordered of a generator": lambda pool: sorted(
        pool.imap_unordered(tasks.square, _numbers())
    ),
    "imap with buffersize": lambda pool: list(pool.imap(tasks.square, range(N), buffersize=3)),
}
# The call itself, with which the work is to be refused already.
BEGINS: dict[str, Callable[[cw.Pool], Any]] = {
    "apply": lambda pool: pool.apply(tasks.square, (3,)),
    "apply_async": lambda pool: pool.apply_async(tasks.square, (3,)),
    "apply_async with a callback": lambda pool: pool.apply_async(tasks.square, (3,), callback=bool),
    "map": lambda pool: pool.map(tasks.square, range(N), 1),
    "map_async": lambda pool: pool.map_async(tasks.square, range(N), 1),
    "starmap": lambda pool: pool.starmap(pow, _pairs(), 1),
    "starmap_async": lambda pool: pool.starmap_async(pow, _pairs(), 1),
    "imap": lambda pool: pool.imap(tasks.square, range(N)),
    "imap_unordered": lambda pool: pool.imap_unordered(tasks.square, range(N)),
    "imap of a generator": lambda pool: pool.imap(tasks.square, _numbers()),
    "imap_unordered of a generator": lambda pool: pool.imap_unordered(tasks.square, _numbers()),
    "imap with buffersize": lambda pool: pool.imap(tasks.square, range(N), buffersize=3),
}


def _expected(way: str) -> list[int]:
    return [9] if way.startswith("apply") else [x * x for x in range(N)]


def _close_within(
    pool: cw.Pool, monkeypatch: pytest.MonkeyPatch, end: Callable[[], object]
) -> None:
    """The next call looks whether the pool runs; then end() comes, and only then the call goes on."""
    engine = pool._engine
    looks, begins = engine.check_running, engine.begin

    def check_running() -> None:
        monkeypatch.setattr(engine, "check_running", looks)
        looks()
        end()

    def begin(*call: Any) -> Any:
        monkeypatch.setattr(engine, "begin", begins)
        if engine.check_running is looks:  # apply had looked before
            return begins(*call)
        monkeypatch.setattr(engine, "check_running", looks)
        end()
        return begins(*call)

    monkeypatch.setattr(engine, "check_running", check_running)
    monkeypatch.setattr(engine, "begin", begin)


@pytest.mark.parametrize("way", list(BEGINS))
def test_a_call_that_comes_after_a_closed_pool_has_ended_is_refused_itself(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = cw.Pool(2, context="fork")

    def end() -> None:
        pool.close()
        pool.join()

    _close_within(pool, monkeypatch, end)
    with pytest.raises(ValueError, match="^Pool not running$"):
        BEGINS[way](pool)
    assert not pool._cache


@pytest.mark.parametrize("way", list(SENDS))
def test_a_call_that_comes_beside_close_is_done_as_a_whole(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The helper has seen that nothing is left and that no worker lives; then something comes."""
    pool = cw.Pool(2, context="fork")
    engine: Any = pool._engine
    found: list[Any] = []
    begins, ends = engine.begin, engine.end_if_done

    def end_if_done() -> bool:
        monkeypatch.setattr(engine, "end_if_done", ends)
        monkeypatch.setattr(engine, "check_running", lambda: None)
        monkeypatch.setattr(engine, "begin", begins)
        found.append(Thread(lambda: SENDS[way](pool)))
        assert eventually(lambda: engine.has_work or engine.dispatch.ready(), LONG)
        return bool(ends())

    monkeypatch.setattr(engine, "end_if_done", end_if_done)
    pool.close()
    pool.join()
    assert found[0].result() == _expected(way)


@pytest.mark.parametrize("way", list(BEGINS))
def test_a_call_that_comes_with_the_end_of_a_closed_pool_is_refused_itself(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The helper has decided that the pool is at its end; then something comes, before it says so to anybody."""
    pool = cw.Pool(2, context="fork")
    engine: Any = pool._engine
    told: list[BaseException] = []
    begin_end, begins, looks = engine.begin_end, engine.begin, engine.check_running

    def ends() -> Any:
        monkeypatch.setattr(engine, "begin_end", begin_end)
        monkeypatch.setattr(engine, "check_running", lambda: None)
        monkeypatch.setattr(engine, "begin", begins)
        try:
            BEGINS[way](pool)
        except BaseException as error:
            told.append(error)
        monkeypatch.setattr(engine, "check_running", looks)
        return begin_end()

    monkeypatch.setattr(engine, "begin_end", ends)
    pool.close()
    pool.join()
    assert [(type(error), str(error)) for error in told] == [(ValueError, "Pool not running")]


EXECUTOR_SENDS: dict[str, Callable[[cw.Executor], Any]] = {
    "submit": lambda executor: executor.submit(tasks.square, 3),
    "map": lambda executor: executor.map(tasks.square, range(N)),
    "map in chunks": lambda executor: executor.map(tasks.square, range(N), chunksize=7),
    "map with buffersize": lambda executor: executor.map(tasks.square, range(N), buffersize=3),
}


@pytest.mark.parametrize("way", list(EXECUTOR_SENDS))
def test_what_comes_after_an_executors_shutdown_is_refused_itself(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = cw.Executor(2, mp_context="fork")
    assert executor.submit(tasks.square, 2).result(LONG) == 4
    running, engine = executor._running, executor._engine
    monkeypatch.setattr(engine, "begin", lambda *call: None)

    def looked() -> Any:
        monkeypatch.setattr(executor, "_running", running)
        found = running()
        executor.shutdown()
        return found

    monkeypatch.setattr(executor, "_running", looked)
    with pytest.raises(
        RuntimeError, match="^cannot schedule new futures after shutdown$"
    ) as caught:
        EXECUTOR_SENDS[way](executor)
    assert type(caught.value) is RuntimeError
