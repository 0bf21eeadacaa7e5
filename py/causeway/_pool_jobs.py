"""What a caller holds while a Pool works: results, and the tasks that they wait for.

A *job* is one call of the Pool; it is cut into *tasks*, numbered from 0, of which each goes to one worker as one
message. Tasks of a map are cut when there is room to send them, and not before. A job hears of each task at least
once (`task_done`; a second time changes nothing, so that who was interrupted in it may begin again), from whatever
thread collects answers, and of the end of the Pool (`abort`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from causeway._pool_wire import APPLY, MAP, STARMAP
from causeway.errors import Timeout

if TYPE_CHECKING:
    from causeway._pool_engine import Engine
    from causeway._pool_progress import Progress
    from causeway._pool_shared import Shared

__all__ = [
    "AsyncResult", "IMapIterator", "IMapUnorderedIterator", "Job", "MapResult", "Source", "Task", "name_of",
]  # fmt: skip


def name_of(function: Any) -> str:
    """How errors call a function."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return repr(function)
    module = getattr(function, "__module__", None)
    return name if module in (None, "builtins") else f"{module}.{name}"


class Task:
    """What one worker does at one go."""

    __slots__ = ("args", "job", "kind", "number")

    def __init__(self, job: Job, number: int, kind: int, args: Any) -> None:
        self.job = job
        self.number = number
        self.kind = kind
        self.args = args


class Source:
    """The items of a job, to be cut into tasks.

    Attributes:
        number: of the next task.
    """

    __slots__ = ("chunksize", "items", "job", "kind", "number")

    def __init__(self, job: Job, items: tuple[Any, ...], chunksize: int, star: bool) -> None:
        self.job = job
        job.shared = job.engine.shared_by(job, items, chunksize)
        self.items = items
        self.chunksize = chunksize
        self.kind = STARMAP if star else MAP
        self.number = 0

    @property
    def empty(self) -> bool:
        """Whether all tasks were taken."""
        return self.number * self.chunksize >= len(self.items)

    def task(self, number: int) -> Task:
        """One task. Runs no code of the user's."""
        first = number * self.chunksize
        return Task(self.job, number, self.kind, self.items[first : first + self.chunksize])


class Job:
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
        self.found = engine.functions.find(function)
        self.described = self.found.described if self.found is not None else None

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

    def task_done(self, number: int, success: bool, value: Any) -> None:
        """One task has ended; value is its result or the exception."""
        raise NotImplementedError

    def abort(self, error: BaseException) -> None:
        """The Pool has ended: what is not done will never be."""
        raise NotImplementedError

    def settle(self) -> None:
        """Tells who waits; called once the callbacks have run."""
        raise NotImplementedError

    def call_back(self) -> Callable[[], object] | None:
        """The callback that is to run before the job counts as done."""
        return None


