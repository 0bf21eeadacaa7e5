"""A rank of `Pool.spmd` in its worker: waits until all ranks have a worker, joins their group, and calls the function.

The ranks of a gang share an array of words with the parent: word 0 is set by the parent when the gang is broken or called off, word
1 + rank by the rank when it has its worker. So a rank never waits for one that will not come: before all are there, and while it
joins, it looks at word 0, since a worker may die just then. Once the group is complete, it has the
group's own promises. If the parent dies, its workers end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from cableway.errors import Error
from cableway.group import Group

if TYPE_CHECKING:
    import numpy as np

    from cableway.array import Array

__all__ = ["Member", "NotBegun", "NotHere", "Seat"]

here = 0  # the group of workers that this worker is in
_LOOK_SECONDS, _LOOK_MOST_SECONDS = 0.0002, 0.01


class Seat(NamedTuple):
    """What a rank must know."""

    group: str
    rank: int
    size: int
    workers: int | None  # the group of workers that it must be in; None: any
    attempt: int
    timeout: float | None
    words: Array


class NotHere(NamedTuple):
    """Instead of a result: a worker of another GPU had taken this rank."""

    attempt: int


class NotBegun(Error):
    """This rank was not called, since the gang was broken before all ranks had a worker."""


class Member:
    """A function as one rank calls it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        for name in ("__qualname__", "__module__"):  # as errors call it
            if isinstance(getattr(function, name, None), str):
                setattr(self, name, getattr(function, name))

    def __call__(self, seat: Seat, *args: Any) -> Any:
        if seat.workers is not None and seat.workers != here:
            return NotHere(seat.attempt)
        words: np.ndarray[Any, Any] = seat.words.numpy()
        words[1 + seat.rank] = 1
        seconds = _LOOK_SECONDS
        while not words[1:].all():
            _check(words)
            time.sleep(seconds)
            seconds = min(2 * seconds, _LOOK_MOST_SECONDS)
        with _join(seat, words) as group:
            return self.function(group, *args)

    def __repr__(self) -> str:
        return repr(self.function)


def _check(words: np.ndarray[Any, Any]) -> None:
    if words[0]:
        raise NotBegun("the gang was broken before all of its ranks had a worker")


def _join(seat: Seat, words: np.ndarray[Any, Any]) -> Group:
    try:
        group = Group._join_until(seat.group, seat.size, seat.rank, words.ctypes.data)
    except Exception:
        _check(words)  # word 0 has ended it
        raise
    group.timeout = seat.timeout
    return group
