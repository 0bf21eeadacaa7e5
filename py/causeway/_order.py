"""Work of GPU streams in order: `Array.writing`, `Array.reading`, `Array.wait`, and `work` for several arrays at once.

A stream that is given work inside such a `with` waits for the last write (a writer also for the reads under way), in
whichever process, and the next user waits for it. The CPU waits only where that work is not submitted yet, for default
streams, and when four streams of this process wait already. On the host nothing happens.

A stream is told by its number (a CUstream), by an object of CuPy, PyTorch, Numba or whatever has `__cuda_stream__`,
or not at all: then it is the current one of the library that this process uses.
"""

from __future__ import annotations

import errno
import math
import sys
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from causeway import array as arrays
from causeway._lib import check, ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from causeway.array import Array
    from causeway.views import Lease

__all__ = ["Reading", "Work", "Writing", "begun", "stream_number", "wait", "work"]

_DEFAULT = 1  # CU_STREAM_LEGACY


# Streams that were begun on, by what they work on: whoever views it inside the `with` follows these.
_open: weakref.WeakKeyDictionary[Lease, list[int]] = weakref.WeakKeyDictionary()


def begun(lease: Lease) -> int | None:
    """The stream that works on memory of ours inside a `with` of this process; None if there is none."""
    numbers = _open.get(lease)
    return numbers[-1] or _DEFAULT if numbers else None


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
            f"the libraries of this process have different current streams ({told}); give stream="
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


def _patiently(
    call: Callable[[int], int], timeout: float | None, undo: Callable[[], object] | None = None
) -> None:
    """Repeats a call that signals end, with the time that is left.

    Args:
        undo: takes back what the call may have done, if a signal's handler raises when it returns.
    """
    end = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        try:
            status = call(-1 if left > 1e9 else max(0, int(left * 1e9)))
        except BaseException:
            if undo is not None:
                undo()
            raise
        if status != -errno.EINTR:
            check(status)
            return


class _Use:
    """Work on an array by one stream, from `with` to its end."""

    __slots__ = ("_array", "_lease", "_number", "_pointer", "_stream", "_timeout")

    def __init__(self, array: Array, stream: Any, timeout: float | None) -> None:
        self._array = array
        self._pointer = arrays.usable(array._open_lease())
        self._number = stream_number(stream) if array._on_gpu() else 0
        self._lease: Lease | None = None
        self._stream = ffi.cast("void *", self._number)
        self._timeout = timeout

    def _begin(self, left_ns: int) -> int:
        raise NotImplementedError

    def _end(self) -> int:
        raise NotImplementedError

    def __enter__(self) -> Array:
        lease = self._array._open_lease()
        # What was begun before on the same stream is not to be ended for it.
        alone = self._number not in _open.get(lease, ())
        _patiently(self._begin, self._timeout, self._end if alone else None)
        self._lease = lease
        _open.setdefault(lease, []).append(self._number)
        return self._array

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lease is not None:
            _open[self._lease].remove(self._number)
            self._lease = None
        status = self._end()
        if kind is None:
            check(status)


class Reading(_Use):
    """`Array.reading`."""

    __slots__ = ()

    def _begin(self, left_ns: int) -> int:
        return int(lib.cw_array_reading_begin(self._pointer, self._stream, left_ns))

    def _end(self) -> int:
        return int(lib.cw_array_reading_end(self._pointer, self._stream))


class Writing(_Use):
    """`Array.writing`."""

    __slots__ = ("_whole",)

    def __init__(self, array: Array, stream: Any, timeout: float | None, whole: bool) -> None:
        super().__init__(array, stream, timeout)
        self._whole = whole

    def _begin(self, left_ns: int) -> int:
        return int(lib.cw_array_writing_begin(self._pointer, self._stream, left_ns))

    def _end(self) -> int:
        return int(lib.cw_array_writing_end(self._pointer, self._stream, int(self._whole)))


def _listed(given: Array | Iterable[Array]) -> list[Array]:
    return [given] if isinstance(given, arrays.Array) else list(given)


class Work:
    """What `work` returns."""

    __slots__ = (
        "_arrays",
        "_leases",
        "_number",
        "_open",
        "_out",
        "_pointers",
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
        self._arrays = reads + writes
        self._uses = ffi.new("cw_use[]", len(self._arrays) or 1)
        for i, array in enumerate(self._arrays):
            self._uses[i].array = arrays.usable(array._open_lease())
            self._uses[i].writing = i >= len(reads)
            self._uses[i].whole = i >= len(reads) and whole
        self._leases = [array._open_lease() for array in self._arrays if array._on_gpu()]
        self._number = stream_number(stream) if self._leases else 0
        self._stream = ffi.cast("void *", self._number)
        self._timeout = timeout
        self._out = ffi.new("cw_work **")
        self._open = False

    def _begin(self, left_ns: int) -> int:
        return int(
            lib.cw_work_begin(self._uses, len(self._arrays), self._stream, left_ns, self._out)
        )

    def _end(self) -> int:
        return int(lib.cw_work_end(self._out[0]))

    def __enter__(self) -> Work:
        if self._open:
            raise ValueError("this work was begun already; end it first, or make another")
        self._out[0] = ffi.NULL
        _patiently(self._begin, self._timeout, self._end)
        self._open = True
        for lease in self._leases:
            _open.setdefault(lease, []).append(self._number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for lease in self._leases:
            _open[lease].remove(self._number)
        self._open = False
        status = self._end()
        if kind is None:
            check(status)


def work(
    stream: Any = None,
    *,
    reads: Array | Iterable[Array] = (),
    writes: Array | Iterable[Array] = (),
    timeout: float | None = None,
    whole: bool = False,
) -> Work:
    """In this `with` a GPU stream may be given work that reads and writes several arrays, in order with all others' work.

    What it means for each array is what `Array.reading` and `Array.writing` mean. Together they cost the GPU one wait
    and one value instead of two for each array, and two processes that begin on the same arrays, in whatever order,
    never wait for each other in a circle. Of an array that is given twice, or in parts, writing counts. Host arrays may
    be among them: for these nothing happens. It can be entered again and again, one after the other.

    Args:
        stream: a number or a stream of a GPU library; None for the current one.
        reads: an array or several, of one client.
        writes: the same.
        timeout: seconds that the CPU waits at most, where it has to; None for ever. Then `Timeout`, and nothing was begun.
        whole: every element of what is written is, so that it does not matter if the last writer died.

    Raises:
        ProducerDied: somebody on whose work this one builds died before it was complete.
        DeviceError: this process's context on that GPU is broken.

    >>> import causeway as cw
    >>> a, b = cw.zeros(3), cw.zeros(3)
    >>> with cw.work(reads=a, writes=[b]):
    ...     b[...] = a
    """
    return Work(_listed(reads), _listed(writes), stream, timeout, whole)


def wait(array: Array, timeout: float | None = None) -> None:
    """`Array.wait`."""
    pointer = arrays.usable(array._open_lease())
    _patiently(lambda left_ns: int(lib.cw_array_wait(pointer, left_ns)), timeout)
