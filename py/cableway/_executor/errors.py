"""What goes wrong with an Executor, as users of `concurrent.futures` expect it."""

from __future__ import annotations

from concurrent import futures
from concurrent.futures.process import BrokenProcessPool, _RemoteTraceback
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from typing import Any

from cableway.errors import Error, Timeout, WorkerDied

__all__ = ["ExecutorBroken", "ExecutorTimeout", "ExecutorWorkerDied", "as_reported", "broken"]


class ExecutorWorkerDied(WorkerDied, BrokenProcessPool):
    """The worker that ran this task died. The executor and its other tasks go on.

    It is a `BrokenProcessPool` too, so that code written for `ProcessPoolExecutor` still catches it.
    """


class ExecutorBroken(Error, BrokenProcessPool):
    """The executor does nothing any more: its initializer raised, or its workers cannot start; see `__cause__`."""


class ExecutorTimeout(Timeout, futures.TimeoutError):
    """The time given to `map` ran out."""


def as_reported(error: BaseException) -> BaseException:
    """A worker's death as the executor's users expect it; all else as it is, with the cause of that class that it has there."""
    cause: Any = error.__cause__
    if type(cause) is RemoteTraceback:
        error.__cause__ = _RemoteTraceback(cause.tb)
    if type(error) is not WorkerDied:
        return error
    return ExecutorWorkerDied(
        str(error),
        pid=error.pid,
        exitcode=error.exitcode,
        function=error.function,
        index=error.index,
        stderr=error.stderr,
    )


def broken(cause: BaseException) -> ExecutorBroken:
    found = ExecutorBroken(
        f"the executor does nothing any more: {type(cause).__name__}: {cause}; make a new one"
    )
    found.__cause__ = cause
    return found
