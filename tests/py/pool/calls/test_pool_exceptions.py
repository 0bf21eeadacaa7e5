"""Exceptions of tasks, and what cannot be sent or read, are raised at the caller; the Pool goes on."""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import threading
from collections.abc import Iterator
from pathlib import Path

import pool_tasks as tasks
import pytest
from pool_support import LONG

import cableway as cw


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


@pytest.mark.parametrize("chunksize", [1, 3])
def test_what_an_iterable_raises_comes_behind_the_results_of_what_it_gave(
    forked: cw.Pool, tmp_path: Path, chunksize: int
) -> None:
    """Unordered, too: all tasks wait until the iterable has raised."""
    go = tmp_path / "go"

    def broken() -> Iterator[str]:
        for _ in range(6):
            yield str(go)
        go.touch()
        raise tasks.Fault("iterable", 6)

    results = forked.imap_unordered(tasks.wait_for, broken(), chunksize)
    assert [next(results) for _ in range(6)] == [str(go)] * 6
    with pytest.raises(tasks.Fault):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


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


@pytest.mark.parametrize("named", [5, "text", [("a", 1)], b"bytes", 2.5, (1, 2)])
def test_named_arguments_that_are_no_mapping_are_a_type_error(named: object) -> None:
    with cw.Pool(1) as pool:
        for call in (pool.apply, lambda *a: pool.apply_async(*a).get(60)):
            with pytest.raises(TypeError, match="mapping"):
                call(divmod, (7, 2), named)
        assert pool.apply(divmod, (7, 2)) == (3, 1)
