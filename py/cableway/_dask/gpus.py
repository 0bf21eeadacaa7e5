"""Which GPUs this process can use, and blocks of GPU memory: one large frame of a message each.

Invariant: a block is written once, and that copy is complete before its handle is told to anybody; then it is never written again. What
a reader gets is a copy in memory of its own, which its own library allocates: GPU memory knows no copy-on-write and no read-only
mapping, so a view would show a task's writes to everybody. Where the user has said that no task writes (`settings.shares`), workers
get views, and a frame that lies in memory of the broker already is its own block: then nothing is copied within a GPU.

Order: before a frame is copied into a block, all work of this process on its GPU is waited for, whatever stream it was given to; before a
block is copied into new memory, the work of the default stream is, which may still use that memory for what lay there before. Both
copies are complete when their call returns. A kernel may still read a view when its last array goes. So its lease goes into a list, and
ends with the next `collect`, which first waits for all work of this process on that GPU: a worker calls it every 2 s.

Deaths: as of blocks in host memory (`blocks`): a lease ends with its process, the memory with the last lease. A reader that is killed in
the midst of its copy ends its lease; a maker that is killed leaves the block to the reader that has opened it.
"""

from __future__ import annotations

import collections
import logging
import os
import sys
import threading
from typing import Any

from cableway import client
from cableway._core.byte_blocks import slab_of
from cableway._core.leases import Lease, lease_again
from cableway._core.library import check, check_again, exported, ffi, lib
from cableway._cuda import interop, suballocation
from cableway._cuda.interop import ExternalArray
from cableway._dask import blocks
from cableway.device import devices
from cableway.errors import Error, LimitExceeded

__all__ = [
    "LIBRARIES",
    "GpuBlock",
    "collect",
    "copied",
    "empty",
    "lent",
    "library",
    "look",
    "maps",
    "must_look",
    "received",
    "seen",
    "used",
    "view",
    "viewed",
]

logger = logging.getLogger("cableway.dask")

LIBRARIES = frozenset({"cupy", "cupyx", "numba"})  # whose arrays go by handle
_LEGACY_STREAM = 1

_lock = threading.Lock()
_used = False
_seen: list[str] | None = None  # UUIDs by the process's numbers; None: not looked yet
_unused: collections.deque[Lease] = (
    collections.deque()
)  # of views that are gone, with which a kernel may be at work yet
# Slabs of which this process has had views, with the number of their GPU: to open another block there takes microseconds. It may have
# been unmapped since; then it takes some milliseconds.
_mapped: dict[tuple[int, int], int] = {}


def _after_fork_in_child() -> None:
    global _lock, _seen
    _lock = threading.Lock()
    _seen = None
    _mapped.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def library() -> str | None:
    """The library in which arrays arrive, if this process has imported one."""
    return next((name for name in ("cupy", "numba.cuda") if name in sys.modules), None)


def must_look() -> bool:
    """Whether a library of GPU arrays was imported, and nobody has looked which GPUs are there."""
    return _seen is None and library() is not None


def look() -> None:
    """Finds out which GPUs this process sees. Opens the driver, which may take a second where nobody has done so; takes no GPU memory."""
    global _seen
    with _lock:
        if _seen is not None or library() is None:
            return
        try:
            found = []
            for name in devices()[1:]:
                told = ffi.new("cw_device_place *")
                check(lib.cw_device_place_of(name.encode(), told))
                found.append(str(ffi.string(told.uuid), "ascii"))
        except Error as error:
            logger.info("arrays on GPUs are sent as bytes: %s", error)
            found = []
        _seen = found


def seen() -> list[str]:
    """The UUIDs of the GPUs whose memory this process can open; none before `look`. Never blocks."""
    return _seen or []


def used() -> bool:
    """Whether this process has made or opened a block: then there may be memory to be given back."""
    return _used


def collect() -> None:
    """Takes back the memory of blocks that all have let go of, and unmaps what others took back. Waits for the broker, and for the GPU
    if views are gone.
    """
    leases = []
    while _unused:
        try:
            leases.append(_unused.popleft())
        except IndexError:  # another thread was quicker
            break
    for gpu in {lease.gpu for lease in leases}:
        lib.cw_stream_wait(gpu, ffi.NULL, 1)  # if its context failed, nothing runs any more
    leases.clear()
    suballocation.collect()
    connection = client.known()
    if connection is not None and not connection.closed:
        lib.cw_collect(connection.pointer)  # without a broker nothing comes back


class _View:
    """The memory of a block, as GPU libraries take it; what they make of it keeps this."""

    __slots__ = ("lease", "nbytes")

    def __init__(self, lease: Lease, nbytes: int) -> None:
        self.lease = lease
        self.nbytes = nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.lease.address, False),
            "strides": None,
            "stream": None,
        }

    def __del__(self, unused: collections.deque[Lease] = _unused) -> None:
        unused.append(self.lease)  # may run at any place, in any thread


class GpuBlock:
    """One frame in GPU memory of the broker.

    Attributes:
        handle: names it for other processes of the broker, as long as one of them holds it.
        lease: this process's.
        nbytes: of the frame.
        uuid: of the GPU.
    """

    __slots__ = ("handle", "lease", "nbytes", "uuid")

    def __init__(self, handle: bytes, lease: Lease, nbytes: int, uuid: str) -> None:
        self.handle = handle
        self.lease = lease
        self.nbytes = nbytes
        self.uuid = uuid


