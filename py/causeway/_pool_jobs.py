"""What a caller holds while a Pool works: results, and the tasks that they wait for.

A *job* is one call of the Pool; it is cut into *tasks*, of which each goes to one worker as one message. Tasks of
a map are cut when a worker is free to take one, and not before. A job hears of each task once (`task_done`),
from the engine's helper thread or from a thread that submits, and of the end of the Pool (`abort`).
"""

from __future__ import annotations

import _thread
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from causeway._pool_wire import MAP, STARMAP
from causeway.errors import Timeout

if TYPE_CHECKING:
    from causeway._pool_engine import Engine
    from causeway._pool_shared import Shared

__all__ = [
    "AsyncResult",
    "IMapIterator",
    "IMapUnorderedIterator",
    "Job",
    "MapResult",
    "Source",
    "Task",
    "name_of",
]

# A signal that comes after Python has looked for signals and before it sleeps does not end the sleep: so that
# Ctrl-C works in any case, who waits for ever looks up now and then.
_SLICE_SECONDS = 1.0


def name_of(function: Any) -> str:
    """How errors call a function."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return repr(function)
    module = getattr(function, "__module__", None)
    return name if module in (None, "builtins") else f"{module}.{name}"


class Task:
    """What one worker does at one go: items first to first + count of a job."""

    __slots__ = ("args", "call", "count", "first", "job", "number")

    def __init__(self, job: Job, number: int, call: int, args: Any, first: int, count: int) -> None:
        self.job = job
        self.number = number
        self.call = call
        self.args = args
        self.first = first
        self.count = count


class Job:
    """What all kinds of results have in common.

    Attributes:
        owner: the Pool; held until the job is done, so that it is not collected before.
        lead: the function pickled by reference, b"" when it goes along with each task's arguments.
        shared: what its tasks have in common; None: nothing.
    """

    def __init__(self, engine: Engine, owner: Any, function: Callable[..., Any]) -> None:
        self.engine = engine
        self.owner = owner
        self.function = function
        self.lead = engine.pickled_reference(function)
        self.shared: Shared | None = None

    def begins(self, task: Task) -> bool:
        """A worker is free for a task: False if it is not wanted any more. Called without a lock of the engine's."""
        return True

    def task_done(self, task: Task, success: bool, value: Any) -> None:
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
    ) -> None:
        super().__init__(engine, owner, function)
        self._callback = callback
        self._error_callback = error_callback
        self._latch = _thread.allocate_lock()
        self._latch.acquire()
        self._settling = threading.Lock()
        self._settled = False
        self._success = False
        self._value: Any = None

    def ready(self) -> bool:
        """Whether the call has ended."""
        return self._settled

    def successful(self) -> bool:
        """Whether it ended without an exception. ValueError if it has not ended yet."""
        if not self._settled:
            raise ValueError(f"{self!r} not ready")
        return self._success

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the call has ended, or timeout seconds."""
        if self._settled:
            return
        if timeout is None:
            while not self._latch.acquire(timeout=_SLICE_SECONDS):
                pass
        elif not self._latch.acquire(timeout=max(timeout, 0)):
            return
        self._latch.release()

    def get(self, timeout: float | None = None) -> Any:
        """The result, or what the call raised.

        Args:
            timeout: seconds to wait at most; None for ever.

        Raises:
            Timeout: it has not ended by then.
            WorkerDied: the worker that ran it died.
        """
        self.wait(timeout)
        if not self._settled:
            raise Timeout(
                f"the result of {name_of(self.function)} was not there after {timeout} s; it may still come"
            )
        if self._success:
            return self._value
        raise self._value

    def task_done(self, task: Task, success: bool, value: Any) -> None:
        """Takes the one task's result."""
        self._success, self._value = success, value
        self.engine.job_done(self)

    def abort(self, error: BaseException) -> None:
        """Ends it with error, unless it has ended."""
        if not self._settled:
            self._success, self._value = False, error
            self.settle()

    def settle(self) -> None:
        """Tells who waits."""
        with self._settling:
            if self._settled:
                return
            self._settled = True
        self.owner = self.engine = None  # type: ignore[assignment]
        self._callback = self._error_callback = None
        self._latch.release()

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
        length: int,
        chunksize: int,
        callback: Callable[[Any], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> None:
        super().__init__(engine, owner, function, callback, error_callback)
        self._lock = threading.Lock()
        self._list: list[Any] = [None] * length
        self._missing = -(-length // chunksize) if length else 0
        self._first_error: BaseException | None = None

    def finish_empty(self) -> None:
        """There was nothing to do."""
        self._success, self._value = True, self._list
        self.engine.job_done(self)

    def task_done(self, task: Task, success: bool, value: Any) -> None:
        """Takes the results of one task."""
        with self._lock:
            if success:
                self._list[task.first : task.first + task.count] = value
            elif self._first_error is None:
                self._first_error = value
            self._missing -= 1
            if self._missing:
                return
        self._success = self._first_error is None
        self._value = self._list if self._success else self._first_error
        self.engine.job_done(self)


class IMapIterator(Job):
    """What `imap` returns: an iterator in the order of the input, with next(timeout)."""

    ordered = True

    def __init__(self, engine: Engine, owner: Any, function: Callable[..., Any]) -> None:
        super().__init__(engine, owner, function)
        self._changed = threading.Condition(threading.Lock())
        self._ready: deque[tuple[bool, Any]] = deque()
        self._early: dict[int, tuple[bool, Any]] = {}
        self._next = 0  # number of the task whose results come next
        self._done = 0
        self._begun = 0
        self._length: int | None = None  # tasks in all, once known
        self._abort: BaseException | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def next(self, timeout: float | None = None) -> Any:
        """The next result; StopIteration at the end.

        Args:
            timeout: seconds to wait at most; None for ever.

        Raises:
            Timeout: no result by then; it may be asked for again.
        """
        with self._changed:
            if timeout is None:
                while not self._ready and not self._changed.wait_for(
                    self._has_news, _SLICE_SECONDS
                ):
                    pass
            elif not self._ready:
                self._changed.wait_for(self._has_news, timeout)
            if not self._ready:
                if self._length == self._next:
                    self.owner = None
                    raise StopIteration
                if self._abort is not None:
                    raise self._abort
                raise Timeout(
                    f"the next result of {name_of(self.function)} was not there after {timeout} s"
                )
            success, value = self._ready.popleft()
        if success:
            return value
        raise value

    __next__ = next

    def _has_news(self) -> bool:
        return bool(self._ready) or self._length == self._next or self._abort is not None

    def task_done(self, task: Task, success: bool, value: Any) -> None:
        """Takes the results of one task; those of a failed one are one exception."""
        with self._changed:
            self._done += 1
            if not self.ordered:
                self._next += 1
                self._append(success, value)
            else:
                self._early[task.number] = (success, value)
                while self._next in self._early:
                    self._append(*self._early.pop(self._next))
                    self._next += 1
            self._changed.notify_all()
            ended = self._length == self._done
        if ended:
            self.engine.job_done(self)

    def _append(self, success: bool, value: Any) -> None:
        if success:
            self._ready.extend((True, item) for item in value)
        else:
            self._ready.append((success, value))

    def abort(self, error: BaseException) -> None:
        """Raises error where results are missing."""
        with self._changed:
            if self._length is None or self._done < self._length:
                self._abort = error
            self._changed.notify_all()
        self.owner = None

    def settle(self) -> None:
        """All is done."""
        self.owner = self.engine = None  # type: ignore[assignment]

    # ---- how its input is read

    def begin(self, limit: int) -> bool:
        """Waits until fewer than limit tasks are under way, then counts one more. False: the Pool has ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._begun - self._done < limit or self._abort is not None
            )
            if self._abort is not None:
                return False
            self._begun += 1
            return True

    def input_ended(self, tasks: int) -> None:
        """The input made so many tasks and no more."""
        with self._changed:
            self._length = tasks
            self._changed.notify_all()
            ended = self._length == self._done
        if ended:
            self.engine.job_done(self)


class IMapUnorderedIterator(IMapIterator):
    """What `imap_unordered` returns: an iterator over results as they come."""

    ordered = False


class Source:
    """Cuts a job's items into tasks, one when it is asked for one."""

    __slots__ = ("_at", "_call", "_chunksize", "_items", "_numbers", "job")

    def __init__(self, job: Job, items: tuple[Any, ...], chunksize: int, star: bool) -> None:
        self.job = job
        job.shared = job.engine.shared_by(job, items, chunksize)
        self._items = items
        self._chunksize = chunksize
        self._call = STARMAP if star else MAP
        self._at = 0
        self._numbers = itertools.count()

    @property
    def empty(self) -> bool:
        """Whether all tasks were taken."""
        return self._at >= len(self._items)

    def take(self) -> Task:
        """The next task. Runs no code of the user's."""
        first = self._at
        chunk = self._items[first : first + self._chunksize]
        self._at = first + len(chunk)
        return Task(self.job, next(self._numbers), self._call, chunk, first, len(chunk))
