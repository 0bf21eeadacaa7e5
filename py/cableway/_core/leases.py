"""Views: NumPy arrays over memory of ours, and the lease that each of them keeps.

Invariant: every view ends its chain of `base` at a `Lease`. The lease on the memory ends when the last of them
is gone, whatever was closed before.
"""

from __future__ import annotations

import errno
import functools
import gc
import mmap
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from cableway import _dispatch, client
from cableway._core import idle_memory, words
from cableway._core.library import check, check_again, ffi, keeping, lib
from cableway.errors import LimitExceeded

__all__ = [
    "EvictableLease",
    "FixedLease",
    "Lease",
    "Pin",
    "bounds",
    "check_basic",
    "clear_of",
    "copy_values",
    "find",
    "has_masked",
    "is_basic",
    "lease_again",
    "lease_of_handle",
    "lease_once",
    "lease_served",
    "opened",
    "shared_memory_of",
    "show",
    "usable",
]


_Cell, _cast, _ARRAY, _CELL = (
    _dispatch.LeaseCell,
    ffi.cast,
    ffi.typeof("cw_array *"),
    ffi.typeof("cw_array **"),
)


class Lease:
    """One lease on one array, mapped: owns the `cw_array *` in its cell (extra.h). It is there before a call makes or opens
    the array, and ends without a line of Python, so that no exception that a signal's handler raises comes between.

    Attributes:
        cell: owns the array, once such a call has put it there.
        pointer: that array; only once it is there. Made when it is first looked at, which most that are only held never are.
    """

    __slots__ = ("__weakref__", "cell", "pointer")

    def __init__(self) -> None:
        self.cell = _Cell()

    def __getattr__(self, name: str) -> Any:
        address = self.cell.array() if name == "pointer" else 0
        if not address:
            raise AttributeError(f"a lease has no {name}" + " yet" * (name == "pointer"))
        self.pointer = _cast(_ARRAY, address)
        return self.pointer

    @property
    def out(self) -> Any:
        """The `cw_array **` of the cell, where a call puts the array; good as long as the cell is there."""
        return _cast(_CELL, self.cell.address())

    def opened(self) -> None:
        """The array is there: what a kind of its own has to do then."""

    def end(self) -> None:
        """Ends it now, though views may stand on it. May be repeated."""
        self.cell.end()

    @property
    def readonly(self) -> bool:
        """Whether it must not be written: a write is a SIGSEGV, unless this process had a writable array there, see `get`."""
        return bool(lib.cw_array_readonly(self.pointer))

    @property
    def gpu(self) -> int:
        """The number of the GPU where it lies, -1 for host memory."""
        return int(lib.cw_array_gpu(self.pointer))

    def span(self) -> tuple[int, int]:
        """The address of the lowest byte in this process, and the bytes from there to behind the highest one."""
        nbytes = ffi.new("uint64_t *")
        low = lib.cwpy_memory(self.pointer, nbytes)
        return int(ffi.cast("uintptr_t", low)), nbytes[0]

    @property
    def address(self) -> int:
        """The address of the lowest byte in this process."""
        return self.span()[0]

    @property
    def __array_interface__(self) -> dict[str, Any]:
        address, nbytes = self.span()
        return {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, self.readonly),
        }

    def memory(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """All the bytes, as a view that keeps this lease. NumPy cannot make it writable if it is read-only.

        Of GPU memory it holds nothing that the CPU may follow: it serves to compute with shapes and addresses.
        """
        return np.asarray(self)


def usable(lease: Lease) -> Any:
    """The `cw_array *`, after taking a lease of this process's own if it came over a fork."""
    pointer = lease.pointer
    if lib.cw_array_inherited(pointer):
        check_again(lib.cw_array_renew, pointer, client.current().pointer)
    return pointer


# Where an evictable array seems to lie for whoever computes with its shape: its memory moves.
_NOWHERE = 1 << 20


class EvictableLease(Lease):
    """One lease on a GPU array that may go to host memory while nobody uses it: `Lease.span` holds only while it is
    pinned.
    """

    __slots__ = ("_lent",)

    @property
    def address(self) -> int:
        """A number to compute offsets from, always the same."""
        return _NOWHERE

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": (self.span()[1],),
            "typestr": "|u1",
            "data": (_NOWHERE, False),
        }

    def __init__(self) -> None:
        super().__init__()
        self._lent: Any = None

    def lend(self) -> None:
        """Its address is given to somebody who cannot say when it is done: from now on it stays where it is."""
        if self._lent is None:
            self._lent = _pinned(self)