def lent(frame: Any) -> GpuBlock | None:
    """The block that the frame is, without a copy. None: it does not lie in memory of the broker, is a part of a block, or was opened
    read-only (or is sealed), so that readers could not have it as their own. Waits for the GPU.

    Args:
        frame: as `copied` takes it.

    Raises:
        BrokerLost, DeviceError: as `copied`.
    """
    global _used
    source = ExternalArray(frame, frame.__cuda_array_interface__)
    if not interop.is_shared(source.low):
        return None
    lease = interop.find(source.low) or suballocation.lend(source, insist=False)
    if lease is None or lease.readonly or lease.span() != (source.low, source.layout.nbytes):
        return None
    _used = True
    check_again(lib.cw_stream_wait, source.gpu, ffi.NULL, 1)
    return _block(lease, source.layout.nbytes)


def copied(connection: client.Connection, frame: Any, readers: int) -> GpuBlock:
    """A new block, on the GPU where the frame lies, with a copy of it. Waits for the GPU.

    Args:
        frame: contiguous bytes with `__cuda_array_interface__`, at least one.
        readers: so many copies of it must have room there besides.

    Raises:
        LimitExceeded: not enough GPU memory is free for the block and the readers' copies, or a limit of the broker.
        BrokerLost: the broker is gone.
        DeviceError: the GPU, or its context in this process, does not work.
    """
    global _used
    source = ExternalArray(frame, frame.__cuda_array_interface__)
    device, nbytes = f"cuda:{source.gpu}".encode(), source.layout.nbytes
    layout = blocks.bytes_layout(nbytes).c
    needed = (1 + readers) * nbytes
    if _free_bytes(device) < needed and not (
        _library_gave_back() and _free_bytes(device) >= needed
    ):
        raise LimitExceeded(
            f"{device.decode()} has too little free memory for {nbytes} bytes to be copied, for others and by {readers} of them there"
        )
    lease = lease_again(Lease, lib.cw_array_new, connection.pointer, device, layout, 0)
    _used = True
    check_again(lib.cw_stream_wait, source.gpu, ffi.NULL, 1)
    address = ffi.cast("void *", source.address)
    check_again(lib.cw_array_copy_in, lease.pointer, 0, address, source.gpu, nbytes, ffi.NULL)
    return _block(lease, nbytes)


def _block(lease: Lease, nbytes: int) -> GpuBlock:
    handle = bytes(ffi.buffer(exported(lease.pointer, 0)))
    return GpuBlock(handle, lease, nbytes, interop.uuid(lease))


def _free_bytes(device: bytes) -> int:
    told = ffi.new("cw_device_info *")
    check(lib.cw_device_stat(device, told))
    return int(told.free_bytes)


def _library_gave_back() -> bool:
    """CuPy keeps freed memory for its next arrays, where the broker cannot have it."""
    cupy = sys.modules.get("cupy")
    pool = getattr(cupy, "get_default_memory_pool", None)
    if pool is None:
        return False
    pool().free_all_blocks()
    return True


def received(connection: client.Connection, handle: bytes, nbytes: int) -> Any:
    """A copy of another process's block, in memory that this process's library allocates on its current GPU. Waits for the GPU.

    Returns:
        An array of bytes, of CuPy or else of Numba.

    Raises:
        Stale: nobody holds the block any more.
        BrokerLost: the broker is gone.
        DeviceError: the GPU, or its context in this process, does not work.
        Error: the handle is malformed.
        MemoryError: of the library.
    """
    global _used
    lease = blocks.leased(connection, handle, nbytes)
    _used = True
    made = empty(nbytes)
    target = ExternalArray(made, made.__cuda_array_interface__)
    stream = ffi.cast("void *", _LEGACY_STREAM)
    check_again(lib.cw_stream_wait, target.gpu, stream, 0)
    address = ffi.cast("void *", target.address)
    check_again(lib.cw_array_copy_out, lease.pointer, 0, address, target.gpu, nbytes, ffi.NULL)
    lease.end()
    return made


def view(lease: Lease, nbytes: int) -> Any:
    """The memory of a block itself, as an array of bytes of this process's library. It holds the block."""
    if "cupy" in sys.modules:
        return sys.modules["cupy"].asarray(_View(lease, nbytes))
    import numba.cuda

    return numba.cuda.as_cuda_array(_View(lease, nbytes))


def viewed(connection: client.Connection, handle: bytes, nbytes: int) -> Any | None:
    """A view of another process's block. None: it lies on another GPU than this process's library has as its current one. Raises as
    `received`.

    It is writable: a kernel that writes to a read-only mapping breaks the process's context on the GPU.
    """
    global _used
    lease = blocks.leased(connection, handle, nbytes, flags=0)
    _used = True
    if lease.gpu != _current_gpu():
        return None
    _mapped[slab_of(handle)] = lease.gpu
    return view(lease, nbytes)


def maps(handle: bytes) -> bool:
    """Whether `viewed` gives a view of the block behind a handle, and at once."""
    try:
        gpu = _mapped.get(slab_of(handle))
    except Error:
        return False  # malformed: who opens it says so
    return gpu is not None and gpu == _current_gpu()


def _current_gpu() -> int:
    if "cupy" in sys.modules:
        return int(sys.modules["cupy"].cuda.Device().id)
    import numba.cuda

    return int(numba.cuda.get_current_device().id)


def empty(nbytes: int) -> Any:
    """New memory of this process's library, as an array of bytes."""
    if "cupy" in sys.modules:
        return sys.modules["cupy"].empty(nbytes, "u1")
    import numba.cuda

    return numba.cuda.device_array(nbytes, "u1")
