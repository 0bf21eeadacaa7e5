"""What `imap` and `imap_unordered` return."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from cableway._core import locks
from cableway._pool import interpreter_exit
from cableway._pool.jobs import Job, Source, Task, name_of
from cableway.errors import Timeout

if TYPE_CHECKING:
    from cableway._pool.engine import Engine
    from cableway._pool.progress import Progress

__all__ = ["IMapIterator", "IMapUnorderedIterator"]


class _Numbers:
    """Numbers as ranges, first and behind last: as many as there are gaps, which are tasks that were not handed out yet.

    >>> numbers = _Numbers()
    >>> for number in (0, 3, 1, 2, 5, 5):
    ...     numbers.add(number)
    >>> numbers.ranges, 4 in numbers, 5 in numbers
    ([(0, 4), (5, 6)], False, True)
    """

    __slots__ = ("ranges",)

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def _before(self, number: int) -> int:
        """How many ranges begin at number or before."""
        return bisect_left(self.ranges, (number + 1,))

    def __contains__(self, number: int) -> bool:
        at = self._before(number)
        return at > 0 and number < self.ranges[at - 1][1]

    def add(self, number: int) -> None:
        """May be repeated. At once: a signal's handler comes before it or after it."""
        if number in self:
            return
        ranges, first, behind = self.ranges, number, number + 1
        low = high = self._before(number)
        if low and ranges[low - 1][1] == number:
            low -= 1
            first = ranges[low][0]
        if high < len(ranges) and ranges[high][0] == behind:
            behind = ranges[high][1]
            high += 1
        ranges[low:high] = [(first, behind)]


