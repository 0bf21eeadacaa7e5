"""A backend for joblib, and so for scikit-learn: import this module, then ask for "cableway".

>>> import cableway.joblib, joblib
>>> with joblib.parallel_config("cableway"):
...     joblib.Parallel()(joblib.delayed(abs)(x) for x in (-1, -2, 3))
[1, 2, 3]

`parallel_config("cableway", n_jobs=4)`, or the n_jobs of an estimator or of Parallel, sets the number of workers. Without n_jobs
there is one for each CPU that this process may use, as with joblib's Dask backend; "loky" would run everything in the caller.

Tasks run in an `Executor`, whose workers stay for the next call (`shutdown` ends them). Arrays of at least max_nbytes (an option of
joblib, 1 MiB by default; None: never) are put into shared memory once in a call, however many tasks get them, and all tasks see
them there, read-only. As with joblib's own sharing through files, the caller must not change an array while the call runs. joblib's
mmap_mode says what tasks see: "r": the shared memory, read-only; "c": a copy of their own; "r+" or "w+": the shared memory, which
they may write; None: nothing is shared.

If a worker dies, the caller gets `cableway.WorkerDied`. Parallel loops within tasks run in threads, and loops within those run
one call after the other, as with loky. Workers are started by spawn, but do not run the script again, so it needs no
`if __name__ == "__main__"`; what the script defines is sent by value (cloudpickle). joblib's initializer and initargs run in each
worker before its first task; the workers are used again for calls with the same initializer and initargs.
"""

from __future__ import annotations

import multiprocessing.spawn
import os
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from multiprocessing.context import SpawnContext
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from typing import Any

import joblib
from joblib.parallel import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
)

from cableway._core import locks
from cableway._core.cpus import usable_cpus
from cableway._joblib.batches import Batches, Failed, SharedArrays, run
from cableway._joblib.calls import Batch, Call
from cableway._pool.launch.process import SpawnProcess
from cableway._transport.by_value import ByValue
from cableway.executor import Executor

__all__ = ["CablewayBackend", "shutdown"]

_MAX_NBYTES = 1 << 20
_IDLE_SECONDS = 300.0


# ---- workers


_hidden = threading.local()
_preparation_data = multiprocessing.spawn.get_preparation_data


def _without_main(name: str) -> dict[str, Any]:
    """The data with which a spawned process prepares itself; for our workers without the main script."""
    found: dict[str, Any] = _preparation_data(name)
    if getattr(_hidden, "main", False):
        found.pop("init_main_from_path", None)
        found.pop("init_main_from_name", None)
    return found


multiprocessing.spawn.get_preparation_data = _without_main


class _Process(SpawnProcess):
    runs_main = False

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        _hidden.main = True
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            _hidden.main = False


