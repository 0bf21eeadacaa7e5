"""What became of a task: its result, its exception with the worker's traceback, or its worker's death."""

from __future__ import annotations

import signal
from multiprocessing.pool import (  # type: ignore[attr-defined]
    MaybeEncodingError,
    RemoteTraceback,
)
from typing import Any

from causeway import _pool_wire as wire
from causeway._pool_jobs import Task, name_of
from causeway.errors import Error, WorkerDied

__all__ = ["decode", "death", "start_death", "undecodable"]


def decode(message: wire.Message, what: str) -> tuple[bool, Any]:
    """Success, and the result or the exception with its remote traceback as the cause."""
    text = bytes(message.lead).decode("utf-8", "replace")
    try:
        value = wire.loads(message)
    except BaseException as error:
        return False, undecodable(error, what, text)
    if message.call:
        return True, value
    if not isinstance(value, BaseException):
        value = Error(f"{what} failed with something that is no exception: {value!r}")
    value.__cause__ = RemoteTraceback(f'\n"""\n{text}"""')
    return False, value


def undecodable(error: BaseException, what: str, text: str = "") -> BaseException:
    """The exception for a result or an exception that cannot be unpickled here; text: its own traceback.

    What is ours (its memory is gone, the broker is gone) is told as it is.
    """
    if isinstance(error, Error) and not text:
        return error
    found: BaseException = MaybeEncodingError(
        error, f"<what {what} sent, which cannot be unpickled here>"
    )
    found.__cause__ = RemoteTraceback(f'\n"""\n{text}"""') if text else error
    return found


def death(pid: int, exitcode: int | None, task: Task) -> WorkerDied:
    """The exception for a task whose worker died."""
    what = name_of(task.job.function)
    items = ""
    if task.call != wire.APPLY:
        last = task.first + task.count - 1
        items = f", item {last}" if task.count == 1 else f", items {task.first} to {last}"
    return WorkerDied(
        f"the Pool's worker {pid} {_how(exitcode)} while it ran {what}{items}; other tasks are not affected",
        pid=pid,
        exitcode=exitcode,
        function=what,
        index=task.first,
    )


def start_death(pid: int, exitcode: int | None, times: int) -> WorkerDied:
    """The exception for workers that die before they can do anything."""
    return WorkerDied(
        f"{times} workers of the Pool died one after the other while they started, the last one (pid {pid}) "
        f"{_how(exitcode)}; see what it printed. With spawn and forkserver the script's own work must stand "
        'under if __name__ == "__main__"',
        pid=pid,
        exitcode=exitcode,
    )


def _how(exitcode: int | None) -> str:
    if exitcode is None:
        return "is gone"
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    try:
        return f"was killed by {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"was killed by signal {-exitcode}"
