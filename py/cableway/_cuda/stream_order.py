"""GPU work in order: `Array.writing`, `Array.reading`, `Array.wait`, and `work` for several arrays at once.

Inside such a `with` block, the stream waits for the last write (a writer also for all reads under way), in whichever process, and
the next user waits for the stream. The CPU waits only if that work is not submitted yet, for default streams, and if four streams of
this process wait already. For arrays in host memory nothing happens.

Such a `with` block is a *section*. The GPU does the section's work later, and the process that wrote the data that it reads may die
until then. So `with y.reading() as r:` gives the section itself. `r.wait()`, after the `with`, waits until the work is done, and
raises `ProducerDied` if the data that it used was not complete.

A stream is given by its number (a CUstream), or by an object of CuPy, PyTorch, Numba or any other with `__cuda_stream__`. Without
one, it is the current stream of the library that this process uses.
"""

from __future__ import annotations

import errno
import sys
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cableway._core.arrays import is_array
from cableway._core.deadlines import deadline, left_ns
from cableway._core.leases import usable
from cableway._core.library import check, ffi, lib
from cableway.errors import Timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cableway._core.leases import Lease
    from cableway.array import Array

__all__ = [
    "Reading",
    "Section",
    "Work",
    "Writing",
    "begun",
    "marks",
    "stream_number",
    "wait",
    "work",
]

_DEFAULT = 1  # CU_STREAM_LEGACY
_SLICE_NS = 500_000_000
_CELL, _WORK_CELL, _STREAM = ffi.typeof("int *"), ffi.typeof("cw_work **"), ffi.typeof("void *")
_COMPLETION = ffi.typeof("cw_completion *")


