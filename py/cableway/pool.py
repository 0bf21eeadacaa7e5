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

    What differs: NumPy arrays of 64 KiB and more travel through shared memory with one copy, and the task may write to
    its copy; a `cableway.Array` travels as a handle on the same memory. Lambdas and local functions, which standard pickle
    refuses, are pickled by cloudpickle. If a worker dies, only its own task fails, with `WorkerDied`, and another worker
    takes its place. If an initializer raises, the caller gets the exception.

    As in the standard library a Pool's worker is a daemon and may have no processes of its own: a Pool or Executor made
    in one raises AssertionError. Workers of an `Executor` may have both, and those end with the worker.

    In a notebook a task uses the functions and classes of the cells as they are at the moment of the call.

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
            there is none; "cuda:1"; a list of names, where a name may appear twice for two workers; a dict from names to
            numbers of workers ({"cuda": 2}: two on each). A UUID, of a GPU or of an instance of MIG, is a name too. See below.
        peer: tasks get arrays that lie on other GPUs as views instead of as copies on their own GPU.
        sms: multiprocessors for each worker, where several share a GPU: what a task submits to `cableway.current_stream()` runs on
            these only. The driver rounds up. Without MPS a GPU serves one process at a time, so this bounds what a worker
            takes, but does not make workers run at the same time.
        borrow: how a task gets GPU memory that PyTorch or CuPy has allocated by itself. True: the same memory; False: a copy on the
            GPU; None: the same memory for PyTorch's tensors, a copy for CuPy's arrays. See below.

    With devices each worker is started by "spawn" (the default then) or "forkserver". Its own GPU is cuda:0 to it, so that the
    default device of every library is right; the other GPUs follow. It runs on cores near its GPU.

    A task goes to the GPU that holds most bytes of its `cableway.Array` arguments, or to the least busy one if it has none. If
    more than two tasks a worker wait at one GPU, idle workers of others take some. An argument that lies on another GPU than
    the worker's is copied to the worker's first, so the caller sees what func writes into it only if both are on one GPU:
    return the result instead. With devices `map` sends items one by one by default.

    PyTorch's tensors and CuPy's arrays on a GPU are passed by handle, and arrive as tensors and arrays. A tensor is the same
    memory, as with torch.multiprocessing: the caller, and other tasks that were given it, see what func writes. A CuPy
    array is copied once on its GPU; with `borrow=True` it is the same memory as well, and with `borrow=False` both are
    copied. Memory that was allocated from cableway (`cableway.torch.use()`) is never copied. Memory that the driver gives
    no handle for (expandable segments, cudaMallocAsync) is always copied; `stats` counts both. An array that you drop while
    a task has it stays until the task lets go of it. What a task returns is memory of cableway's, or what it was given.

    After each call of func the worker waits until its GPU work is complete. If that work has broken the CUDA context, the task
    raises `DeviceError` with CUDA's name for the error, and the worker is replaced. If GPU memory is full, the task raises.

    Raises:
        ValueError: processes or maxtasksperchild below 1, retries below 0, task_timeout not above 0; devices that are no names
            of devices, or together with the start method "fork" or with another number of processes.
        TypeError: initializer cannot be called; devices is neither text, list nor dict.
        DeviceError: there is no such GPU for this process.
        LimitExceeded: no memory for tasks. (The broker is connected to when a task needs it.)

    >>> import cableway as cw
    >>> with cw.Pool(2) as pool:
    ...     pool.starmap(pow, [(2, 3), (3, 2)])
    [8, 9]
    """

    _engine: Engine  # absent where it could not begin

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
            raise ValueError("Number of processes must be at least 1")
        if maxtasksperchild is not None and (
            not isinstance(maxtasksperchild, int) or maxtasksperchild <= 0
        ):
            raise ValueError("maxtasksperchild must be a positive int or None")
        options = Options(
            initializer, initargs, maxtasksperchild, retries, task_timeout, capture_stderr
        )
        self._told_to_end = False
        Engine.begin_for(self, processes, context, options, devices=found)

    # ---- one call

    def apply(
        self, func: Callable[..., Any], args: Iterable[Any] = (), kwds: dict[str, Any] | None = None
    ) -> Any:
        """``func(*args, **kwds)`` in a worker; waits for the result.

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
            func: the function, args and kwds: its arguments.
            args: positional arguments.
            kwds: named arguments.
            callback: called with the result, in a thread of its own, before the result counts as ready.
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
            iterable: read as a whole before the first task begins.
            chunksize: items that a worker takes at one go; None for a quarter of its even share, or less where they are
                quicker to send so (never with maxtasksperchild), with devices for 1. Below 1 it is refused
                (the standard library calls nothing then, and returns a list of None).
            progress: True shows how far it is (by tqdm, where it is installed), or a callable like tqdm's:
                called with total=len(iterable), it gives an object with update(n) and close().

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
            iterable: read in a thread of its own, four tasks a worker ahead of what is done.
            chunksize: items that a worker takes at one go.
            buffersize: tasks whose results were not asked for yet: the iterable is read only so far ahead, until
                the pool is closed. Once the iterator is dropped, no more of it is read.
            progress: as for `map`; counts the results that were asked for.
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
        """Like `imap`, but results come as soon as they are there."""
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

    # ---- its workers

    def resize(self, processes: int) -> None:
        """Changes the number of workers while they work. Surplus workers leave after their task.

        With devices they are shared out evenly, whatever the pool was made with: the first devices have one more.

        Raises:
            ValueError: below 1 (a device), or more than there is room for (32, or as many as the pool was made with).

        >>> import cableway as cw
        >>> with cw.Pool(1) as pool:
        ...     pool.resize(2)
        ...     pool
        <cableway.Pool state=RUN pool_size=2>
        """
        self._engine.check_running()
        self._engine.resize(processes)

    def stats(self) -> dict[str, Any]:
        """What was done so far: tasks, seconds, bytes_in and bytes_out in all, and the same for each of "workers", and
        with devices also for each of "devices". "lent" is, with devices, how many arrays of PyTorch's and CuPy's went
        "shared", without a copy, and how many "copied".

        Seconds are those in which tasks ran; bytes are those of arguments and results as they were sent, an `Out` with the
        results.
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
        """Waits for the workers to end. ValueError before close() or terminate()."""
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
        """How many workers there shall be."""
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