class FixedLease(Lease):
    """One lease on a part of a tree whose memory may be exchanged, or be away, while its address stays."""

    __slots__ = ()

    def check_mapped(self) -> None:
        """Raises ValueError while nothing is mapped there."""
        check(lib.cw_array_pin(self.pointer))
        lib.cw_array_unpin(self.pointer)

    def span(self) -> tuple[int, int]:
        """As `Lease.span`, of memory that is there."""
        self.check_mapped()
        return super().span()


def _pinned(lease: Lease) -> Any:
    """What keeps an evictable array where it is as long as it is there."""
    array = keeping(lease.out, lease.cell)
    cell = ffi.gc(ffi.new("int *"), functools.partial(lib.cwpy_unpin, array))
    check_again(lib.cwpy_pin, lease.pointer, cell)
    return cell


class Pin:
    """Keeps an evictable array where it is, as long as this object lives."""

    __slots__ = ("_cell", "_lease")

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._cell = _pinned(lease)


_Kind = TypeVar("_Kind", bound=Lease)


def lease_once(kind: type[_Kind], call: Callable[..., int], *arguments: Any) -> tuple[int, _Kind]:
    """The status of a call that makes or opens an array, with the cell as its last argument; and the lease on it, if that
    is 0.
    """
    lease = kind()
    try:
        status = call(*arguments, _cast(_CELL, lease.cell.address()))
    except BaseException:
        lease.end()  # at once, and not with the traceback
        raise
    if status == 0:
        lease.opened()
    return status, lease


def lease_served(kind: type[_Kind], call: Callable[..., int], *arguments: Any) -> tuple[int, _Kind]:
    """The same for a call that a signal ends before it did anything: the signal is served, and it is called again."""
    status, lease = lease_once(kind, call, *arguments)
    while status == -errno.EINTR:
        status, lease = lease_once(kind, call, *arguments)
    return status, lease


def lease_again(kind: type[_Kind], call: Callable[..., int], *arguments: Any) -> _Kind:
    """The same, where nothing but a lease will do. Before memory is refused, what is kept idle is given up (`_core.idle_memory`).

    Raises:
        What the status means when it is negative.
    """
    status, lease = lease_served(kind, call, *arguments)
    try:
        check(status)
        return lease
    except LimitExceeded as error:
        refusal = error
    on_gpu = (
        call is lib.cw_array_new and arguments[1] != b"cpu"
    )  # what others keep lies on the host
    for _ in idle_memory.given_up(ask_others=not on_gpu):
        status, lease = lease_served(kind, call, *arguments)
        try:
            check(status)
            return lease
        except LimitExceeded as error:
            refusal = error
    try:
        raise refusal
    finally:
        del refusal  # its traceback holds this frame, and those with all that the caller has made


class _Opened(threading.local):
    """The message that this thread unpickles, whose handles are opened into its cells, in their order."""

    by: Any = (
        None  # has `opened`: of each handle its bytes and its cell; None: it needs none any more
    )
    count = 0  # handles met so far


opened = _Opened()


def lease_of_handle(connection: Any, handle: bytes, layout: Any, flags: int) -> Lease:
    """The lease on what another process has handed on.

    The first opening of a handle ends its transit. So where a message may have to be unpickled again, since a signal's
    handler has interrupted it, its handles are opened into cells that the message keeps: the second time it is there.

    Raises:
        What `cw_array_open` says.
    """
    cells: list[tuple[bytes, Any]] | None = None if opened.by is None else opened.by.opened
    layout_c = layout.c
    if cells is None:
        carried = ffi.from_buffer("cw_handle *", handle)
        return lease_again(Lease, lib.cw_array_open, connection.pointer, carried, layout_c, flags)
    number = opened.count
    opened.count = number + 1
    if number >= len(cells) or cells[number][0] != handle:
        del cells[number:]
        cells.append((handle, _Cell()))
    lease = Lease.__new__(Lease)
    lease.cell = cells[number][1]
    address = int(ffi.cast("uintptr_t", layout_c))
    pointer = connection.pointer  # stays for as long as the call lasts, though a thread closes it
    check(lease.cell.open(connection.number, handle, address, flags, False))
    del pointer
    return lease


def _chain(array: Any) -> Any:
    """What an ndarray's memory belongs to in the end."""
    owner = array
    step: Any
    while True:
        if isinstance(owner, np.ndarray):
            step = owner.base
        elif isinstance(owner, memoryview):
            step = owner.obj
        elif (
            type(owner).__name__ == "_buffer_wrapper"
        ):  # how CPython keeps what __buffer__() returned
            step = next((x for x in gc.get_referents(owner) if isinstance(x, memoryview)), None)
        else:
            return owner
        if step is None:
            return owner
        owner = step