class _Mark:
    """That one `with` was begun; a mark is equal to no other."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def put(self, lease: Lease) -> None:
        """Whoever views that memory follows its stream."""
        _open.setdefault(lease, []).append(self)

    def take(self, lease: Lease) -> None:
        """Not any more. May be repeated."""
        marks = _open.get(lease)
        if marks is not None and self in marks:
            marks.remove(self)


# What was begun, by what it works on: whoever views it inside the `with` follows these streams.
_open: weakref.WeakKeyDictionary[Lease, list[_Mark]] = weakref.WeakKeyDictionary()


def marks() -> dict[weakref.ref[Lease], list[Any]]:
    """What is begun, as it changes: an array with an empty list, or none, has no work of a `with`."""
    found: dict[weakref.ref[Lease], list[Any]] = vars(_open)["data"]
    return found


def begun(lease: Lease) -> int | None:
    """The stream that works on memory of ours inside a `with` of this process; None if there is none."""
    marks = _open.get(lease)
    return marks[-1].number or _DEFAULT if marks else None


def _of_cupy(module: Any) -> int | None:
    return int(module.cuda.get_current_stream().ptr)


def _of_torch(module: Any) -> int | None:
    if not module.cuda.is_available() or not module.cuda.is_initialized():
        return None
    return int(module.cuda.current_stream().cuda_stream)


# Numba and JAX have no current stream that one could ask for: Numba launches on the default stream unless told, JAX
# on streams of its own, whose results are complete when it hands them out.
_ASKED: dict[str, Callable[[Any], int | None]] = {"cupy": _of_cupy, "torch": _of_torch}


def _current() -> int:
    found: dict[str, int] = {}
    for name, ask in _ASKED.items():
        module = sys.modules.get(name)
        number = ask(module) if module is not None else None
        if number is not None:
            found[name] = number or _DEFAULT
    if len(set(found.values())) > 1:
        told = ", ".join(f"{name} {number:#x}" for name, number in found.items())
        raise ValueError(
            f"the libraries of this process have different current streams ({told}); say which one with stream="
        )
    return next(iter(found.values()), _DEFAULT)


def stream_number(stream: Any) -> int:
    """The CUstream of whatever tells a stream; None for the current one.

    Raises:
        TypeError: it tells none.
        ValueError: CuPy and PyTorch are both in use, with different current streams.
    """
    if stream is None:
        return _current()
    if isinstance(stream, int):
        return stream
    told = getattr(stream, "__cuda_stream__", None)
    if told is not None:
        return int((told() if callable(told) else told)[1])
    for name in ("ptr", "cuda_stream", "handle"):  # CuPy, PyTorch, Numba and PyCUDA
        number = getattr(stream, name, None)
        if number is not None:
            return int(getattr(number, "value", number) or 0)
    raise TypeError(f"stream is a number or a stream of a GPU library, not {type(stream).__name__}")


def _until_timeout(call: Callable[[int], int], timeout: float | None) -> None:
    """Repeats a call that signals end, with the time that is left."""
    end = deadline(timeout)
    while True:
        status = call(left_ns(end))
        if status != -errno.EINTR:
            check(status)
            return


def _wait(call: Callable[[int], int], timeout: float | None) -> None:
    """The same for a wait, which may be begun again at any time: so no signal is left unserved for longer than a slice of it,
    though it came when the library did not sleep, or to another thread.
    """
    end = deadline(timeout)
    while True:
        left = left_ns(end)
        last = 0 <= left <= _SLICE_NS
        status = call(left if last else _SLICE_NS)
        if status == -errno.ETIMEDOUT and last:
            raise Timeout(f"the work on the array did not come to an end in {timeout:.3f} s")
        if status not in (-errno.EINTR, -errno.ETIMEDOUT):
            check(status)
            return


class Section:
    """What `Array.reading`, `Array.writing` and `cableway.work` return, for a `with`."""

    __slots__ = ("_begun", "_cell", "_completion")

    def __init__(self, cell: Any) -> None:
        self._cell = cell  # in which the library notes what is begun
        self._completion = ffi.new(_COMPLETION)  # of the last end
        self._begun = False

    def _client(self) -> Any:
        """The `cw_client *` of its arrays; NULL where there are none."""
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> None:
        """Waits on the CPU until the work that the stream was given in this `with` is done. Call it after the `with`.

        When it returns, that work was built on complete data: everything that the stream had been made to wait for by then, in
        whichever process, was complete. When it raises `ProducerDied` the work is done as well, but what it computed
        is no good. It may be called again, by any thread. On host arrays it returns at once.

        Args:
            timeout: seconds; None for ever.

        Raises:
            ProducerDied: a process died before its work, which this one came after, was complete.
            DeviceError: this process's context on that GPU is broken, and the work will never be done.
            Timeout: it is not done yet.
            ValueError: the `with` was not begun, or has not ended.
            BrokerLost: it is not done yet, and without a broker nobody would tell of a death.

        >>> import cableway as cw
        >>> y = cw.zeros(3)
        >>> with y.reading() as r:      # on a GPU: a kernel that reads y is submitted here
        ...     pass
        >>> r.wait()
        """
        if self._cell[0]:
            raise ValueError("the work would wait for itself: call wait() after the `with`")
        if not self._begun:
            raise ValueError("nothing was begun here: call wait() after the `with`")
        client = self._client()
        if client:
            _wait(
                lambda left_ns: int(lib.cw_completion_wait(client, self._completion, left_ns)),
                timeout,
            )


class _Use(Section):
    """Work on an array by one stream, from `with` to its end. Wherever a signal's handler raises, also as the `with` begins
    or ends: what was begun is ended, at the latest when this object goes.
    """

    __slots__ = (
        "_array",
        "_lease",
        "_mark",
        "_pointer",
        "_stream",
        "_timeout",
        "_whole",
        "_writes",
    )

    def __init__(
        self, array: Array, stream: Any, timeout: float | None, writes: bool, whole: bool
    ) -> None:
        super().__init__(ffi.new(_CELL))  # whether it was begun, as the library notes it
        self._array = array
        self._lease = array._open_lease()
        self._pointer = usable(self._lease)
        self._mark = _Mark(stream_number(stream) if array._on_gpu() else 0)
        self._stream = ffi.cast(_STREAM, self._mark.number)
        self._timeout = timeout
        self._writes = int(writes)
        self._whole = int(whole)

    def _begin(self, left_ns: int) -> int:
        status = lib.cwpy_use_begin(self._pointer, self._stream, left_ns, self._writes, self._cell)
        return int(status)

    def _end(self, whole: int) -> int:
        self._mark.take(self._lease)
        status = lib.cwpy_use_end(
            self._pointer, self._stream, self._writes, whole, self._cell, self._completion
        )
        return int(status)

    def _client(self) -> Any:
        return lib.cw_array_client(self._pointer)

    def __enter__(self) -> _Use:
        if self._cell[0]:
            raise ValueError("this was begun already; end it first, or make another")
        self._array._open_lease()
        self._begun = False
        try:
            _until_timeout(self._begin, self._timeout)
            self._begun = True
            self._mark.put(self._lease)
        except BaseException:
            self._end(0)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._cell[0]:
            raise ValueError("nothing was begun here, or it has ended")
        status = self._end(self._whole)
        if kind is None:
            check(status)

    def __del__(self) -> None:
        try:
            if self._cell[0]:
                self._end(0)
        except AttributeError:
            pass  # it was interrupted as it was made


class Reading(_Use):
    """`Array.reading`."""

    __slots__ = ()

    def __init__(self, array: Array, stream: Any, timeout: float | None) -> None:
        super().__init__(array, stream, timeout, False, False)


class Writing(_Use):
    """`Array.writing`."""

    __slots__ = ()

    def __init__(self, array: Array, stream: Any, timeout: float | None, whole: bool) -> None:
        super().__init__(array, stream, timeout, True, whole)


def _listed(given: Array | Iterable[Array]) -> list[Array]:
    return [given] if is_array(given) else list(given)


class Work(Section):
    """What `work` returns."""

    __slots__ = (
        "_kept",
        "_leases",
        "_mark",
        "_stream",
        "_timeout",
        "_uses",
    )

    def __init__(
        self,
        reads: list[Array],
        writes: list[Array],
        stream: Any,
        timeout: float | None,
        whole: bool,
    ) -> None:
        super().__init__(ffi.new(_WORK_CELL))  # what was begun, as the library notes it
        given, written = reads + writes, len(reads)
        # All that is in uses stays until this goes, though an array is closed.
        self._kept = leases = [array._open_lease() for array in given]
        self._uses = uses = ffi.new("cw_use[]", len(given) or 1)
        for i, lease in enumerate(leases):
            use = uses[i]
            use.array = usable(lease)
            if i >= written:
                use.writing, use.whole = 1, whole
        self._leases = [leases[i] for i, array in enumerate(given) if array._on_gpu()]
        self._mark = _Mark(stream_number(stream) if self._leases else 0)
        self._stream = ffi.cast(_STREAM, self._mark.number)
        self._timeout = timeout

    def _begin(self, left_ns: int) -> int:
        return int(
            lib.cw_work_begin(self._uses, len(self._kept), self._stream, left_ns, self._cell)
        )

    def _end(self) -> int:
        for lease in self._leases:
            self._mark.take(lease)
        return int(lib.cwpy_work_end(self._cell, self._completion))

    def _client(self) -> Any:
        return lib.cw_array_client(self._kept[0].pointer) if self._leases else ffi.NULL

    def __enter__(self) -> Work:
        if self._cell[0]:
            raise ValueError("this work was begun already; end it first, or make another")
        self._begun = False
        try:
            _until_timeout(self._begin, self._timeout)
            self._begun = True
            for lease in self._leases:
                self._mark.put(lease)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        status = self._end()
        if kind is None:
            check(status)

    def __del__(self) -> None:
        try:
            if self._cell[0]:
                self._end()
        except AttributeError:
            pass  # it was interrupted as it was made


def work(
    stream: Any = None,
    *,
    reads: Array | Iterable[Array] = (),
    writes: Array | Iterable[Array] = (),
    timeout: float | None = None,
    whole: bool = False,
) -> Work:
    """In this `with` a GPU stream may be given work that reads and writes several arrays, in order with all others' work.

    For each array it means what `Array.reading` and `Array.writing` mean. Together they cost the GPU one wait and one signal
    instead of two for each array, and two processes that begin on the same arrays, in whatever order, never deadlock. An
    array that is given twice, or in parts, counts as written if one of them is. For host arrays nothing happens. It can be
    entered again and again, one after the other.

    Args:
        stream: a number or a stream of a GPU library; None for the current one.
        reads: an array or several, of one client.
        writes: the same.
        timeout: seconds that the CPU waits at most, where it has to; None for ever. Then `Timeout`, and nothing was begun.
        whole: every element of what is written is, so that it does not matter if the last writer died.

    Returns:
        Work: a section. After the `with`, its `wait()` means that the work is done and was built on complete data, or `ProducerDied`.

    Raises:
        ProducerDied: a process died before its work, which this one builds on, was complete: by the begin, by the end where it is
            known by then, or by the section's `wait`.
        DeviceError: this process's context on that GPU is broken.

    >>> import cableway as cw
    >>> a, b = cw.zeros(3), cw.zeros(3)
    >>> with cw.work(reads=a, writes=[b]):
    ...     b[...] = a
    """
    return Work(_listed(reads), _listed(writes), stream, timeout, whole)


def wait(array: Array, timeout: float | None = None) -> None:
    """`Array.wait`."""
    lease = array._open_lease()  # kept: a thread may close the array
    pointer = usable(lease)
    _wait(lambda left_ns: int(lib.cw_array_wait(pointer, left_ns)), timeout)
