"""Cancels tasks that no worker has taken yet, and tells their jobs."""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any

from cableway._pool.jobs import Outcome, Source, Task, Withdrawable, job_of

if TYPE_CHECKING:
    from cableway._dispatch import Dispatch
    from cableway._pool.submit import SubmitQueue

__all__ = ["Cancelled"]


class Cancelled:
    """What is taken back in one go.

    A Ctrl-C may come at any line. So what the dispatch gives back stands here before the next line begins (the loops
    over `map` are C code), and `tell` may be called again, by the supervisor, which no signal's handler interrupts.

    Args:
        dispatch: where tasks are that were sent.
        submit_queue: where the others wait.
    """

    __slots__ = ("_dispatch", "_sent", "_submit_queue", "_waiting")

    def __init__(self, dispatch: Dispatch, submit_queue: SubmitQueue) -> None:
        self._dispatch = dispatch
        self._submit_queue = submit_queue
        self._waiting: list[Task | Source | Outcome] = []
        self._sent: deque[Any] = deque()  # as the dispatch tells of them

    def take(self, job: Withdrawable | None, cell: int) -> None:
        """Takes back what belongs to a job, or all of it. cell: where its only task may lie, -1: anywhere."""
        dispatch = self._dispatch
        if cell >= 0:
            self._sent.extend(filter(None, map(dispatch.withdraw, (cell,), (job,))))
            if self._sent:
                return
        self._submit_queue.withdraw(job, self._waiting)
        self._sent.extend(chain.from_iterable(map(dispatch.withdraw_all, (job,))))

    def tell(self) -> None:
        """Tells the jobs. May be repeated."""
        self._submit_queue.forget(self._waiting)
        for job, number, *_, payload in tuple(self._sent):
            self._submit_queue.unhold(payload)
            job.was_cancelled(number)
        for work in self._waiting:
            number = None if isinstance(work, Source) else getattr(work, "number", 0)
            job_of(work).was_cancelled(number)
