"""The outcome of a task: its result, its exception with the worker's traceback, or the death of its worker."""

from __future__ import annotations

import os
import signal
from multiprocessing.pool import (  # type: ignore[attr-defined]
    MaybeEncodingError,
    RemoteTraceback,
)
from multiprocessing.spawn import get_preparation_data
from typing import TYPE_CHECKING, Any

from cableway._pool.jobs import name_of
from cableway._pool.launch.process import STATUS_SECONDS
from cableway._transport import message as wire
from cableway.errors import Error, TaskTimeout, WorkerDied

if TYPE_CHECKING:
    from cableway._pool.workers import Worker

__all__ = ["by_itself", "death", "decode", "idle_death", "printed", "start_death", "undecodable"]

# What a process does to itself, as opposed to what kill, a terminal or the kernel without memory send.
_FAULTS = {
    signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGSYS, signal.SIGTRAP,
}  # fmt: skip


def decode(message: wire.Message, what: str) -> tuple[bool, Any]:
    """Success, and the result or the exception with its remote traceback as the cause.

    Args:
        message: with its blocks open.
        what: what sent it.

    Raises:
        Whatever unpickling raises, or a signal's handler meanwhile; see `undecodable` and _core.handler_errors.
    """
    value = wire.loads(message)
    if message.call:
        return True, value
    if not isinstance(value, BaseException):
        value = Error(f"{what} failed with something that is no exception: {value!r}")
    value.__cause__ = RemoteTraceback(f'\n"""\n{printed(message)}"""')
    return False, value


def printed(message: wire.Message) -> str:
    """The traceback that goes with a message; "" where none does."""
    return bytes(message.lead).decode("utf-8", "replace")


class MaybeDecodingError(MaybeEncodingError):  # type: ignore[misc]
    """What a task had sent cannot be unpickled at the caller.

    The standard library has no such error: there, nobody answers the call then. It is a `MaybeEncodingError`, which is what
    programs catch.
    """

    def __init__(self, exc: BaseException | str, value: str) -> None:
        super().__init__(exc, value)
        self.exc = exc if isinstance(exc, str) else repr(exc)  # a copy has the text already
        self.value = value
        self.args = (self.exc, value)

    def __str__(self) -> str:
        return f"{self.value} was sent, but cannot be unpickled here: {self.exc}"


def undecodable(error: BaseException, what: str, text: str = "") -> BaseException:
    """The exception for a result or an exception that cannot be unpickled here; text: its own traceback.

    What is ours (its memory is gone, the broker is gone) is told as it is.
    """
    if isinstance(error, Error) and not text:
        return error
    found = MaybeDecodingError(
        error, f"the exception of {what}" if text else f"the result of {what}"
    )
    found.__cause__ = RemoteTraceback(f'\n"""\n{text}"""') if text else error
    return found


def death(
    worker: Worker, function: Any, span: tuple[int, int] | None, overran: bool = True
) -> WorkerDied:
    """The exception for a task whose worker died.

    Args:
        worker: the worker, reaped.
        function: what the task called.
        span: which items it had: the first and how many; None for a single call.
        overran: if the worker was killed for its time limit: it was this task that had passed it, not one beside it.
    """
    what = name_of(function)
    items = ""
    if span is not None:
        first, count = span
        items = f", item {first}" if count == 1 else f", items {first} to {first + count - 1}"
    kind, how = WorkerDied, f"{_how(worker.exitcode)} while it ran"
    if worker.fault is not None:
        how = f"was killed, since it has damaged the Pool's memory ({worker.fault}), while it ran"
    if worker.overran is not None and not overran:
        how = f"was killed, since another task of it had passed the task_timeout of {worker.overran} s, while it had begun"
    elif worker.overran is not None:
        kind, how = (
            TaskTimeout,
            f"was killed, since the task_timeout of {worker.overran} s was over, in",
        )
    return kind(
        f"the Pool's worker {worker.pid} {how} {what}{items}; other tasks are not affected{_printed(worker)}",
        pid=worker.pid,
        exitcode=worker.exitcode,
        function=what,
        index=0 if span is None else span[0],
        stderr=None if worker.stderr is None else worker.stderr.text,
    )


def start_death(worker: Worker, times: int) -> WorkerDied:
    """The exception for workers that die before they can do anything."""
    return WorkerDied(
        f"{times} workers of the Pool died one after the other while they started, the last one (pid {worker.pid}) "
        f"{_how(worker.exitcode)}; {_why_not_started(worker)}{_printed(worker)}",
        pid=worker.pid,
        exitcode=worker.exitcode,
        stderr=None if worker.stderr is None else worker.stderr.text,
    )


def by_itself(worker: Worker) -> bool:
    """Whether a worker's death has its cause in it: not a signal that others send, and it is known."""
    if worker.fault is not None:
        return True
    status = worker.exitcode
    return status is not None and (status >= 0 or -status in _FAULTS)


def idle_death(worker: Worker, times: int, limit: int) -> WorkerDied:
    """The exception for workers that die when they are ready, before they have had a task."""
    how = _how(worker.exitcode)
    if worker.fault is not None:
        how = f"was killed, since it has damaged the Pool's memory ({worker.fault})"
    return WorkerDied(
        f"{times} workers of the Pool died one after the other when they had started, without having had a task, and no task was "
        f"done in between; the last one (pid {worker.pid}) {how}. After {limit} the Pool ends: see what they printed, and "
        f"what the initializer and imported modules leave running{_printed(worker)}",
        pid=worker.pid,
        exitcode=worker.exitcode,
        stderr=None if worker.stderr is None else worker.stderr.text,
    )


def _why_not_started(worker: Worker) -> str:
    """What may have ended a worker before it was ready, as far as this process can know."""
    process: Any = worker.process
    by_fork = getattr(process, "_start_method", None) == "fork"
    if (worker.exitcode or 0) <= 0 or by_fork or not getattr(process, "runs_main", True):
        return "see what it printed"
    told = get_preparation_data("")
    path = told.get("init_main_from_path")
    if path is not None and not os.path.exists(path):
        return (
            f"with spawn and forkserver a worker runs the main module's file first, and here that is {path}, which is "
            "not there: put the script into a file (python script.py instead of python < script.py)"
        )
    main = path or told.get("init_main_from_name")
    if main is None:
        return "see what it printed"
    return (
        f"see what it printed. With spawn and forkserver a worker first imports the main module ({main}), which must "
        'not raise there, and whose own work must stand under if __name__ == "__main__"'
    )


def _printed(worker: Worker) -> str:
    text = worker.stderr.text.strip() if worker.stderr is not None else ""
    return f". Its stderr ended with:\n{text}" if text else ""


def _how(exitcode: int | None) -> str:
    if exitcode is None:
        return (
            "is gone (how it ended is not known: the server that it was forked from has ended, or has not told it "
            f"within {STATUS_SECONDS:g} s, or this process ignores SIGCHLD or something else in it has waited for its children)"
        )
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    try:
        return f"was killed by {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"was killed by signal {-exitcode}"
