"""What programs written for the standard library's Pool read and expect, beside its documented interface."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest

import cableway as cw
from cableway import _pool_engine

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
    forked: cw.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler comes when the wait has looked, and does not sleep yet; it waits itself for both."""
    monkeypatch.setattr(_pool_engine, "_SLICE_SECONDS", LONG * 1000.0)
    engine = forked._engine
    ended = threading.Event()

    def wait() -> None:
        first, second = iter(forked.imap(tasks.square, [2])), forked.imap(tasks.square, [3])
        looks: list[bool] = []

        def seen() -> bool:
            found = bool(looks)
            if not found:
                looks.append(found)
                assert [next(first), next(second)] == [4, 9]  # as a handler that comes now
            return found

        assert engine.wait_until(seen, None)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    assert ended.wait(LONG)