class _Context(SpawnContext):
    """The start method of our workers, which do not run the script. The Pool's server forks them, so modules that the first
    batch names are imported once, and the workers share the memory for them. With scikit-learn that is most of their memory.

    Args:
        environment: environment variables for numerical libraries, set while these are imported: how many threads they may use.

    Attributes:
        modules: the modules that the server imports if it is started for these workers.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        super().__init__()
        self.modules: set[str] = set()
        self._environment = environment

    def Process(self, *args: Any, **named: Any) -> Any:  # type: ignore[override]  # noqa: N802
        process: Any = _Process(*args, **named)
        process.modules = self.modules
        process.environment = self._environment
        return process


def _prepare(environment: dict[str, str], start: tuple[Any, tuple[Any, ...]]) -> None:
    """In a worker: limits the threads of numerical libraries, of those that are loaded and of those that will be.

    Then it calls joblib's initializer, if there is one. start: the initializer (or None) and its arguments.
    """
    os.environ.update(environment)
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        pass
    else:
        threadpool_limits(int(environment["OMP_NUM_THREADS"]))
    initializer, initargs = start
    if initializer is not None:
        initializer(*initargs)


class _Workers:
    """Keeps the executor that was used last, for the next call of the same kind."""

    def __init__(self) -> None:
        self._lock = locks.RLock(known=False)  # a handler or a finaliser may come where it is held
        self._idle: tuple[Any, Executor] | None = None
        self._timer: threading.Timer | None = None

    def take(
        self,
        n_jobs: int,
        environment: dict[str, str],
        context: Any,
        start: tuple[Any, tuple[Any, ...]],
    ) -> tuple[Any, Executor]:
        """Returns a kind and an executor, both for `give_back`. start: the initializer, and its arguments."""
        objects = (id(start[0]), *map(id, start[1]))  # they live as long as the executor
        kind = (n_jobs, tuple(sorted(environment.items())), str(context), objects)
        kept = self._take_idle()
        if kept is not None:
            executor = kept[1]
            if kept[0] == kind and executor.is_usable():
                return kept
            executor.shutdown(wait=False)
        if context is not None:
            return kind, Executor(n_jobs, context, _prepare, (environment, start))
        by_value = ByValue(start, None)  # the workers have nothing of the main script
        return kind, Executor(n_jobs, _Context(environment), _prepare, (environment, by_value))

    def give_back(self, kind: Any, executor: Executor) -> None:
        """Takes an executor back that a call has used, and keeps it for the next one."""
        timer = threading.Timer(_IDLE_SECONDS, self.end)
        timer.daemon = True
        with self._lock:
            before, self._idle = self._idle, (kind, executor)
            last, self._timer = self._timer, timer
            timer.start()  # one that was cancelled meanwhile ends at once
        if last is not None:
            last.cancel()
        if before is not None:
            before[1].shutdown(wait=False)

    def end(self) -> None:
        """Ends the workers that wait for the next call."""
        kept = self._take_idle()
        if kept is not None:
            kept[1].shutdown()

    def _take_idle(self) -> tuple[Any, Executor] | None:
        with self._lock:
            kept, self._idle = self._idle, None
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        return kept


_workers = _Workers()


def _after_fork_in_child() -> None:
    """The workers belong to the parent, and a thread of the parent may hold the lock: begins with none."""
    global _workers
    _workers = _Workers()


os.register_at_fork(after_in_child=_after_fork_in_child)


def shutdown() -> None:
    """Ends the workers that wait for joblib's next call. They end by themselves after five minutes and at exit.

    >>> import cableway.joblib
    >>> cableway.joblib.shutdown()
    """
    _workers.end()


# ---- the backend


class CablewayBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """The backend that joblib calls. It has one option of its own: context, a multiprocessing context or the name of a start
    method.
    """

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1  # whoever names this backend wants workers

    def __init__(self, context: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self._mp_context = context
        self._executor: Executor | None = None
        self._kind: Any = None
        self._arrays = SharedArrays(readonly=True)
        self._batches = Batches(self._arrays, None, None)
        self._options: dict[str, Any] = {}
        self._call: Call | None = None
        self._nested: Any = None

    def get_nested_backend(self) -> Any:
        """The backend for loops within tasks; the same for all batches of a call."""
        if self._nested is None:
            self._nested = super().get_nested_backend()
        return self._nested

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """The number of workers for an n_jobs. -1 is one for each CPU of this process, -2 one less; None is as -1."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            n_jobs = self.default_n_jobs
        if multiprocessing.current_process().daemon:
            return 1
        return n_jobs if n_jobs > 0 else max(usable_cpus() + 1 + n_jobs, 1)

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        prefer: Any = None,
        require: Any = None,
        **options: Any,
    ) -> int:
        """Makes workers ready for a call, and returns their number."""
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self._options = {**self.backend_kwargs, **options}
        mode = self._options.get("mmap_mode", "r")
        min_bytes = self._options.get("max_nbytes", _MAX_NBYTES) if mode is not None else None
        self._arrays = SharedArrays(readonly=mode in ("r", "c"))
        self._batches = Batches(self._arrays, min_bytes, mode)
        start = self._options.get("initializer"), tuple(self._options.get("initargs", ()))
        self._kind, self._executor = _workers.take(
            n_jobs, self._prepare_worker_env(n_jobs=n_jobs), self._mp_context, start
        )
        self.parallel = parallel
        self._nested = None
        # Who gets results one by one, or waits for a limited time, does not wait here.
        waits = not getattr(parallel, "return_generator", False) and parallel.timeout is None
        self._call = Call(self._executor) if waits else None
        return n_jobs

    def submit(
        self, func: Callable[[], Any], callback: Callable[[Any], object] | None = None
    ) -> Batch | futures.Future[Any]:
        """Hands a batch to a worker."""
        executor, call = self._executor, self._call  # another thread may end the call meanwhile
        if executor is None:
            raise RuntimeError("this call of Parallel has ended or was aborted")
        arguments = self._batches.arguments(func)
        self._tell_modules(executor)
        if call is not None and callback is not None:
            return call.submit(run, arguments, callback)
        future = executor.submit(run, *arguments)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def _tell_modules(self, executor: Executor) -> None:
        """Before the workers start: tells their server which modules the first batch of the first call names."""
        context = executor._mp_context
        if type(context) is _Context and executor._engine is None:
            context.modules.update(self._batches.modules)

    apply_async = submit  # its name up to joblib 1.4

    @contextmanager
    def retrieval_context(self) -> Iterator[None]:
        """Collects all results in the caller's thread. joblib would look for them every 10 ms from here on."""
        if self._call is not None:
            self._call.serve(lambda: getattr(self.parallel, "_aborting", False))
        yield

    def retrieve_result_callback(self, batch: Batch | futures.Future[Any]) -> Any:
        """The results of a batch. If a task raised an exception, raises that."""
        found = batch.result()
        if type(found) is Failed:
            raise found.error from RemoteTraceback(f'\n"""\n{found.text}"""')
        return found

    def stop_call(self) -> None:
        """The call has ended: drops its shared arrays."""
        self._arrays.clear()

    def terminate(self) -> None:
        """Ends the use of the workers, and keeps them for another call."""
        executor, self._executor = self._executor, None
        self._arrays.clear()
        if executor is not None:
            _workers.give_back(self._kind, executor)
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Ends the tasks that run, and their workers."""
        executor, self._executor = self._executor, None
        self._arrays.clear()
        if executor is not None:
            executor.kill_workers()
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel, **self._options)


joblib.register_parallel_backend("cableway", CablewayBackend)
