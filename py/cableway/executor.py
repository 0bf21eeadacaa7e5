"""`Executor`: worker processes behind the interface of `concurrent.futures.Executor`.

It uses the same engine as `Pool`: tasks, large arrays and the death of a worker are handled as there. In this file a *job* is
one `submit` (the job is its future) or one `map`. A future begins, and can no longer be cancelled, when a worker takes it. A
thread that waits for a result collects it by itself. Done-callbacks run in the engine's thread for callbacks, so that a slow
callback delays no result.

>>> import cableway as cw
>>> with cw.Executor(2) as executor:
...     executor.submit(pow, 2, 5).result()
32
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures.process import _WorkItem
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from cableway._core import locks
from cableway._core.cpus import usable_cpus
from cableway._executor.errors import (
    ExecutorBroken,
    ExecutorTimeout,
    ExecutorWorkerDied,
    broken,
)
from cableway._executor.future import Future
from cableway._executor.map import Mapped
from cableway._pool import stats as pool_stats
from cableway._pool.devices import devices as pool_devices
from cableway._pool.engine import Engine
from cableway._pool.jobs import Task
from cableway._pool.options import Options, chunk_size
from cableway._pool.starts import Starts
from cableway._transport import message as wire

__all__ = ["Executor", "ExecutorBroken", "ExecutorTimeout", "ExecutorWorkerDied"]

_T = TypeVar("_T")


def _call_each(function: Callable[..., Any], chunk: tuple[tuple[Any, ...], ...]) -> list[Any]:
    return [function(*args) for args in chunk]


def _shut_down() -> RuntimeError:
    return RuntimeError("cannot schedule new futures after shutdown")


class Executor(futures.Executor):
    """A `concurrent.futures.Executor` of processes, to be used as `ProcessPoolExecutor`.

    What differs: if a worker dies, only its own task fails, with `ExecutorWorkerDied` (a `WorkerDied` and a
    `BrokenProcessPool`); the worker is replaced, and the others go on. `sys.exit` in a task ends its worker, too. A result that
    cannot be pickled raises `MaybeEncodingError`. Arrays travel as those of a `Pool` do, and lambdas and local functions
    can be sent. max_tasks_per_child also works with fork.

    All workers start with the first task. Done-callbacks run in a thread of their own. When the interpreter exits, it waits
    until all submitted tasks are done.

    Args:
        max_workers: how many processes; None for as many as there are CPUs that this process may use (by affinity and cgroup).
        mp_context: a multiprocessing context, or the name of a start method; None for multiprocessing's choice.
        initializer: called as ``initializer(*initargs)`` in each worker. If it raises, every future of the executor
            raises `ExecutorBroken`, whose cause is the exception.
        initargs: its arguments.
        max_tasks_per_child: a worker is replaced after this many tasks.
        retries: how many times a task is run again if its worker dies. After an exception it is never run again.
        task_timeout: seconds that a task may run; then its worker is killed and replaced, and the task raises
            `TaskTimeout`.
        capture_stderr: this process reads the workers' stderr and passes it on, and `WorkerDied` shows the end of it.
        devices: workers on GPUs; this, peer, sms and borrow are as for `Pool`.
        peer: tasks get arrays that lie on other GPUs as views.
        sms: multiprocessors for each worker.
        borrow: whether tasks share GPU memory that PyTorch or CuPy has allocated, or get a copy.

    Raises:
        ValueError: max_workers or max_tasks_per_child is below 1, retries below 0, or task_timeout not above 0.
        TypeError: initializer cannot be called; max_tasks_per_child is no integer.

    >>> import cableway as cw
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
        retries: int = 0,
        task_timeout: float | None = None,
        capture_stderr: bool = False,
        devices: Any = None,
        peer: bool = False,
        sms: int | None = None,
        borrow: bool | None = None,
    ) -> None:
        mp_context, self._devices = pool_devices.start(
            mp_context, devices, max_workers, peer=peer, sms=sms, borrow=borrow
        )
        if self._devices is not None:
            max_workers = self._devices.count
        elif max_workers is None:
            max_workers = usable_cpus()
        if max_workers <= 0:
            # The whole text of the standard library, which loky's tests compare.
            raise ValueError("max_workers must be greater than 0")
        if max_tasks_per_child is not None:
            if not isinstance(max_tasks_per_child, int):
                raise TypeError(
                    f"max_tasks_per_child must be an integer, not {max_tasks_per_child!r}"
                )
            if max_tasks_per_child <= 0:
                raise ValueError(f"max_tasks_per_child must be >= 1, not {max_tasks_per_child!r}")
        self._options = Options(
            initializer, initargs, max_tasks_per_child, retries, task_timeout, capture_stderr
        )
        self._max_workers = max_workers
        self._mp_context = mp_context
        self._lock = locks.RLock(known=False)  # a handler or a finaliser may come where it is held
        self._engine: Engine | None = None
        self._starter: int | None = None  # the process that has begun to start it
        self._is_shut_down = False
        _executors.add(self)

    def _running(self) -> Engine:
        """The engine; starts it if it does not run yet. The caller is inside `with _starts`."""
        nested = self._lock._is_owned()
        with self._lock:
            if self._is_shut_down:
                raise _shut_down()
            engine, pid = self._engine, os.getpid()
            if engine is None and nested:
                raise RuntimeError(
                    "this thread is starting the executor's workers already, which a signal's handler or a finaliser has "
                    "interrupted: submit elsewhere"
                )
            if engine is None and self._starter in (None, pid):
                return self._start(pid)
        if (
            self._starter != pid
        ):  # a worker that was forked in the middle of the start has no engine
            raise RuntimeError(
                f"this executor belongs to the process {self._starter}; make one in this process ({pid})"
            )
        assert engine is not None
        if engine.error is not None:
            raise broken(engine.error)
        return engine

    def _start(self, pid: int) -> Engine:
        self._starter = pid  # before there are workers
        try:
            Engine.begin_for(
                self,
                self._max_workers,
                self._mp_context,
                self._options,
                daemon=False,
                devices=self._devices,
                not_running=_shut_down,
            )
            engine = self._engine
            assert engine is not None
            _engines.add(engine)  # where the exit finds it
        finally:
            if self._engine is None:
                self._starter = None
        if self._is_shut_down:  # by a signal's handler, which found nothing to end yet
            engine.close()
            raise _shut_down()
        return engine  # if its workers fail at once, the first future tells

    def is_usable(self) -> bool:
        """Whether `submit` would accept a task in this process.

        >>> import cableway as cw
        >>> executor = cw.Executor(1)
        >>> executor.shutdown()
        >>> executor.is_usable()
        False
        """
        engine = self._engine
        if self._is_shut_down or _starts.closed or self._starter not in (None, os.getpid()):
            return False
        return engine is None or engine.error is None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """Calls ``fn(*args, **kwargs)`` in a worker, and returns at once.

        Returns:
            Future: of the result. It can be cancelled until a worker takes the task.

        Raises:
            RuntimeError: after `shutdown`.
            ExecutorBroken: the initializer has raised, or workers cannot start.

        >>> import cableway as cw
        >>> with cw.Executor(1) as executor:
        ...     executor.submit(sorted, [3, 1, 2], reverse=True).result(timeout=60)
        [3, 2, 1]
        """
        running = self._engine
        if running is not None:
            begun: Future | None = running.begin(Future, running, self, fn, args, kwargs)
            if begun is not None:
                return begun
        with _starts:  # until it is submitted: the exit waits for it, or it is refused
            engine = self._running()
            call = (args, kwargs) if kwargs else (args,)
            future = Future(engine, self, fn, call)
            future._cell = engine.submit(future, Task(future, 0, wire.APPLY, call))
        return future

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
            iterables: read to their end at once, unless buffersize is given.
            timeout: seconds from now within which all results must be ready; None: no limit.
            chunksize: calls that a worker takes at a time. If one of them raises, the results of its whole chunk are lost.
            buffersize: how many tasks (of chunksize calls) may be under way or done whose results you have not taken yet; the
                iterables are read no further ahead.

        Raises:
            ExecutorTimeout: you take a result that is not ready, and timeout is over.
            ValueError: chunksize or buffersize is below 1.

        >>> import cableway as cw, itertools
        >>> with cw.Executor(2) as executor:
        ...     results = executor.map(abs, itertools.count(-2), buffersize=4)
        ...     [next(results) for _ in range(3)]
        [2, 1, 0]
        """
        until = None if timeout is None else time.monotonic() + timeout
        chunksize = chunk_size(chunksize, "chunksize must be >= 1.")
        if buffersize is not None:
            if not isinstance(buffersize, int):
                raise TypeError(f"buffersize must be an integer or None, not {buffersize!r}")
            if buffersize < 1:
                raise ValueError(f"buffersize must be None or > 0, not {buffersize!r}")
            return self._map_ahead(fn, zip(*iterables, strict=False), until, chunksize, buffersize)
        if not self.is_usable():
            with _starts:
                self._running()  # says why
        items = tuple(zip(*iterables, strict=False))
        with _starts:  # as in submit()
            job = Mapped(self._running(), self, fn, chunksize)
            job.take_all(items, star=True)
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
                        raise ExecutorTimeout(
                            "the next result of map was not ready in time"
                        ) from None
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
        """Takes no more work. The workers end when all submitted tasks are done. May be repeated.

        Args:
            wait: return only when they have ended. RuntimeError in the handler of a signal that has interrupted a step of the
                executor in this thread, without which it does not end.
            cancel_futures: what no worker has begun is cancelled.
        """
        with self._lock:
            self._is_shut_down = True
            engine = self._engine
        if engine is None or engine.pid != os.getpid():
            return
        if cancel_futures:
            engine.withdraw()
        engine.close()
        if wait:
            engine.join()

    def resize(self, max_workers: int) -> None:
        """Changes the number of workers while they work. Surplus workers leave after their task.

        Raises:
            ValueError: below 1, or more than there is room for (32, or as many as it was made with).

        >>> import cableway as cw
        >>> with cw.Executor(1) as executor:
        ...     executor.resize(2)
        ...     executor.submit(abs, -1).result()
        1
        """
        with _starts:
            engine = self._running()
        engine.resize(max_workers)
        self._max_workers = max_workers

    def stats(self) -> dict[str, Any]:
        """What was done so far; as `Pool.stats`."""
        return pool_stats.summary(self._engine.figures() if self._engine else [], self._devices)

    def print_stats(self) -> None:
        """Prints `stats` as a table."""
        print(pool_stats.table(self._engine.figures() if self._engine else []))

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
        if engine is not None and engine.pid == getpid():
            engine.drop()  # what is under way holds the executor: nothing is left to do

    # ---- what programs read of ProcessPoolExecutor beside its interface (and _max_workers, _mp_context)

    @property
    def _processes(self) -> dict[int, Any]:
        """The workers' processes, by pid."""
        engine = self._engine
        return {} if engine is None else {process.pid: process for process in engine.workers()}

    @property
    def _broken(self) -> str | bool:
        """Why it does nothing any more; False as long as it does."""
        engine = self._engine
        return False if engine is None or engine.error is None else str(broken(engine.error))

    @property
    def _executor_manager_thread(self) -> threading.Thread | None:
        """The thread that ends when all is done: joined to see that nothing is left."""
        return None if self._engine is None else self._engine.supervisor_thread

    @property
    def _shutdown_thread(self) -> bool:
        return self._is_shut_down

    @property
    def _pending_work_items(self) -> dict[int, Any]:
        """What was submitted and is not done, by numbers. What `map` has begun is not among it."""
        engine = self._engine
        if engine is None or engine.pid != os.getpid():
            return {}
        engine.collect()
        jobs = [job for job in engine.unfinished() if isinstance(job, Future)]
        found = [(job, job.function, job._call) for job in jobs]
        return {
            number: _WorkItem(job, function, call[0], call[1] if len(call) > 1 else {})
            for number, (job, function, call) in enumerate(found)
            if call is not None  # it has ended meanwhile
        }

    def __reduce__(self) -> Any:
        raise NotImplementedError("executors cannot be passed between processes or pickled")

    def __repr__(self) -> str:
        state = "shut down" if self._is_shut_down else "running" if self._engine else "not begun"
        return f"<cableway.Executor max_workers={self._max_workers} {state}>"


# ---- the interpreter's exit

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_starts = Starts("cannot schedule new futures after interpreter shutdown", here=False)


def _finish() -> None:
    """Waits for what was submitted, as `concurrent.futures` does."""
    _starts.close()
    mine = [engine for engine in list(_engines) if engine.pid == os.getpid()]
    for engine in mine:
        engine.close()
    for engine in mine:
        engine.join()


# Before the interpreter's own threads are waited for, and also in children of multiprocessing; else at exit.
getattr(threading, "_register_atexit", atexit.register)(_finish)


# ---- forks

_executors: weakref.WeakSet[Executor] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Another thread of the parent may have had the lock; and who starts workers has it while they are forked."""
    for executor in list(_executors):
        executor._lock = locks.RLock(known=False)


os.register_at_fork(after_in_child=_after_fork_in_child)