def find(array: np.ndarray[Any, Any]) -> Lease | None:
    """The lease that a NumPy array stands on, None if its memory is not ours."""
    owner = _chain(array)
    if isinstance(owner, Lease):
        return owner
    if isinstance(owner, (np.ndarray, mmap.mmap, bytes, bytearray)) or not array.size:
        return None
    low, high = bounds(array)
    for begin, lease in list(_shown.items()):
        if begin[0] <= low and high <= begin[0] + lease.span()[1]:
            return lease
    return None


# Leases on host memory of which views went out, by address and identity. Where another library has taken such a view (ctypes,
# Arrow, PyTorch, a capsule of DLPack, as_strided), what comes back has its object at the end of the chain, but our address.
# Blocks that a sender uses again are not here: they must not get a name.
_shown: weakref.WeakValueDictionary[tuple[int, int], Lease] = weakref.WeakValueDictionary()


def show(lease: Lease) -> None:
    """A view of its memory goes out."""
    if type(lease) is Lease and lease.gpu < 0:
        _shown[lease.address, id(lease)] = lease


def bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """The addresses of an array's first byte and of the one behind its last."""
    low = high = array.__array_interface__["data"][0]
    if not array.size:
        return low, low
    for n, step in zip(array.shape, array.strides, strict=True):
        low, high = low + min(0, (n - 1) * step), high + max(0, (n - 1) * step)
    return low, high + array.itemsize


def clear_of(target: np.ndarray[Any, Any], source: Any) -> Any:
    """source, or a copy of it where it shares bytes with target under another address.

    What is ours has one address in this process (ipc/memory/mapping.h). Only memory that we took over from a `SharedMemory` has
    two: that object's, and ours.
    """
    if not isinstance(source, np.ndarray) or not isinstance(_chain(source), mmap.mmap):
        return source
    (low, high), (from_low, from_high) = (_file_range(array) for array in (target, source))
    return source.copy() if low < from_high and from_low < high else source


def _file_range(array: np.ndarray[Any, Any]) -> tuple[tuple[str, int], tuple[str, int]]:
    """Where an array's first byte and the one behind its last lie: the file, by device and number, and the offset in it."""
    low, high = bounds(array)
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            span, _, offset, device, number, *_ = line.split(maxsplit=5)
            begin, end = (int(part, 16) for part in span.split("-"))
            if begin <= low < end and int(number):
                at = int(offset, 16) + low - begin
                return (f"{device} {number}", at), (f"{device} {number}", at + high - low)
    return ("", 0), ("", 0)


def shared_memory_of(array: np.ndarray[Any, Any]) -> tuple[str, int] | None:
    """The file in /dev/shm that holds all of an array, and where its memory begins there; else None."""
    low, high = bounds(array)
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            parts = line.rstrip("\n").split(maxsplit=5)
            begin, end = (int(part, 16) for part in parts[0].split("-"))
            if not begin <= low < end:
                continue
            shared = len(parts) == 6 and parts[1].endswith("s") and parts[5].startswith("/dev/shm/")
            if not shared or high > end or parts[5].endswith(" (deleted)"):
                return None
            return parts[5], int(parts[2], 16) + low - begin
    return None


def has_masked(obj: object) -> bool:
    """Whether it is a masked array with elements that are masked. numpy.ma is not imported for that: who has one has it."""
    ma = sys.modules.get("numpy.ma")
    return ma is not None and isinstance(obj, ma.MaskedArray) and bool(ma.is_masked(obj))


def copy_values(
    target: np.ndarray[Any, Any], source: np.ndarray[Any, Any], casting: Any = "same_kind"
) -> None:
    """Copies between arrays of one shape. Of structured dtypes the bytes between the fields come along too, so that
    nothing of what the memory held before is seen there.
    """
    words.check_cast(source.dtype, target.dtype)
    if target.dtype.names is not None and target.dtype == source.dtype and target.itemsize:
        target, source = target.view(f"V{target.itemsize}"), source.view(f"V{source.itemsize}")
    elif words.are_bytes(source.dtype, target.dtype):
        target, source = target.view("u1"), source.view("u1")
    np.copyto(target, source, casting=casting)


def is_basic(part: object) -> bool:
    """Whether it is what a basic index consists of, so that the result is a part of the same memory."""
    if part is None or part is Ellipsis or isinstance(part, (slice, str)):
        return True
    if isinstance(part, bool):
        return False
    return isinstance(part, (int, np.integer)) or (
        hasattr(part, "__index__") and not hasattr(part, "__array__")
    )


def check_basic(part: object, device: str) -> None:
    """Refuses what is no part of a basic index, for an array on a GPU."""
    if not is_basic(part):
        raise TypeError(
            f"a cableway.Array on {device} is indexed by ints, slices, ... and None, not by {type(part).__name__}; "
            "for more than that give it to a GPU library: cupy.asarray(w)[...], torch.from_dlpack(w)[...]"
        )
