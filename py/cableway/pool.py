"""`Pool`: worker processes behind the interface of `multiprocessing.pool.Pool`.

>>> import cableway as cw
>>> with cw.Pool(2) as pool:
...     pool.map(abs, [-1, -2, 3])
[1, 2, 3]
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sized
from multiprocessing.pool import MaybeEncodingError, RemoteTraceback  # type: ignore[attr-defined]
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cableway._core.cpus import usable_cpus
from cableway._pool import stats as pool_stats
from cableway._pool.answers import MaybeDecodingError
from cableway._pool.async_result import AsyncResult, MapResult
from cableway._pool.devices import devices as pool_devices
from cableway._pool.engine import RUN, Engine
from cableway._pool.gang import run as run_gang
from cableway._pool.imap import IMapIterator, IMapUnorderedIterator
from cableway._pool.jobs import Task
from cableway._pool.options import Options, chunk_size
from cableway._pool.progress import Progress
from cableway._transport import message as wire

__all__ = [
    "AsyncResult",
    "IMapIterator",
    "MapResult",
    "MaybeDecodingError",
    "MaybeEncodingError",
    "Pool",
    "RemoteTraceback",
]

_Callback = Callable[[Any], object] | None
_ErrorCallback = Callable[[BaseException], object] | None


def _get(result: MapResult, progress: Any) -> list[Any]:
    try:
        return result.get_with(Progress.of(progress, result.length))
    finally:
        del result  # else an exception's traceback would hold it


if TYPE_CHECKING:
    _Standard = object
else:
    from multiprocessing.pool import Pool as _Standard


class Pool(_Standard):
    """A pool of worker processes, to be used as `multiprocessing.Pool`.

    It is an instance of that class, because programs such as dask ask for that, but shares no code with it.

    What differs: NumPy arrays of 64 KiB and more travel through shared memory. They are copied once, and the task may write to
    its copy. A `cableway.Array` travels as a handle on the same memory. Lambdas and local functions, which standard pickle
    refuses, are pickled by cloudpickle. If a worker dies, only its own task fails, with `WorkerDied`, and another worker
    takes its place. If an initializer raises, the caller gets the exception.

    As in the standard library, a worker of a Pool is a daemon and cannot start processes: a Pool or Executor made in a worker
    raises AssertionError. Workers of an `Executor` can make both, and these end with the worker.

    In a notebook, a task uses the functions and classes of the cells as they are when the call is made.

    Args:
        processes: how many workers; None for as many as there are CPUs that this process may use (by affinity and cgroup).
        initializer: called as ``initializer(*initargs)`` in each worker before its first task. It may be a lambda or a
            local function.
        initargs: its arguments.
        maxtasksperchild: a worker is replaced after this many tasks (a chunk of a map counts as one).
        context: a multiprocessing context, or the name of a start method: "fork", "spawn", "forkserver". None
            for multiprocessing's own choice.
        retries: how many times a task is run again if its worker dies. After an exception it is never run again.
        task_timeout: seconds that a task may run (one chunk of a map); then its worker is killed and replaced,
            and the task raises `TaskTimeout`.
        capture_stderr: this process reads the workers' stderr and passes it on, and `WorkerDied` shows the end of it. Workers
            never wait for that: what exceeds 4 MiB is dropped, with a note on this process's stderr.
        devices: workers on GPUs. "cuda": one on each GPU that this process sees; "auto": the same, or workers without GPUs if
            there is none; "cuda:1"; a list of names, where a name may appear twice for two workers; a dict from names to numbers
            of workers ({"cuda": 2}: two on each). A GPU's UUID, a MIG instance's and a `torch.device` are names, too. See below.
        peer: tasks get arrays that lie on other GPUs as views instead of as copies on their own GPU.
        sms: multiprocessors for each worker, if several share a GPU. Work that a task submits to `cableway.current_stream()` runs
            only on these. The driver rounds the number up. Without MPS a GPU runs one process at a time: then `sms` limits what
            a worker uses, but workers still take turns.
        borrow: how a task gets GPU memory that PyTorch or CuPy has allocated by itself. True: the same memory; False: a copy on the
            GPU; None: the same memory for PyTorch's tensors, a copy for CuPy's arrays. See below.

    With devices, each worker is started by "spawn" (the default then) or "forkserver". In the worker its own GPU is cuda:0, so
    that the default device of every library is right; the other GPUs follow. The worker runs on CPU cores near its GPU.

    A task goes to the GPU that holds most bytes of its `cableway.Array` arguments. If it has none, it goes to the least busy GPU.
    If more than two tasks per worker wait for one GPU, idle workers of other GPUs take some of them. An argument on another
    GPU is first copied to the worker's GPU, and then the caller does not see what func writes into it: return the result
    instead. With devices, `map` sends items one by one by default.

    PyTorch's tensors and CuPy's arrays on a GPU are passed by handle, and arrive as tensors and arrays. A tensor is the same
    memory, as with torch.multiprocessing: the caller, and other tasks that were given it, see what func writes. A CuPy
    array is copied once on its GPU; with `borrow=True` it is the same memory as well, and with `borrow=False` both are
    copied. Memory that was allocated from cableway (`cableway.torch.use()`) is never copied. Memory that the driver gives
    no handle for (expandable segments, cudaMallocAsync) is always copied; `stats` counts both. If you drop an array while a
    task uses it, its memory stays until the task is done with it. A task's result lies in memory of cableway, or is one of
    its arguments.

    After each call of func the worker waits until its GPU work is complete. If that work has broken the CUDA context, the task
    raises `DeviceError` with CUDA's name for the error, and the worker is replaced. If GPU memory is full, the task raises.

    Raises:
        ValueError: processes or maxtasksperchild is below 1, retries below 0, or task_timeout not above 0; a name in devices is
            no device; devices does not fit processes, or is used with the start method "fork".
        TypeError: initializer cannot be called; devices is neither text, list nor dict.
        DeviceError: there is no such GPU for this process.
        LimitExceeded: no memory for tasks. (The broker is connected to when a task needs it.)

    >>> import cableway as cw
    >>> with cw.Pool(2) as pool:
    ...     pool.starmap(pow, [(2, 3), (3, 2)])
    [8, 9]
    """

    _engine: Engine  # absent where it could not begin
    _repr_html_ = pool_stats.html_of  # for notebooks

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        *,
        retries: int = 0,
        task_timeout: float | None = None,
        capture_stderr: bool = False,
        devices: Any = None,
        peer: bool = False,
        sms: int | None = None,
        borrow: bool | None = None,
    ) -> None:
        context, found = pool_devices.start(
            context, devices, processes, peer=peer, sms=sms, borrow=borrow
        )
        if found is not None:
            processes = found.count
        elif processes is None:
            processes = usable_cpus()
        if processes < 1:
            raise ValueError(f"Number of processes must be at least 1, not {processes!r}")
        if maxtasksperchild is not None and (
            not isinstance(maxtasksperchild, int) or maxtasksperchild <= 0
        ):
            raise ValueError(
                f"maxtasksperchild must be a positive int or None, not {maxtasksperchild!r}"
            )
        options = Options(
            initializer, initargs, maxtasksperchild, retries, task_timeout, capture_stderr
        )
        self._told_to_end = False
        Engine.begin_for(self, processes, context, options, devices=found)

    # ---- one call

    def apply(
        self, func: Callable[..., Any], args: Iterable[Any] = (), kwds: dict[str, Any] | None = None
    ) -> Any:
        """Calls ``func(*args, **kwds)`` in a worker and waits for the result.

        Raises:
            WorkerDied: the worker died.
            ValueError: the pool is not running.
            Whatever func raises; its cause is the worker's traceback.
        """
        engine = self._engine
        engine.check_running()
        found = engine.call(func, tuple(args), kwds or {})
        if found is not None:
            return found[0]
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: dict[str, Any] | None = None,
        callback: _Callback = None,
        error_callback: _ErrorCallback = None,
    ) -> AsyncResult:
        """Like `apply`, but returns at once.

        Args:
            func: the function.
            args: its positional arguments.
            kwds: its keyword arguments.
            callback: called with the result, in a thread of its own, before the result is ready.
            error_callback: called with the exception.
        """
        engine = self._engine
        if callback is None and error_callback is None and type(args) is tuple:
            begun: AsyncResult | None = engine.begin(AsyncResult, engine, self, func, args, kwds)
            if begun is not None:
                return begun
        engine.check_running()
        call = (tuple(args), kwds) if kwds else (tuple(args),)
        result = AsyncResult(engine, self, func, callback, error_callback, call)
        engine.submit(result, Task(result, 0, wire.APPLY, call))
        return result

    # ---- lists

    def map(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        *,
        progress: Any = None,
    ) -> list[Any]:
        """``[func(x) for x in iterable]``, on all workers, in order.

        Args:
            func: called with one item.
            iterable: read to its end before the first task begins.
            chunksize: items that a worker takes at a time. None: 1 with devices; else a quarter of an even share of the items,
                or less if that is quicker (never less with maxtasksperchild). Below 1 raises ValueError, not so in the standard library.
            progress: True shows the progress (by tqdm, if it is installed; in a notebook in any case); or a callable like tqdm's,
                which is called with total=len(iterable) and returns an object with update(n) and close().

        >>> import cableway as cw
        >>> with cw.Pool(2) as pool:
        ...     pool.map(str, range(4), chunksize=2)
        ['0', '1', '2', '3']
        """
        return _get(self.map_async(func, iterable, chunksize), progress)

    def map_async(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: _Callback = None,
        error_callback: _ErrorCallback = None,
    ) -> MapResult:
        """Like `map`, but returns at once."""
        return self._map(func, iterable, chunksize, callback, error_callback, star=False)

    def starmap(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        *,
        progress: Any = None,
    ) -> list[Any]:
        """``[func(*x) for x in iterable]``, on all workers, in order; see `map`."""
        return _get(self.starmap_async(func, iterable, chunksize), progress)

    def starmap_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: _Callback = None,
        error_callback: _ErrorCallback = None,
    ) -> MapResult:
        """Like `starmap`, but returns at once."""
        return self._map(func, iterable, chunksize, callback, error_callback, star=True)

    def _map(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None,
        callback: _Callback,
        error_callback: _ErrorCallback,
        star: bool,
    ) -> MapResult:
        self._engine.check_running()
        items = tuple(iterable)
        if chunksize is None and self._engine.devices is not None:
            chunksize = 1  # each to where its arrays lie
        elif chunksize is None:
            chunksize = self._engine.default_chunk(items)
        else:
            chunksize = chunk_size(chunksize)
        result = MapResult(
            self._engine, self, func, items, max(chunksize, 1), star, callback, error_callback
        )
        result.begin()
        return result

    # ---- iterators

    def imap(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int = 1,
        *,
        buffersize: int | None = None,
        progress: Any = None,
    ) -> IMapIterator:
        """Like `map`, but an iterator over the results, in order; its next() takes a timeout.

        Args:
            func: called with one item.
            iterable: read in a thread of its own, at most four tasks per worker ahead of those that are done.
            chunksize: items that a worker takes at a time.
            buffersize: how many tasks may be under way or done whose results you have not taken yet; the iterable is read no
                further ahead, until the pool is closed. When you drop the iterator, no more of the iterable is read.
            progress: as for `map`; counts the results that you have taken.
        """
        return self._imap(IMapIterator, func, iterable, chunksize, buffersize, progress)

    def imap_unordered(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int = 1,
        *,
        buffersize: int | None = None,
        progress: Any = None,
    ) -> IMapIterator:
        """Like `imap`, but gives each result as soon as it is there."""
        return self._imap(IMapUnorderedIterator, func, iterable, chunksize, buffersize, progress)

    def _imap(
        self,
        kind: type[IMapIterator],
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int,
        buffersize: int | None,
        progress: Any,
    ) -> IMapIterator:
        self._engine.check_running()
        chunksize = chunk_size(chunksize)
        if buffersize is not None and (not isinstance(buffersize, int) or buffersize < 1):
            raise ValueError(f"buffersize must be an integer above 0 or None, not {buffersize!r}")
        known = len(iterable) if isinstance(iterable, Sized) else None
        result = kind(self._engine, self, func, chunksize, Progress.of(progress, known))
        if isinstance(iterable, (list, tuple, range)) and buffersize is None:
            result.take_all(tuple(iterable))
        else:
            self._engine.feed(result, iterable, chunksize, buffersize)
        return result

    # ---- all at once

    def spmd(
        self,
        func: Callable[..., Any],
        *args: Any,
        n: int | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Calls ``func(group, *args)`` at once on n distinct workers, each with its `Group`. Blocks.

        It waits until n workers are free; those that are free already wait, too. Calls of several threads take turns. With
        devices, the ranks go to the GPUs in turn. If one rank raises or its worker dies, the others get `GroupBroken` in their
        next operation; when all have ended, the first failure is raised. Nothing is run again, whatever `retries` says.

        Args:
            func: called with the group and args.
            args: the same for each rank. Large NumPy arrays are copied once, and each rank may write to its own copy.
            n: at most as many as the Pool has workers, and 256. None: all workers.
            timeout: seconds for each operation of the group; None: without limit.

        Returns: the results, by rank. Raises: ValueError if n is below 1, or above the number of workers; WorkerDied, whose
        index is the rank; Error if the pool was made smaller meanwhile; whatever func raises, with an attribute rank.

        >>> import cableway as cw
        >>> with cw.Pool(2) as pool:
        ...     pool.spmd(lambda group, x: (group.rank, group.allreduce(x)), 10)
        [(0, 20), (1, 20)]
        """
        return run_gang(self._engine, self, func, args, n, timeout)

    # ---- its workers

    def resize(self, processes: int) -> None:
        """Changes the number of workers while they work. Surplus workers leave after their task.

        With devices, the workers are spread evenly over them, whatever the pool was made with. If the number does not divide
        evenly, the first devices get one more.

        Raises:
            ValueError: processes is below 1 (with devices: below one per device), or above 32 and above the number with which
                the pool was made.

        >>> import cableway as cw
        >>> with cw.Pool(1) as pool:
        ...     pool.resize(2)
        ...     pool
        <cableway.Pool state=RUN pool_size=2>
        """
        self._engine.check_running()
        self._engine.resize(processes)

    def stats(self) -> dict[str, Any]:
        """Counts what the pool has done so far: tasks (calls of functions), chunks (which workers take at once: in a map several
        tasks), seconds, bytes_in and bytes_out in total, the same for each of "workers", and with devices for each of "devices".
        With devices, "lent" counts arrays of PyTorch and CuPy sent "shared", without a copy, and those "copied".

        Seconds are those in which tasks ran. bytes_in are the bytes of arguments as they were sent, bytes_out those of
        results and of `Out` arrays.
        """
        return pool_stats.summary(self._engine.figures(), self._engine.devices)

    def print_stats(self) -> None:
        """Prints `stats` as a table."""
        print(pool_stats.table(self._engine.figures()))

    # ---- its end

    def close(self) -> None:
        """Takes no more work. The workers end when all submitted tasks are done. May be repeated."""
        self._told_to_end = True
        self._engine.close()

    def terminate(self) -> None:
        """Ends the workers at once. Calls that have not ended raise `Error`. May be repeated."""
        self._told_to_end = True
        self._engine.terminate()

    def join(self) -> None:
        """Waits for the workers to end. ValueError before close() or terminate(), RuntimeError where a signal's handler cannot."""
        if self._engine.state == RUN:
            raise ValueError("Pool is still running")
        self._engine.join()

    def __enter__(self) -> Pool:
        self._engine.check_running()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.terminate()

    def __del__(self, warn: Any = warnings.warn, getpid: Any = os.getpid) -> None:
        engine = getattr(self, "_engine", None)
        if engine is None or engine.pid != getpid():
            return
        engine.drop()
        if not self._told_to_end and engine.error is None:  # at exit the engine has ended before
            warn(f"unclosed running multiprocessing pool {self!r}", ResourceWarning, source=self)

    # ---- what programs read of multiprocessing.Pool beside its interface

    @property
    def _pool(self) -> list[Any]:
        """The workers' processes."""
        return self._engine.workers()

    @property
    def _processes(self) -> int:
        """How many workers the pool is to have."""
        return self._engine.processes

    @property
    def _ctx(self) -> Any:
        return self._engine.context

    @property
    def _state(self) -> str:
        return self._engine.state

    @_state.setter
    def _state(self, state: str) -> None:
        """Only __del__ asks for it."""
        self._engine.state = state
        self._told_to_end = state != RUN

    @property
    def _cache(self) -> dict[int, Any]:
        """The results that are not ready, by numbers: `while pool._cache: ...` waits for all of them. Calls that `apply` or
        another thread waits for inside the library may be missing.
        """
        self._engine.collect()
        return dict(enumerate(self._engine.unfinished()))

    def _repopulate_pool(self) -> None:
        """Dead workers are replaced at once in any case."""
        self._engine.wake()

    def __reduce__(self) -> Any:
        raise NotImplementedError("pool objects cannot be passed between processes or pickled")

    def __repr__(self) -> str:
        return f"<cableway.Pool state={self._engine.state} pool_size={self._engine.processes}>"
