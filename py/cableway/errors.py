"""Exceptions: one class for each outcome that a caller can act on.

Each message says what was asked, what was found and what to do. Bad arguments raise `ValueError` or `TypeError`, as everywhere in
Python.

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
    "GroupBroken",
    "LayoutChanged",
    "LimitExceeded",
    "NameExists",
    "NameNotFound",
    "NameTaken",
    "NotATree",
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
    """The broker is gone. Its names are lost; arrays that are open stay readable; the next call starts a new broker."""


class NameNotFound(Error, KeyError):
    """No array has this name."""

    def __str__(self) -> str:  # KeyError would show the sentence in quotes
        return str(self.args[0]) if self.args else ""


class NameTaken(Error):
    """The name exists already, and the call had `replace=False`."""


class Stale(Error):
    """The array behind a handle, or the memory of a queue, is gone."""


class VersionChanged(Stale):
    """In `put(..., if_version=)` of a tree: the name means another version by now. Get that version, and decide anew."""


class NameExists(VersionChanged, NameTaken):
    """In `put(..., if_version=0)` of a tree: the name exists."""


class NotATree(Error):
    """A tree was asked for (`get(..., swappable=True)`), and the name means an array."""


class LayoutChanged(Error):
    """In `Tree.swap`: the new version's leaves are not laid out as the old one's (`Tree.layout_hash`), so it cannot lie at the old
    one's addresses. The message names the first leaf that differs.
    """


class LimitExceeded(Error, MemoryError):
    """A limit of the broker, or no memory left."""


class DeviceError(Error):
    """The device does not exist here, or cannot do what was asked."""


class ProducerDied(Error):
    """The process that wrote the data died before its work was complete."""


class GroupBroken(ProducerDied):
    """A member of the group has ended, left, or given up, so that the operation cannot be completed. Every other member is told.

    `Group.reform` goes on with the members that are left.

    Attributes:
        rank: of the member that broke the group.
        pid: of its process.
        reason: "died" (its process has ended), "left" (it closed the group), "timeout" (its time ran out while it waited for
            others), "interrupted" (a signal's handler raised in its operation, as Ctrl-C does) or "failed" (its operation failed
            in the middle).
    """

    def __init__(
        self,
        sentence: str = "",
        *,
        rank: int | None = None,
        pid: int | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(sentence)
        self.rank = rank
        self.pid = pid
        self.reason = reason


class WorkerDied(Error):
    """The Pool's worker that ran this task died.

    Attributes:
        pid: of the worker.
        exitcode: as `multiprocessing.Process.exitcode`: the exit status, or minus the signal that killed the worker.
        signal: the signal that killed it, else None.
        function: name of the task's function.
        index: the item of the call's input with which the task began (0 for apply).
        stderr: the end of the worker's stderr, if the Pool captures it; else None.
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
    """The timeout ran out."""


class QueueBlocked(Timeout):
    """The timeout ran out, and it is not known whether the queue has room or an item. Another process is in the middle of a put
    or a get and does not go on, because it is stopped or waits for a broker that does not answer.
    """


class TaskTimeout(WorkerDied, Timeout):
    """The task ran longer than the Pool's `task_timeout`. Its worker was killed and replaced."""


_BY_ERRNO: dict[int, type[Exception]] = {
    errno.ENOENT: NameNotFound,
    errno.EEXIST: NameTaken,
    errno.ESTALE: Stale,
    errno.EBADE: LayoutChanged,
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
    errno.EHOSTUNREACH: RemoteError,  # another try may succeed
    errno.EINTR: InterruptedError,
    errno.EINPROGRESS: InterruptedError,  # and the sentence says that it may yet be done
}


def from_status(status: int, sentence: str) -> Exception:
    """The exception for a negative status of the library and its sentence."""
    kind = _BY_ERRNO.get(-status, Error)
    if not sentence:
        sentence = errno.errorcode.get(-status, str(status))
    return kind(sentence)


_BREAKS = {
    1: "died",
    2: "left",
    3: "timeout",
    4: "interrupted",
    5: "failed",
}  # enum cw_group_reason


def group_broken(sentence: str, reason: int, rank: int, pid: int) -> GroupBroken:
    """The exception for a broken group, from the library's numbers."""
    return GroupBroken(sentence, rank=rank, pid=pid, reason=_BREAKS.get(reason, ""))
