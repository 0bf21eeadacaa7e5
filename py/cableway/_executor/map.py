"""What `Executor.map` waits for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

from cableway._executor.errors import ExecutorTimeout, as_reported, broken
from cableway._pool.imap import IMapIterator
from cableway._pool.jobs import Withdrawable, name_of
from cableway.errors import Timeout

__all__ = ["Mapped"]


class Mapped(IMapIterator, Withdrawable):
    """One call of `map`."""

    def task_done(self, number: int, success: bool, value: Any) -> None:
        """Takes the results of one task."""
        if not success:
            value = as_reported(value)
        super().task_done(number, success, value)
        if success:
            value.clear()  # the caller alone holds the results from now on

    def abort(self, error: BaseException) -> None:
        """The executor has ended."""
        super().abort(broken(error))

    def was_cancelled(self, number: int | None) -> None:
        """One task was taken back, None: all that were not sent. There the iterator raises CancelledError."""
        if self.settled:
            return
        if number is None:
            number = self.next_number
            self.input_ended(number + 1)
        self.task_done(number, False, futures.CancelledError())

    def results(self, until: float | None) -> Iterator[Any]:
        """Results in order; when they are not asked for any more, what was not begun is not begun."""
        engine = self.engine
        try:
            while True:
                ready = self._ready
                while ready and ready[0][0]:  # nobody else takes them; next() raises what failed
                    yield ready.popleft()[1]
                left = None if until is None else max(0.0, until - time.monotonic())
                try:
                    found = [self.next(left)]
                except StopIteration:
                    return
                except Timeout:
                    raise ExecutorTimeout(
                        f"the next result of {name_of(self.function)} was not there in the time that map() was given"
                    ) from None
                yield found.pop()
        finally:
            # What is left ends with what workers have of it; till then they need its function.
            engine.withdraw(self)
            self.owner = None
