"""Exceptions: one class for each outcome that a caller can act on.

Each sentence says what was asked, what was found and what to do. Bad arguments raise `ValueError` or
`TypeError`, as everywhere in Python.

>>> import cableway as cw
>>> try:
...     cw.get("no/such/name")
... except KeyError as error:
...     type(error).__name__
'NameNotFound'
"""

from __future__ import annotations

import errno
import multiprocessing

__all__ = [
    "BrokerLost",
    "DeviceError",
    "Error",
    "LimitExceeded",
    "NameNotFound",
    "NameTaken",
    "ProducerDied",
    "QueueBlocked",
    "RemoteError",
    "Stale",
    "TaskTimeout",
    "Timeout",
    "VersionChanged",
    "WorkerDied",
]


class Error(Exception):
    """Base of all exceptions of cableway."""


class BrokerLost(Error):
    """The broker is gone: its names are lost, what is mapped stays readable, the next call starts anew."""


class NameNotFound(Error, KeyError):
    """No array has this name."""

    def __str__(self) -> str:  # KeyError would show the sentence in quotes
        return str(self.args[0]) if self.args else ""


class NameTaken(Error):
    """The name exists already, and `replace=False` was asked."""


class Stale(Error):
    """The array behind a handle is gone, or what a queue lies in."""


class VersionChanged(Stale):
    """`put(..., if_version=)` of a tree, and the name means another version by now: get that, and decide anew."""


class LimitExceeded(Error, MemoryError):
    """A limit of the broker, or no memory left."""


class DeviceError(Error):
    """The device does not exist here, or cannot do what was asked."""


class ProducerDied(Error):
    """The process that was to write the data died before that was complete."""


class WorkerDied(Error):
    """The Pool's worker that ran this task died.

    Attributes:
        pid: of the worker.
        exitcode: as `multiprocessing.Process.exitcode`: what it ended with, or minus the signal that killed it.
        signal: the signal that killed it, else None.
        function: name of the task's function.
        index: which item of the call's input the task began with (0 for apply).
        stderr: the end of what the worker had printed there, where the Pool captures it; else None.
    """

    def __init__(
        self,
        sentence: str = "",
        *,
        pid: int | None = None,
        exitcode: int | None = None,
        function: str | None = None,
        index: int | None = None,
        stderr: str | None = None,
    ) -> None:
        super().__init__(sentence)
        self.pid = pid
        self.exitcode = exitcode
        self.signal = -exitcode if exitcode is not None and exitcode < 0 else None
        self.function = function
        self.index = index
        self.stderr = stderr


class RemoteError(Error):
    """Another node could not be reached, or refused."""


class Timeout(Error, TimeoutError, multiprocessing.TimeoutError):
    """The time given ran out."""


class QueueBlocked(Timeout):
    """The time given ran out, and it cannot be told whether the queue has room, or an item: another process is in the middle of
    a put or a get and stands still, because it is stopped or waits for a broker that does not answer.
    """


class TaskTimeout(WorkerDied, Timeout):
    """The task ran longer than the Pool's `task_timeout`: its worker was ended and replaced."""


_BY_ERRNO: dict[int, type[Exception]] = {
    errno.ENOENT: NameNotFound,
    errno.EEXIST: NameTaken,
    errno.ESTALE: Stale,
    errno.EDQUOT: LimitExceeded,
    errno.ENOMEM: LimitExceeded,
    errno.ENOSPC: LimitExceeded,
    errno.ECONNRESET: BrokerLost,
    errno.ETIMEDOUT: Timeout,
    errno.EINVAL: ValueError,
    errno.EMSGSIZE: ValueError,
    errno.ENODEV: DeviceError,
    errno.EOWNERDEAD: ProducerDied,
    errno.EREMOTEIO: RemoteError,
    errno.EINTR: InterruptedError,
    errno.EINPROGRESS: InterruptedError,  # and the sentence says that it may yet be done
}


def from_status(status: int, sentence: str) -> Exception:
    """The exception for a negative status of the library and its sentence."""
    kind = _BY_ERRNO.get(-status, Error)
    if not sentence:
        sentence = errno.errorcode.get(-status, str(status))
    return kind(sentence)
