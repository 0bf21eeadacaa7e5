"""`Future`: what `Executor.submit` returns."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent import futures
from typing import TYPE_CHECKING, Any

from cableway._core import locks
from cableway._executor.errors import as_reported, broken
from cableway._pool.jobs import FINISHED, Outcome, Task, Withdrawable
from cableway._transport import message as wire

if TYPE_CHECKING:
    from cableway._pool.engine import Engine
    from cableway.executor import Executor

__all__ = ["Future"]

_PENDING, _CANCELLED = "PENDING", "CANCELLED"  # states of a Future; also FINISHED
_LOGGER = logging.getLogger("concurrent.futures")

_guard = locks.RLock()  # a finaliser may come to take it on a thread that has it


def _renew_guard() -> None:
    global _guard
    _guard = locks.RLock()


os.register_at_fork(after_in_child=_renew_guard)  # another thread of the parent may have had it


def _nothing() -> None:
    pass


class _MadeWhenAsked:
    """An attribute: a list of its own for each object, made when somebody asks for it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else instance.__dict__.setdefault(self._name, [])


class Future(futures.Future[Any], Outcome, Withdrawable):
    """One call of `submit`: the future and the engine's job in one.

    Its condition is made when somebody asks for it, since most futures never need one, and who sets the result looks
    for it and sets it at one go (`finish`, and the dispatch where it is begun the quick way). It runs, and can no longer be cancelled, when a worker has taken it. Done-callbacks
    run in the engine's thread for them where the engine sets the result.
    """

    # What the dispatch does not set where it makes one (Engine.begin).
    _waiters: Any = _MadeWhenAsked()
    _done_callbacks: Any = _MadeWhenAsked()
    _by_engine = False

    def __init__(
        self, engine: Engine, owner: Executor, function: Callable[..., Any], call: Any
    ) -> None:
        self._call = call
        Withdrawable.__init__(self, engine, owner, function)

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        made: threading.Condition | None = self._made
        if made is None:
            new = threading.Condition(locks.RLock())
            with _guard:
                made = self._made
                if made is None:
                    made = self._made = new
        return made

    # ---- the future

    result = Outcome._given  # of one that has ended well in C; else _get

    def _get(self, timeout: float | None = None) -> Any:
        """What the call returned, or raises what it raised; see `concurrent.futures.Future`."""
        if self._state != FINISHED:
            self._wait(timeout)
        try:
            if self._state == FINISHED and self._exception is None:
                return self._result
            return super().result(0)
        finally:
            self = None  # type: ignore[assignment]  # else the exception's traceback would hold it

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raised, or None; see `concurrent.futures.Future`."""
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        engine = self.engine
        if self._state == _PENDING and engine is not None:
            engine.wait_for(self, timeout)

    def running(self) -> bool:
        """Whether a worker has taken it."""
        engine = self.engine
        return (
            self._state == _PENDING
            and engine is not None
            and engine.dispatch.is_taken(self._cell, self)
        )

    def done(self) -> bool:
        """Whether it has ended."""
        if self._state == FINISHED:
            return True
        engine = self.engine
        if self._state == _PENDING and engine is not None:
            engine.collect()
        return super().done()

    def cancel(self) -> bool:
        """Takes it back, unless a worker has it."""
        engine = self.engine
        if self._state == _PENDING and engine is not None:
            engine.withdraw(self, self._cell)
        return self.cancelled()

    def was_cancelled(self, number: int | None) -> None:
        """It was taken back: it counts as cancelled."""
        with self._condition:
            if self._state == _PENDING:
                self._state = _CANCELLED
        self._undisturbed(self._tell_cancelled)

    def _tell_cancelled(self) -> None:
        self._by_engine = True
        if self._state == _CANCELLED:
            self.set_running_or_notify_cancel()
        self._invoke_callbacks()
        engine = self.engine
        if engine is not None:
            engine.job_done(self)

    def set_result(self, result: Any) -> None:
        """See `concurrent.futures.Future`."""
        if not self.finish(result, None):
            super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """See `concurrent.futures.Future`."""
        if not self.finish(None, exception):
            super().set_exception(exception)

    def _invoke_callbacks(self) -> None:
        engine = self.engine
        if engine is not None and self._by_engine and self._done_callbacks:
            engine.callbacks.run(self._run_callbacks, _nothing)
        else:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        """Each once."""
        while self._done_callbacks:
            callback = self._done_callbacks.pop(0)
            try:
                callback(self)
            except Exception:
                _LOGGER.exception("exception calling callback for %r", self)

    # ---- the job

    def again(self, number: int) -> Task | None:
        """The call once more."""
        return Task(self, 0, wire.APPLY, self._call)

    def task_done(self, number: int, success: bool, value: Any) -> None:
        """Sets the future."""
        if self._made is None:
            self._end(success, value)
        else:
            self._undisturbed(lambda: self._end(success, value))

    def _undisturbed(self, tell: Callable[[], object]) -> None:
        """By the supervisor, if this is the main thread: a Ctrl-C in the middle would leave some who wait untold."""
        engine = self.engine
        if engine is not None and threading.current_thread() is threading.main_thread():
            engine.defer(tell)
        else:
            tell()

    def _end(self, success: bool, value: Any) -> None:
        self._by_engine = True
        try:
            if success:
                self.set_result(value)
            else:
                self.set_exception(as_reported(value))
        except futures.InvalidStateError:
            pass  # it was set, or the executor ended at this moment and said so
        engine = self.engine
        if engine is not None:
            engine.job_done(self)

    def abort(self, error: BaseException) -> None:
        """The executor has ended; the future tells why, unless it was cancelled."""
        try:
            self.set_exception(broken(error))
        except futures.InvalidStateError:
            pass
        self.settle()

    def settle(self) -> None:
        """Lets go of the executor."""
        engine = self.engine
        if engine is not None:
            self.owner = self.engine = self._call = None
            engine.notify()
