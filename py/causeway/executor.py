"""`Executor`: worker processes behind the interface of `concurrent.futures.Executor`.

It is another face of the engine below `Pool`: tasks, large arrays and deaths are as there. A *job* here is one
`submit` with its future, or one `map`. A future begins (and can no longer be cancelled) when a worker is free for
it. Results are set by the engine's helper thread; done-callbacks run in the engine's thread for callbacks, so that a
slow one holds up no result.

>>> import causeway as cw
>>> with cw.Executor(2) as executor:
...     executor.submit(pow, 2, 5).result()
32
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from causeway import _pool_wire as wire
from causeway._pool_cpus import usable_cpus
from causeway._pool_engine import RUN, Engine
from causeway._pool_jobs import IMapIterator, Job, Source, Task
from causeway.errors import Error, Timeout, WorkerDied

__all__ = ["Executor", "ExecutorBroken", "ExecutorTimeout", "ExecutorWorkerDied"]

_T = TypeVar("_T")


class ExecutorWorkerDied(WorkerDied, BrokenProcessPool):
    """The worker that ran this task died. The executor and its other tasks go on.

    It is a `BrokenProcessPool` too, so that code written for `ProcessPoolExecutor` still catches it.
    """


class ExecutorBroken(Error, BrokenProcessPool):
    """The executor does nothing any more: its initializer raised, or its workers cannot start; see `__cause__`."""


class ExecutorTimeout(Timeout, futures.TimeoutError):
    """The time given to `map` ran out."""


def _nothing() -> None:
    pass


class _Future(futures.Future[Any]):
    """A future whose callbacks run in the engine's thread for them where the engine sets the result."""

    _engine: Engine | None = None

    def _invoke_callbacks(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None and self._done_callbacks:  # type: ignore[attr-defined]
            engine.callbacks.run(super()._invoke_callbacks, _nothing)  # type: ignore[misc]
        else:
            super()._invoke_callbacks()  # type: ignore[misc]


def _as_told(error: BaseException) -> BaseException:
    """A worker's death as the executor's users expect it; all else as it is."""
    if type(error) is not WorkerDied:
        return error
    return ExecutorWorkerDied(
        str(error),
        pid=error.pid,
        exitcode=error.exitcode,
        function=error.function,
        index=error.index,
    )


def _broken(cause: BaseException) -> ExecutorBroken:
    found = ExecutorBroken(
        f"the executor does nothing any more: {type(cause).__name__}: {cause}; make a new one"
    )
    found.__cause__ = cause
    return found


class _Submitted(Job):
    """One call of `submit`."""

    _beginning = threading.Lock()

    def __init__(self, engine: Engine, owner: Executor, function: Callable[..., Any]) -> None:
        super().__init__(engine, owner, function)
        self.future = _Future()
        self._begun: bool | None = None  # False: it was cancelled, and those who wait know

    def begins(self, task: Task) -> bool:
        """Whether the future was not cancelled; from now on it cannot be."""
        if self._begin():
            return True
        self._forget()
        return False

    def _begin(self) -> bool:
        with self._beginning:
            if self._begun is None:
                self._begun = self.future.set_running_or_notify_cancel()
            return self._begun

    def _forget(self) -> None:
        engine = self.engine
        if engine is not None:
            engine.job_done(self)

    def task_done(self, task: Task, success: bool, value: Any) -> None:
        """Sets the future."""
        future, future._engine = self.future, self.engine
        self._forget()
        try:
            if success:
                future.set_result(value)
            else:
                future.set_exception(_as_told(value))
        except futures.InvalidStateError:  # the executor ended at this moment, and said so
            pass

    def abort(self, error: BaseException) -> None:
        """The executor has ended; the future tells why, unless it was cancelled."""
        try:
            if self._begin():
                self.future.set_exception(_broken(error))
        except futures.InvalidStateError:
            pass
        self.settle()

    def cancel(self) -> None:
        """It was withdrawn: nobody will run it."""
        if self.future.cancel():
            self._begin()
            self._forget()
        else:
            self.abort(Error("it was shut down before this call had begun"))

    def settle(self) -> None:
        """Lets go of the executor."""
        self.owner = self.engine = None  # type: ignore[assignment]


class _Mapped(IMapIterator):
    """One call of `map`."""

    def task_done(self, task: Task, success: bool, value: Any) -> None:
        """Takes the results of one task."""
        super().task_done(task, success, value if success else _as_told(value))

    def abort(self, error: BaseException) -> None:
        """The executor has ended."""
        super().abort(_broken(error))

    def cancel(self, source: Source) -> None:
        """The rest of it was withdrawn: where that begins, the iterator raises CancelledError."""
        task = source.take()
        self.input_ended(task.number + 1)
        self.task_done(task, False, futures.CancelledError())

    def _append(self, success: bool, value: Any) -> None:
        super()._append(success, value)
        if success:
            value.clear()  # the caller alone holds the results from now on

    def results(self, until: float | None) -> Iterator[Any]:
        """Results in order; when they are not asked for any more, what was not begun is not begun."""
        engine = self.engine
        try:
            while True:
                left = None if until is None else max(0.0, until - time.monotonic())
                try:
                    found = [self.next(left)]
                except StopIteration:
                    return
                except Timeout as error:
                    raise ExecutorTimeout(str(error)) from None
                yield found.pop()
        finally:
            if engine is not None and self.engine is not None:
                engine.withdraw(self)
                self.owner = None


def _call_each(function: Callable[..., Any], chunk: tuple[tuple[Any, ...], ...]) -> list[Any]:
    return [function(*args) for args in chunk]


class Executor(futures.Executor):
    """A `concurrent.futures.Executor` of processes, to be used as `ProcessPoolExecutor`.

    What differs: a worker that dies fails its own task, with `ExecutorWorkerDied` (a `WorkerDied` and a
    `BrokenProcessPool`), and is replaced; the others go on. `sys.exit` in a task is such a death. A result that
    cannot be pickled raises `MaybeEncodingError`. Arrays travel as those of a `Pool` do, and what standard pickle
    refuses in a task goes by cloudpickle. max_tasks_per_child works with fork too.

    Workers start, all of them, with the first task. Done-callbacks run in a thread of their own. At the
    interpreter's exit it waits for what was submitted.

    Args:
        max_workers: how many processes; None for the CPUs that affinity and cgroup leave to this process.
        mp_context: a multiprocessing context, or the name of a start method; None for multiprocessing's choice.
        initializer: called as initializer(*initargs) in each worker. If it raises, every future of the executor
            raises `ExecutorBroken`, whose cause is the exception.
        initargs: its arguments.
        max_tasks_per_child: a worker is replaced after so many tasks.

    Raises:
        ValueError: max_workers or max_tasks_per_child below 1.
        TypeError: initializer cannot be called; max_tasks_per_child is no integer.

    >>> import causeway as cw
    >>> with cw.Executor(2) as executor:
    ...     list(executor.map(pow, [2, 3], [3, 2]))
    [8, 9]
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: Any = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        max_tasks_per_child: int | None = None,
    ) -> None:
        if max_workers is None:
            max_workers = usable_cpus()
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if max_tasks_per_child is not None:
            if not isinstance(max_tasks_per_child, int):
                raise TypeError("max_tasks_per_child must be an integer")
            if max_tasks_per_child <= 0:
                raise ValueError("max_tasks_per_child must be >= 1")
        if mp_context is None or isinstance(mp_context, str):
            mp_context = multiprocessing.get_context(mp_context)
        self._max_workers = max_workers
        self._settings = (initializer, tuple(initargs), max_tasks_per_child, mp_context)
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._is_shut_down = False

    def _running(self) -> Engine:
        """The engine, started if need be."""
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if _exiting:
                raise RuntimeError("cannot schedule new futures after interpreter shutdown")
            engine = self._engine
            if engine is None:
                engine = self._engine = Engine(self._max_workers, *self._settings, daemon=False)
                _engines.add(engine)
        if engine.pid != os.getpid():
            raise RuntimeError(
                f"this executor belongs to the process {engine.pid}; make one in this process ({os.getpid()})"
            )
        if engine.error is not None:
            raise _broken(engine.error)
        return engine

    def is_usable(self) -> bool:
        """Whether `submit` would take a task in this process.

        >>> import causeway as cw
        >>> executor = cw.Executor(1)
        >>> executor.shutdown()
        >>> executor.is_usable()
        False
        """
        engine = self._engine
        if self._is_shut_down or _exiting:
            return False
        return engine is None or (engine.pid == os.getpid() and engine.error is None)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """fn(*args, **kwargs) in a worker.

        Returns:
            Future: its result; it can be cancelled until a worker is free for it.

        Raises:
            RuntimeError: after `shutdown`.
            ExecutorBroken: the initializer has raised, or workers cannot start.

        >>> import causeway as cw
        >>> with cw.Executor(1) as executor:
        ...     executor.submit(sorted, [3, 1, 2], reverse=True).result(timeout=60)
        [3, 2, 1]
        """
        engine = self._running()
        job = _Submitted(engine, self, fn)
        engine.submit(job, Task(job, 0, wire.APPLY, (args, kwargs), 0, 1))
        return job.future

    def map(
        self,
        fn: Callable[..., _T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[_T]:
        """Like the built-in map, on all workers; results come in order.

        Args:
            fn: called with one item of each iterable.
            iterables: read at once and as a whole, unless buffersize is given.
            timeout: seconds from now until the last result is asked for; None for ever.
            chunksize: calls that a worker takes at one go. One that raises takes the results of its chunk with it.
            buffersize: tasks (of chunksize calls) whose results were not asked for yet; the iterables are read only so
                far ahead.

        Raises:
            ExecutorTimeout: when a result is asked for and timeout is over.
            ValueError: chunksize or buffersize below 1.

        >>> import causeway as cw, itertools
        >>> with cw.Executor(2) as executor:
        ...     results = executor.map(abs, itertools.count(-2), buffersize=4)
        ...     [next(results) for _ in range(3)]
        [2, 1, 0]
        """
        until = None if timeout is None else time.monotonic() + timeout
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None:
            if not isinstance(buffersize, int):
                raise TypeError("buffersize must be an integer or None")
            if buffersize < 1:
                raise ValueError("buffersize must be None or > 0")
            return self._map_ahead(fn, zip(*iterables, strict=False), until, chunksize, buffersize)
        engine = self._running()
        items = tuple(zip(*iterables, strict=False))
        job = _Mapped(engine, self, fn)
        if items:
            engine.submit(job, Source(job, items, chunksize, star=True))
        job.input_ended(-(-len(items) // chunksize))
        return job.results(until)

    def _map_ahead(
        self,
        fn: Callable[..., _T],
        calls: Iterator[tuple[Any, ...]],
        until: float | None,
        chunksize: int,
        buffersize: int,
    ) -> Iterator[_T]:
        def chunks() -> Iterator[tuple[tuple[Any, ...], ...]]:
            while chunk := tuple(islice(calls, chunksize)):
                yield chunk

        ahead = chunks()
        work = partial(_call_each, fn)
        begun = deque(self.submit(work, chunk) for chunk in islice(ahead, buffersize))
        return self._results_ahead(work, ahead, begun, until)

    def _results_ahead(
        self,
        work: Callable[..., Any],
        ahead: Iterator[Any],
        begun: deque[futures.Future[Any]],
        until: float | None,
    ) -> Iterator[Any]:
        try:
            while begun:
                try:
                    left = None if until is None else until - time.monotonic()
                    found = begun[0].result(left)
                except futures.TimeoutError as error:
                    if not begun[0].done():
                        raise ExecutorTimeout("a result of map was not there in time") from None
                    raise error
                begun.popleft()
                begun.extend(self.submit(work, chunk) for chunk in islice(ahead, 1))
                found.reverse()
                while found:
                    yield found.pop()
        finally:
            for future in begun:
                future.cancel()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more work; the workers end when what was submitted is done. May be repeated.

        Args:
            wait: return only when they have ended.
            cancel_futures: what no worker has begun is cancelled.
        """
        with self._lock:
            self._is_shut_down = True
            engine = self._engine
        if engine is None or engine.pid != os.getpid():
            return
        if cancel_futures:
            for work in engine.withdraw():
                job = work.job
                if isinstance(job, _Mapped) and isinstance(work, Source):
                    job.cancel(work)
                elif isinstance(job, _Submitted):
                    job.cancel()
        engine.close()
        if wait:
            engine.join()

    def terminate_workers(self) -> None:
        """Ends the workers at once, with SIGTERM. Futures not done raise a `BrokenProcessPool`."""
        self._end_workers(kill=False)

    def kill_workers(self) -> None:
        """Ends the workers at once, with SIGKILL. Futures not done raise a `BrokenProcessPool`."""
        self._end_workers(kill=True)

    def _end_workers(self, kill: bool) -> None:
        with self._lock:
            self._is_shut_down = True
            engine = self._engine
        if engine is not None and engine.pid == os.getpid():
            if kill:
                engine.kill()
            engine.terminate()

    def __del__(self, getpid: Any = os.getpid) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and engine.pid == getpid() and engine.state == RUN:
            engine.abandoned = True  # what is under way holds the executor: nothing is left to do
            engine.wake()

    def __reduce__(self) -> Any:
        raise NotImplementedError("executors cannot be passed between processes or pickled")

    def __repr__(self) -> str:
        state = "shut down" if self._is_shut_down else "running" if self._engine else "not begun"
        return f"<causeway.Executor max_workers={self._max_workers} {state}>"


# ---- the interpreter's exit

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_exiting = False


def _finish() -> None:
    """Waits for what was submitted, as `concurrent.futures` does."""
    global _exiting
    _exiting = True
    mine = [engine for engine in list(_engines) if engine.pid == os.getpid()]
    for engine in mine:
        engine.close()
    for engine in mine:
        engine.join()


# Before the interpreter's own threads are waited for, and also in children of multiprocessing; else at exit.
getattr(threading, "_register_atexit", atexit.register)(_finish)
