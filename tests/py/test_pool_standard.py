"""What programs written for the standard library's Pool read and expect, beside its documented interface."""

from __future__ import annotations

import pickle
from typing import Any

import pool_tasks as tasks
import pytest

import cableway as cw

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
