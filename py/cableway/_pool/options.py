"""What a Pool's workers are started with, and how tasks that are lost or too slow are treated."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Options", "chunk_size"]

_COUNT_MAX = 1 << 60  # of items or tasks: C counts no further, and nobody gets there


def chunk_size(given: int, refusal: str = "Chunksize must be 1+, not {}") -> int:
    """How many items of a call a worker takes at one go, as the caller says. Checked before anything of the call begins: what
    another thread stumbles over ends more than that call.

    >>> chunk_size(3), chunk_size(1 << 70) == 1 << 60
    (3, True)
    """
    size = operator.index(given)
    if size < 1:
        raise ValueError(refusal.format(size))
    return min(size, _COUNT_MAX)


class Options:
    """The checked arguments that `Pool` and `Executor` have in common.

    Args:
        initializer: called as initializer(*initargs) in each worker before its first task.
        initargs: its arguments.
        maxtasks: a worker is replaced after so many tasks; None for never.
        retries: how often a task is run again whose worker died.
        task_timeout: seconds that a task may run; None for any time.
        capture_stderr: whether errors show what a dead worker had printed last.

    Raises:
        ValueError, TypeError: with what is wrong.
    """

    __slots__ = ("capture_stderr", "initargs", "initializer", "maxtasks", "retries", "task_timeout")

    def __init__(
        self,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasks: int | None = None,
        retries: int = 0,
        task_timeout: float | None = None,
        capture_stderr: bool = False,
    ) -> None:
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if not isinstance(retries, int) or retries < 0:
            raise ValueError(f"retries must be an integer from 0 on, not {retries!r}")
        if task_timeout is not None:
            try:
                is_one = task_timeout > 0
            except TypeError:
                raise TypeError(
                    f"task_timeout must be seconds or None, not {task_timeout!r}"
                ) from None
            if not is_one:
                raise ValueError(
                    f"task_timeout must be seconds above 0 or None, not {task_timeout!r}"
                )
        self.initializer = initializer
        self.initargs = tuple(initargs)
        self.maxtasks = None if maxtasks is None else min(maxtasks, _COUNT_MAX)
        self.retries = retries
        self.task_timeout = task_timeout
        self.capture_stderr = capture_stderr
