"""A backend for joblib, and so for scikit-learn: import this module, then ask for "causeway".

>>> import causeway.joblib, joblib
>>> with joblib.parallel_config("causeway", n_jobs=2):
...     joblib.Parallel()(joblib.delayed(abs)(x) for x in (-1, -2, 3))
[1, 2, 3]

Tasks run in an `Executor`, whose workers stay for the next call (`shutdown` ends them). Arrays of max_nbytes and more
(joblib's option, 1 MiB unless told otherwise; None: never) are put into shared memory once in a call, however many
tasks get them, and all tasks see them there, read-only. As with joblib's own sharing through files, an array must
not be changed by the caller while the call runs. joblib's mmap_mode tells what tasks see: "r" the shared memory,
read-only; "c" a copy of their own; "r+" or "w+" the shared memory, to be written; None: nothing is shared.

A worker that dies raises `causeway.WorkerDied` at the caller. Parallel loops within tasks run in threads, and below
those one after the other, as with loky. Workers are started by spawn without running the script again, so that
it needs no `if __name__ == "__main__"`; what the script defines goes to them by value (cloudpickle).
"""

from __future__ import annotations

import copyreg
import io
import multiprocessing.spawn
import os
import pickle
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent import futures
from multiprocessing.context import SpawnContext
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from typing import Any

import joblib
import numpy as np
from joblib.parallel import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
)

from causeway._pool_cpus import usable_cpus
from causeway._pool_process import SpawnProcess
from causeway.array import Array, open_handle
from causeway.create import asarray
from causeway.executor import Executor

__all__ = ["CausewayBackend", "shutdown"]

_MAX_NBYTES = 1 << 20
_IDLE_SECONDS = 300.0
_REFUSALS = (pickle.PicklingError, AttributeError, TypeError)


# ---- arrays that many tasks get


class _SharedArrays:
    """The arrays of one call, each put into shared memory once. They go when their originals do, or at the call's end.

    Args:
        readonly: whether tasks map them read-only.
    """

    def __init__(self, readonly: bool) -> None:
        self._readonly = readonly
        self._owners: dict[int, tuple[weakref.ref[Any], dict[Any, Array]]] = {}

    def share(self, values: np.ndarray[Any, Any]) -> Array:
        """The shared array with the contents of values; the same for the same part of the same memory."""
        owner = values
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        ident, owners = id(owner), self._owners
        entry = owners.get(ident)
        if entry is None or entry[0]() is not owner:
            entry = owners[ident] = (weakref.ref(owner, lambda _: owners.pop(ident, None)), {})
        address = values.__array_interface__["data"][0]
        key = (address, values.shape, values.strides, values.dtype)
        found = entry[1].get(key)
        if found is None:
            found = asarray(values)
            if self._readonly and not found.readonly:
                state = list(found.reduce(transit=False)[1])
                state[5] = True
                found = open_handle(*state)
            entry[1][key] = found
        return found

    def clear(self) -> None:
        """The call has ended."""
        self._owners.clear()


class _Opened(threading.local):
    arrays: list[Any] | None = None


_opened = _Opened()


def _array_of_batch(number: int) -> Any:
    if _opened.arrays is None:
        raise pickle.UnpicklingError("a part of a batch was taken out of it")
    return _opened.arrays[number]


# ---- batches on their way to a worker, and their results back


class _Pickler(pickle.Pickler):
    pass