class AsyncResult(Job):
    """The result of `apply_async` and, as `MapResult`, of `map_async` and `starmap_async`.

    >>> import causeway as cw
    >>> with cw.Pool(1) as pool:
    ...     pool.apply_async(pow, (2, 5)).get(timeout=60)
    32
    """

    def __init__(
        self,
        engine: Engine,
        owner: Any,
        function: Callable[..., Any],
        callback: Callable[[Any], object] | None,
        error_callback: Callable[[BaseException], object] | None,
        args: Any = None,
    ) -> None:
        super().__init__(engine, owner, function)
        self._callback = callback
        self._error_callback = error_callback
        self._args = args
        self._ending = threading.Lock()  # who has it ends the job
        self._settling = threading.Lock()
        self._success = False
        self._value: Any = None

    def ready(self) -> bool:
        """Whether the call has ended."""
        engine = self.engine
        if not self.settled and engine is not None:
            engine.collect()
        return self.settled

    def successful(self) -> bool:
        """Whether it ended without an exception. ValueError if it has not ended yet."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._success

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the call has ended, or timeout seconds."""
        engine = self.engine
        if not self.settled and engine is not None:
            engine.wait_for(self, timeout)

    def get(self, timeout: float | None = None) -> Any:
        """The result, or what the call raised.

        Args:
            timeout: seconds to wait at most; None for ever.

        Raises:
            Timeout: it has not ended by then.
            WorkerDied: the worker that ran it died.
        """
        self.wait(timeout)
        if not self.settled:
            raise Timeout(
                f"the result of {name_of(self.function)} was not there after {timeout} s; it may still come"
            )
        if self._success:
            return self._value
        raise self._value

    def again(self, number: int) -> Task | None:
        """The call once more."""
        return Task(self, 0, APPLY, self._args)

    def task_done(self, number: int, success: bool, value: Any) -> None:
        """Takes the one task's result."""
        if not self.settled and self._ending.acquire(blocking=False):
            try:
                self._success, self._value = success, value
                self._end()
            except BaseException:
                self._ending.release()
                raise

    def _end(self) -> None:
        self.engine.job_done(self)

    def abort(self, error: BaseException) -> None:
        """Ends it with error, unless it has ended."""
        with self._settling:
            if not self.settled:
                self._success, self._value = False, error
        self.settle()

    def settle(self) -> None:
        """Tells who waits."""
        engine = self.engine
        with self._settling:
            if self.settled:
                return
            self._settled = True
            self.owner = self.engine = None  # type: ignore[assignment]
            self._callback = self._error_callback = self._args = None
        engine.notify()

    def call_back(self) -> Callable[[], object] | None:
        """The callback or error callback with its argument."""
        chosen: Callable[[Any], object] | None = (
            self._callback if self._success else self._error_callback
        )
        if chosen is None:
            return None
        return lambda: chosen(self._value)


