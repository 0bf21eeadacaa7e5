"""Jobs of a Pool, and the tasks into which they are cut.

A *job* is one call of the Pool. It is cut into *tasks*, numbered from 0; each goes to one worker as one message. Tasks of a map are
cut only when there is room to send them. A job is told of each task at least once (`task_done`; a second time changes nothing, so
that an interrupted thread may begin again), by whichever thread collects answers, and of the end of the Pool (`abort`).

A job of one task may be an `Outcome` (csrc/dispatch_outcome.c): then it is its own result. If it was begun the quick way
(`Engine.begin`), it also takes the place of its Task, and is told nothing if all goes well.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cableway._dispatch import Outcome
from cableway._transport.message import MAP, STARMAP
from cableway.transfers import check_distinct

if TYPE_CHECKING:
    from cableway._pool.engine import Engine
    from cableway._pool.functions import Function
    from cableway._transport.shared_arguments import Shared

__all__ = ["FINISHED", "Job", "Outcome", "Source", "Task", "Withdrawable", "job_of", "name_of"]

FINISHED = "FINISHED"  # state of an Outcome that has ended; before that it is "PENDING"


def name_of(function: Any) -> str:
    """How errors call a function."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return repr(function)
    module = getattr(function, "__module__", None)
    return name if module in (None, "builtins") else f"{module}.{name}"


class Task:
    """What one worker does at one go.

    Attributes:
        sent: number + 1 once it was sent, else 0.
        group: of workers, to which it must go. None: to where its arrays lie, or any. Of tasks alone that go as messages.
    """

    __slots__ = ("args", "group", "job", "kind", "number", "sent")

    def __init__(
        self, job: Job, number: int, kind: int, args: Any, group: int | None = None
    ) -> None:
        self.job = job
        self.number = number
        self.kind = kind
        self.args = args
        self.group = group
        self.sent = 0

    @property
    def all_sent(self) -> bool:
        """Whether it was sent."""
        return self.sent > 0


class Source:
    """The items of a job, to be cut into tasks.

    Attributes:
        sent: how many of its tasks were sent.
    """

    __slots__ = ("chunksize", "items", "job", "kind", "sent")

    def __init__(self, job: Job, items: tuple[Any, ...], chunksize: int, star: bool) -> None:
        check_distinct(items)
        self.job = job
        job.shared = job.engine.shared_by(job, items, chunksize)
        self.items = items
        self.chunksize = chunksize
        self.kind = STARMAP if star else MAP
        self.sent = 0

    @property
    def all_sent(self) -> bool:
        """Whether all tasks were."""
        return self.sent * self.chunksize >= len(self.items)

    def task(self, number: int) -> Task:
        """One task. Runs no code of the user's."""
        first = number * self.chunksize
        return Task(self.job, number, self.kind, self.items[first : first + self.chunksize])


def job_of(work: Task | Source | Outcome) -> Any:
    """Whose work it is."""
    return work if isinstance(work, Outcome) else work.job


class Job(abc.ABC):
    """What all kinds of results have in common.

    Attributes:
        owner: the Pool; held until the job is done, so that it is not collected before.
        function: what its tasks call.
        found: the function in its slot, None when it goes along with each task's arguments.
        described: what the dispatch wants to know of it.
        shared: what its tasks have in common; None: nothing.
        tries: how often each task was lost with its worker, where that is counted.
    """

    shared: Shared | None = None
    tries: dict[int, int] | None = None
    _settled = False

    def __init__(self, engine: Engine, owner: Any, function: Callable[..., Any]) -> None:
        self.engine = engine
        self.owner = owner
        self.function = function
        self.found: Function | None = engine.functions.find(function)
        self.described: Any = self.found.described if self.found is not None else None

    @property
    def settled(self) -> bool:
        """Whether nothing changes any more."""
        return self._settled

    def span(self, number: int) -> tuple[int, int] | None:
        """Which items a task has: the first and how many; None for a single call."""
        return None

    def again(self, number: int) -> Task | None:
        """The same task once more; None if it is not known any more."""
        return None

    @abc.abstractmethod
    def task_done(self, number: int, success: bool, value: Any) -> None:
        """One task has ended; value is its result or the exception."""

    @abc.abstractmethod
    def abort(self, error: BaseException) -> None:
        """The Pool has ended: what is not done will never be."""

    @abc.abstractmethod
    def settle(self) -> None:
        """Tells who waits; called once the callbacks have run."""

    @property
    def calls_back(self) -> bool:
        """Whether `call_back` is to run before the job counts as done."""
        return False

    def call_back(self) -> None:
        """Runs the callback. A second time changes nothing."""
        return


class Withdrawable(Job):
    """A job whose tasks can be taken back: those of an executor, and no others."""

    @abc.abstractmethod
    def was_cancelled(self, number: int | None) -> None:
        """A task was taken back before a worker had it; None: all that were not sent yet. May be repeated."""