class IMapIterator(Job):
    """What `imap` returns: an iterator in the order of the input, with next(timeout)."""

    ordered = True

    def __init__(
        self,
        engine: Engine,
        owner: Any,
        function: Callable[..., Any],
        chunksize: int,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(engine, owner, function)
        self._chunksize = chunksize
        self._progress = progress
        self._source: Source | None = None
        self._lock = locks.RLock()  # a finaliser may come to take it on a thread that has it
        self.room = threading.Condition(self._lock)  # where a feeder waits
        self._come: dict[int, list[tuple[bool, Any]]] = {}  # results of tasks, not yet asked for
        self._ready: deque[tuple[bool, Any]] = deque()  # of the task that is being handed out
        self._next = 0  # the number of tasks that were handed out
        self._handed = _Numbers()  # of an unordered one: which
        self._count = 0  # tasks done
        self._begun = 0
        self._counts_taken = progress is not None  # or its input is fed
        self._taken = 0  # items that were asked for
        self._length: int | None = None  # tasks in all, once known
        self._abort: BaseException | None = None
        self._failure: tuple[int, BaseException] | None = None  # of the input, for the last task
        self._given: dict[int, Task] = {}  # tasks that may be asked for again

    def __iter__(self) -> Iterator[Any]:
        return self

    def next(self, timeout: float | None = None) -> Any:
        """The next result; StopIteration at the end.

        Args:
            timeout: seconds to wait at most; None for ever.

        Raises:
            Timeout: no result by then; it may be asked for again.
        """
        if not self._counts_taken:
            try:
                success, value = self._ready.popleft()
            except IndexError:
                pass
            else:
                if success:
                    return value
                try:
                    raise value
                finally:
                    del value, self  # else the exception's traceback would hold them
        until = None if timeout is None else time.monotonic() + timeout
        late = False
        while not self._has_next():
            if late:
                raise Timeout(
                    f"the next result of {name_of(self.function)} was not there after {timeout} s"
                )
            left = None if until is None else max(0.0, until - time.monotonic())
            late = not self.engine.wait_until(self._has_next, left)
        with self._lock:
            # Another thread may have taken it meanwhile: then this one waits again.
            found = self._ready.popleft() if self._hand_out() else None
            if found is not None and self._counts_taken:
                self._taken += 1
                self.room.notify_all()
        if found is None:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                return self._next_or_end(left)
            finally:
                self = None  # type: ignore[assignment]  # as below
        success, value = found
        if self._progress is not None:
            self._progress.reach(self._taken)
        if success:
            return value
        try:
            raise value
        finally:
            del value, found, self  # else the exception's traceback would hold them

    def _next_or_end(self, timeout: float | None) -> Any:
        """There was something, but no result: the end, or another thread has it."""
        if self._length == self._next:
            self.owner = None
            if self._progress is not None:
                self._progress.close()
            raise StopIteration
        if self._abort is not None:
            interpreter_exit.hold(self._abort)
            try:
                raise self._abort
            finally:
                self = None  # type: ignore[assignment]  # as above
        return self.next(timeout)

    __next__ = next

    def span(self, number: int) -> tuple[int, int] | None:
        """Which items a task has."""
        return number * self._chunksize, self._chunksize

    def again(self, number: int) -> Task | None:
        """A task once more."""
        source = self._source
        return self._given.get(number) if source is None else source.task(number)

    def task_done(self, number: int, success: bool, value: Any) -> None:
        """Takes the results of one task; those of a failed one are one exception."""
        if not success:
            results = [(False, value)]
        elif len(value) == 1:
            results = [(True, value[0])]
        else:
            results = [(True, item) for item in value]
        come = self._come
        with self._lock:
            if number not in come and not self._was_handed_out(number):
                come[number] = results
                self._count += 1
            failure = self._failure
            if failure is not None and self._count == failure[0]:
                self._failure = None
                come[failure[0]] = [(False, failure[1])]
                self._count += 1
            if self._counts_taken:
                self._given.pop(number, None)
                self.room.notify_all()
            ended = not self._settled and self._length is not None and self._count >= self._length
        if ended:
            self.engine.job_done(self)
        self.engine.notify()

    def _was_handed_out(self, number: int) -> bool:
        return number < self._next if self.ordered else number in self._handed

    def _has_next(self) -> bool:
        """Whether `next` need not wait."""
        with self._lock:
            return self._hand_out() or self._length == self._next or self._abort is not None

    def _hand_out(self) -> bool:
        """Makes the next task's results ready, if they have come. Whether some are ready."""
        come = self._come
        while not self._ready:
            number = self._next if self.ordered else next(iter(come), -1)
            results = come.get(number)
            if results is None:
                return False
            ready, first = deque(results), self._next
            until = first + 1
            if not self.ordered:
                self._handed.add(number)
            while self.ordered and until in come:
                ready.extend(come[until])
                until += 1
            # At once: no signal's handler comes in between. What it leaves of the rest is not looked at again.
            self._ready = ready
            self._next = until
            if not self.ordered:
                del come[number]
            else:
                for number in range(first, until):
                    del come[number]
        return True

    def _look_for_end(self) -> None:
        with self._lock:
            ended = not self._settled and self._length is not None and self._count >= self._length
        if ended:
            self.engine.job_done(self)

    def abort(self, error: BaseException) -> None:
        """Raises error where results are missing."""
        with self._lock:
            if self._length is None or self._count < self._length:
                self._abort = error
            self.room.notify_all()
        engine = self.engine
        self.owner = None
        if engine is not None:
            engine.notify()

    def settle(self) -> None:
        """All is done."""
        self._settled = True
        engine = self.engine
        self.owner = self._source = None
        engine.notify()

    # ---- how its input is read

    def take_all(self, items: tuple[Any, ...], star: bool = False) -> None:
        """All items are there: submits them."""
        if items:
            self._source = Source(self, items, self._chunksize, star)
            self.engine.submit(self, self._source)
        self.input_ended(-(-len(items) // self._chunksize))

    def begin(self, limit: int, of_results: bool) -> bool | None:
        """Counts one more task, if less than limit are under way; else None. False: the Pool has ended.

        Args:
            limit: how many.
            of_results: what counts is not that a task is done, but that its results were asked for.
        """
        with self._lock:
            self._counts_taken = True
            if self._abort is not None:
                return False
            if not self._has_room(limit, of_results):
                return None
            self._begun += 1
            return True

    def _has_room(self, limit: int, of_results: bool) -> bool:
        if of_results and self.engine.is_open:
            return self._begun - self._taken // self._chunksize < limit
        return self._begun - self._count < limit

    @property
    def next_number(self) -> int:
        """The first task that was not sent yet."""
        return 0 if self._source is None else self._source.sent

    def give(self, task: Task) -> None:
        """A task that may be asked for again."""
        self._given[task.number] = task

    def input_failed(self, number: int, error: BaseException) -> None:
        """Reading the input has raised, in place of that task. It comes last: no result before it is lost."""
        with self._lock:
            if self._count < number and not self.ordered:
                self._failure = number, error
                return
        self.task_done(number, False, error)

    def input_ended(self, tasks: int) -> None:
        """The input made so many tasks and no more."""
        with self._lock:
            self._length = tasks
        self._look_for_end()
        self.engine.notify()


class IMapUnorderedIterator(IMapIterator):
    """What `imap_unordered` returns: an iterator over results as they come."""

    ordered = False
