"""What `apply_async`, `map_async` and `starmap_async` return."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from cableway._core import locks
from cableway._pool import interpreter_exit
from cableway._pool.jobs import FINISHED, Job, Outcome, Source, Task, name_of
from cableway._transport.message import APPLY
from cableway.errors import Timeout

if TYPE_CHECKING:
    from cableway._pool.engine import Engine
    from cableway._pool.progress import Progress

__all__ = ["AsyncResult", "MapResult"]

# Decides who ends a result. One for all: it is held for some assignments. A finaliser may come to take it on a thread
# that has it.
_settling = locks.RLock()


def _renew_settling() -> None:
    global _settling
    _settling = locks.RLock()


os.register_at_fork(after_in_child=_renew_settling)  # another thread of the parent may have had it


class AsyncResult(Outcome, Job):
    """The result of `apply_async` and, as `MapResult`, of `map_async` and `starmap_async`.

    >>> import cableway as cw
    >>> with cw.Pool(1) as pool:
    ...     pool.apply_async(pow, (2, 5)).get(timeout=60)
    32
    """

    # What the dispatch does not set where it makes one (Engine.begin).
    _callback: Callable[[Any], object] | None = None
    _error_callback: Callable[[BaseException], object] | None = None
    _called_back = False

    def __init__(
        self,
        engine: Engine,
        owner: Any,
        function: Callable[..., Any],
        callback: Callable[[Any], object] | None,
        error_callback: Callable[[BaseException], object] | None,
        args: Any = None,
    ) -> None:
        Job.__init__(self, engine, owner, function)
        if callback is not None or error_callback is not None:
            self._callback = callback
            self._error_callback = error_callback
        self._call = args

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

    get = Outcome._given  # of one that has ended well in C; else _get

    def _get(self, timeout: float | None = None) -> Any:
        """The result, or what the call raised.

        Args:
            timeout: seconds to wait at most; None for ever.

        Raises:
            Timeout: it has not ended by then.
            WorkerDied: the worker that ran it died.
        """
        function = self.function  # it lets go of it when it ends
        if not self.settled:
            self.wait(timeout)
            if not self.settled:
                raise Timeout(
                    f"the result of {name_of(function)} was not there after {timeout} s; it may still come"
                )
        if self._success:
            return self._result
        interpreter_exit.hold(self._result)
        try:
            raise self._result
        finally:
            self = None  # type: ignore[assignment]  # else the exception's traceback would hold it

    def again(self, number: int) -> Task | None:
        """The call once more."""
        return Task(self, 0, APPLY, self._call)

    def task_done(self, number: int, success: bool, value: Any) -> None:
        """Takes the one task's result."""
        with _settling:
            if not self._ended:
                self._success, self._result, self._ended = success, value, True
        engine = self.engine
        if engine is not None:
            engine.job_done(self)

    def abort(self, error: BaseException) -> None:
        """Ends it with error, unless it has ended."""
        with _settling:
            ended = self._ended
            if not ended:
                self._success, self._result, self._ended = False, error, True
        engine = self.engine
        if not ended and not engine.failed:
            self.settle()  # terminated: as in the standard library, nobody is called back
        elif engine is not None:
            engine.job_done(self)  # who was at it may have been interrupted

    def settle(self) -> None:
        """Tells who waits."""
        engine = self.engine
        with _settling:
            if self.settled:
                return
            self._state = FINISHED
            self.owner = self.engine = self._call = None
            if self._callback is not None or self._error_callback is not None:
                self._callback = self._error_callback = None
        engine.notify()

    @property
    def calls_back(self) -> bool:
        """Whether there is a callback for what has become of it."""
        return (self._callback if self._success else self._error_callback) is not None

    def call_back(self) -> None:
        """Runs the callback or error callback."""
        chosen: Callable[[Any], object] | None = (
            self._callback if self._success else self._error_callback
        )
        if chosen is not None and not self._called_back:
            self._called_back = True
            chosen(self._result)


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
    def _number_left(self) -> int:
        """As the standard library's, which programs read to show how far a map is: tasks that have not ended."""
        if not self.settled and self.engine is not None:
            self.engine.collect()
        return len(self._left)

    @property
    def items_done(self) -> int:
        """How many items have their result, or their exception."""
        return max(0, self.length - len(self._left) * self._chunksize)

    def get_with(self, progress: Progress | None) -> list[Any]:
        """As get(), telling progress how far it is."""
        if progress is not None:
            with closing(progress):
                while not self.settled:
                    self.wait(progress.seconds)
                    progress.reach(self.items_done)
                progress.reach(self.items_done)  # others may have ended it before we looked
        try:
            return self.get()  # type: ignore[no-any-return]
        finally:
            self = None  # type: ignore[assignment]  # else an exception's traceback would hold it

    def begin(self) -> None:
        """Submits all of it."""
        source = self.source
        if source is not None and self._left:
            self.engine.submit(self, source)
        else:
            with _settling:
                self._success, self._result, self._ended = True, self._list, True
            self.settle()  # there is nothing to do, and as in the standard library no callback

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