class _Batches:
    """Pickles batches of tasks.

    Args:
        arrays: where large arrays go.
        min_bytes: how large they are; None: none is shared.
        mode: joblib's mmap_mode.
    """

    def __init__(self, arrays: _SharedArrays, min_bytes: int | None, mode: str | None) -> None:
        self._arrays = arrays
        self._min_bytes = min_bytes
        self._mode = mode

    def arguments(self, batch: Callable[[], Any]) -> tuple[Any, ...]:
        """What `_run` gets, for a batch."""
        found: list[tuple[Array, str | None]] = []

        def reduce_ndarray(values: np.ndarray[Any, Any]) -> Any:
            small = self._min_bytes is None or values.nbytes < max(self._min_bytes, 1)
            if small or values.dtype.hasobject:
                return np.ndarray.__reduce_ex__(values, 5)
            found.append((self._arrays.share(values), self._mode))
            return _array_of_batch, (len(found) - 1,)

        def reduce_array(array: Array) -> Any:
            found.append((array, None))
            return _array_of_batch, (len(found) - 1,)

        own: dict[Any, Any] = {
            np.ndarray: reduce_ndarray,
            np.memmap: reduce_ndarray,
            Array: reduce_array,
        }
        buffers: list[pickle.PickleBuffer] = []
        out = io.BytesIO()
        by_value = False
        pickler = _Pickler(out, protocol=5, buffer_callback=buffers.append)
        pickler.dispatch_table = {**copyreg.dispatch_table, **own}
        refusal = None
        try:
            pickler.dump(batch)
            by_value = b"__main__" in out.getvalue()  # the workers have another one
        except _REFUSALS as error:
            by_value, refusal = True, error
        if by_value:
            found.clear()
            buffers.clear()
            out = io.BytesIO()
            _pickle_by_value(batch, out, own, buffers, refusal)
        return out.getvalue(), buffers, found, by_value


def _pickle_by_value(
    batch: Any,
    out: io.BytesIO,
    own: dict[Any, Any],
    buffers: list[pickle.PickleBuffer],
    refusal: Exception | None,
) -> None:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        # Of the class: cloudpickle's has one, and it is read when a pickler is made.
        dispatch_table = {**cloudpickle.Pickler.dispatch_table, **own}

    try:
        Pickler(out, protocol=5, buffer_callback=buffers.append).dump(batch)
    except _REFUSALS:
        if refusal is None:
            raise
        raise refusal from None


class _ByValue:
    """A result whose classes may exist in the worker alone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        import cloudpickle

        buffers: list[pickle.PickleBuffer] = []
        data = cloudpickle.dumps(self.value, protocol=5, buffer_callback=buffers.append)
        return _read, (data, buffers)


def _read(data: bytes, buffers: list[Any]) -> Any:
    return pickle.loads(data, buffers=buffers)


class _Failed:
    """An exception that came by value, and its traceback there."""

    def __init__(self, error: Exception, text: str) -> None:
        self.error = error
        self.text = text


def _run(
    data: bytes, buffers: list[Any], arrays: list[tuple[Array, str | None]], by_value: bool
) -> Any:
    """Runs a batch in a worker."""
    before = _opened.arrays
    _opened.arrays = [_seen(array, mode) for array, mode in arrays]
    try:
        batch = pickle.loads(data, buffers=buffers)
    finally:
        _opened.arrays = before
    del arrays
    if not by_value:
        return batch()
    try:
        return _ByValue(batch())
    except Exception as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        error.__traceback__ = None
        return _ByValue(_Failed(error, text))


def _seen(array: Array, mode: str | None) -> Any:
    """An array as a task sees it; mode None: it was an Array."""
    if mode is None:
        return array
    return array.copy().numpy() if mode == "c" else array.numpy()


# ---- workers


_hidden = threading.local()
_preparation_data = multiprocessing.spawn.get_preparation_data


def _without_main(name: str) -> dict[str, Any]:
    """What a spawned process is told of this one: for our workers nothing of the main script."""
    found: dict[str, Any] = _preparation_data(name)
    if getattr(_hidden, "main", False):
        found.pop("init_main_from_path", None)
        found.pop("init_main_from_name", None)
    return found


multiprocessing.spawn.get_preparation_data = _without_main


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        _hidden.main = True
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            _hidden.main = False


class _Context(SpawnContext):
    Process = _Process


def _prepare(environment: dict[str, str]) -> None:
    """In a worker: how many threads numerical libraries may use, those that are loaded and those to come."""
    os.environ.update(environment)
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return
    threadpool_limits(int(environment["OMP_NUM_THREADS"]))


class _Workers:
    """The executor that was used last, kept for the next call of the same kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: tuple[Any, Executor] | None = None
        self._timer: threading.Timer | None = None

    def take(self, n_jobs: int, environment: dict[str, str], context: Any) -> tuple[Any, Executor]:
        """An executor and its kind, to give back."""
        kind = (n_jobs, tuple(sorted(environment.items())), str(context))
        kept = self._take_idle()
        if kept is not None:
            executor = kept[1]
            if kept[0] == kind and executor.is_usable():
                return kept
            executor.shutdown(wait=False)
        if context is None:
            context = _Context()
        return kind, Executor(n_jobs, context, _prepare, (environment,))

    def give_back(self, kind: Any, executor: Executor) -> None:
        """It is not used any more."""
        before = self._take_idle()
        if before is not None:
            before[1].shutdown(wait=False)
        with self._lock:
            self._idle = (kind, executor)
            self._timer = threading.Timer(_IDLE_SECONDS, self.end)
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        """Ends the workers that wait for a next call."""
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