class MapResult(AsyncResult):
    """The result of `map_async` and `starmap_async`: a list, in the order of the input.

    With several exceptions it raises the first that came, once all tasks have ended.
    """

    def __init__(
        self,
        engine: Engine,
        owner: Any,
        function: Callable[..., Any],
        items: tuple[Any, ...],
        chunksize: int,
        star: bool,
        callback: Callable[[Any], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> None:
        super().__init__(engine, owner, function, callback, error_callback)
        self.source: Source | None = Source(self, items, chunksize, star)
        self._chunksize = chunksize
        self.length = len(items)
        self._list: list[Any] = [None] * len(items)
        self._left = set(range(-(-len(items) // chunksize))) if items else set()
        self._first_error: BaseException | None = None

    @property
    def items_done(self) -> int:
        """How many items have their result, or their exception."""
        return max(0, self.length - len(self._left) * self._chunksize)

    def get_with(self, progress: Progress | None) -> list[Any]:
        """As get(), telling progress how far it is."""
        if progress is not None:
            with progress:
                while not self.settled:
                    self.wait(progress.seconds)
                    progress.reach(self.items_done)
        found: list[Any] = self.get()
        return found

    def begin(self) -> None:
        """Submits all of it."""
        source = self.source
        if source is not None and self._left:
            self.engine.submit(self, source)
        else:
            super().task_done(0, True, self._list)  # there is nothing to do

    def span(self, number: int) -> tuple[int, int] | None:
        """Which items a task has."""
        first = number * self._chunksize
        return first, min(self._chunksize, self.length - first)

    def again(self, number: int) -> Task | None:
        """A task once more."""
        source = self.source
        return None if source is None else source.task(number)

    def task_done(self, number: int, success: bool, value: Any) -> None:
        """Takes the results of one task."""
        left = self._left
        if number in left:
            if success:
                first = number * self._chunksize
                self._list[first : first + self._chunksize] = value
            elif self._first_error is None:
                self._first_error = value
            left.discard(number)
        if not left:
            error = self._first_error
            super().task_done(0, error is None, self._list if error is None else error)

    def settle(self) -> None:
        """Tells who waits."""
        super().settle()
        self.source = None  # which holds this


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
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)  # where a feeder waits
        self._ready: deque[tuple[bool, Any]] = deque()
        self._early: dict[int, tuple[bool, Any]] = {}
        self._next = 0  # number of the task whose results come next
        self._done: set[int] = set()  # of an unordered one: what has come
        self._count = 0  # tasks done
        self._begun = 0
        self._taken = 0  # items that were asked for
        self._length: int | None = None  # tasks in all, once known
        self._abort: BaseException | None = None
        self._given: dict[int, Task] = {}  # tasks that may be asked for again
        self._ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def next(self, timeout: float | None = None) -> Any:
        """The next result; StopIteration at the end.

        Args:
            timeout: seconds to wait at most; None for ever.

        Raises:
            Timeout: no result by then; it may be asked for again.
        """
        until = None if timeout is None else time.monotonic() + timeout
        late = False
        while True:
            engine = self.engine
            was = engine.news()
            with self._lock:
                if self._ready:
                    success, value = self._ready.popleft()
                    self._taken += 1
                    self._room.notify_all()
                    break
                if self._length == self._next:
                    self.owner = None
                    if self._progress is not None:
                        self._progress.close()
                    raise StopIteration
                if self._abort is not None:
                    raise self._abort
            if late:
                raise Timeout(
                    f"the next result of {name_of(self.function)} was not there after {timeout} s"
                )
            left = None if until is None else max(0.0, until - time.monotonic())
            engine.listen(was, left)
            late = left == 0.0
        if self._progress is not None:
            self._progress.reach(self._taken)
        if success:
            return value
        raise value

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
        with self._lock:
            if (
                number < self._next
                and self.ordered
                or number in self._early
                or number in self._done
            ):
                return
            if self.ordered:
                self._early[number] = (success, value)
            else:
                self._done.add(number)
                self._append(success, value)
                self._next += 1
            self._count += 1
            while self.ordered and self._next in self._early:
                self._append(*self._early.pop(self._next))
                self._next += 1
            self._given.pop(number, None)
            self._room.notify_all()
        self._look_for_end()
        self.engine.notify()

    def _look_for_end(self) -> None:
        with self._lock:
            if self._ended or self._length is None or self._length != self._count:
                return
            self._ended = True
        self.engine.job_done(self)

    def _append(self, success: bool, value: Any) -> None:
        if success:
            self._ready.extend((True, item) for item in value)
        else:
            self._ready.append((success, value))

    def abort(self, error: BaseException) -> None:
        """Raises error where results are missing."""
        with self._lock:
            if self._length is None or self._count < self._length:
                self._abort = error
            self._room.notify_all()
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

    def begin(self, limit: int, of_results: bool) -> bool:
        """Waits until less than limit tasks are under way, then counts one more. False: the Pool has ended.

        Args:
            limit: how many.
            of_results: what counts is not that a task is done, but that its results were asked for.
        """
        with self._lock:
            while self._abort is None and not self._has_room(limit, of_results):
                self._room.wait()
            if self._abort is not None:
                return False
            self._begun += 1
            return True

    def _has_room(self, limit: int, of_results: bool) -> bool:
        if of_results and self.engine.is_open:
            return self._begun - self._taken // self._chunksize < limit
        return self._begun - self._count < limit

    @property
    def next_number(self) -> int:
        """The first task that was not sent yet."""
        return 0 if self._source is None else self._source.number

    def look_again(self) -> None:
        """Something that `begin` looks at has changed."""
        with self._lock:
            self._room.notify_all()

    def give(self, task: Task) -> None:
        """A task that may be asked for again."""
        self._given[task.number] = task

    def input_ended(self, tasks: int) -> None:
        """The input made so many tasks and no more."""
        with self._lock:
            self._length = tasks
        self._look_for_end()
        self.engine.notify()


class IMapUnorderedIterator(IMapIterator):
    """What `imap_unordered` returns: an iterator over results as they come."""

    ordered = False