def shutdown() -> None:
    """Ends the workers that wait for joblib's next call. They end by themselves after five minutes and at exit.

    >>> import causeway.joblib
    >>> causeway.joblib.shutdown()
    """
    _workers.end()


# ---- the backend


class CausewayBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """What joblib calls. Options of its own: context, a multiprocessing context or the name of a start method."""

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True

    def __init__(self, context: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self._context = context
        self._executor: Executor | None = None
        self._kind: Any = None
        self._arrays = _SharedArrays(readonly=True)
        self._batches = _Batches(self._arrays, None, None)
        self._options: dict[str, Any] = {}

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many workers n_jobs means: negative ones count from all CPUs of this process."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or multiprocessing.current_process().daemon:
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
        """Makes workers ready for a call; how many."""
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self._options = {**self.backend_kwargs, **options}
        mode = self._options.get("mmap_mode", "r")
        min_bytes = self._options.get("max_nbytes", _MAX_NBYTES) if mode is not None else None
        self._arrays = _SharedArrays(readonly=mode in ("r", "c"))
        self._batches = _Batches(self._arrays, min_bytes, mode)
        self._kind, self._executor = _workers.take(
            n_jobs, self._prepare_worker_env(n_jobs=n_jobs), self._context
        )
        self.parallel = parallel
        return n_jobs

    def submit(
        self,
        func: Callable[[], Any],
        callback: Callable[[futures.Future[Any]], object] | None = None,
    ) -> futures.Future[Any]:
        """Hands a batch to a worker."""
        if self._executor is None:
            raise RuntimeError("this call of Parallel has ended or was aborted")
        future = self._executor.submit(_run, *self._batches.arguments(func))
        if callback is not None:
            future.add_done_callback(callback)
        return future

    apply_async = submit  # its name up to joblib 1.4

    def retrieve_result_callback(self, future: futures.Future[Any]) -> Any:
        """A batch's results; raises what a task raised."""
        found = future.result()
        if type(found) is _Failed:
            raise found.error from RemoteTraceback(f'\n"""\n{found.text}"""')
        return found

    def stop_call(self) -> None:
        """The call has ended: its arrays go."""
        self._arrays.clear()

    def terminate(self) -> None:
        """The workers may serve another call."""
        executor, self._executor = self._executor, None
        self._arrays.clear()
        if executor is not None:
            _workers.give_back(self._kind, executor)
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Ends what runs, with its workers."""
        executor, self._executor = self._executor, None
        self._arrays.clear()
        if executor is not None:
            executor.kill_workers()
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel, **self._options)


joblib.register_parallel_backend("causeway", CausewayBackend)
