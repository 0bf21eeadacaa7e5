"""Blocks: shared memory that holds one large frame of a message each.

Invariant: a block is written once, before anybody else knows of it, and never again. Each process that has it holds a read-only lease,
by which it hands the block on. What a task may write to is a private view (copy-on-write): its writes are seen by nobody else.

Deaths: a lease ends with its process. The memory is freed with the last one, whoever made it. If the broker dies, what is mapped stays
readable, and no handle to it can be opened any more.
"""

from __future__ import annotations

import functools
import queue
import weakref
from typing import Any

import numpy as np
from distributed.utils import ensure_memoryview

from cableway import client
from cableway._core.layouts import Layout
from cableway._core.leases import Lease, lease_again, lease_of_handle
from cableway._core.library import check, check_again, exported, ffi, keeping, lib
from cableway._dispatch import LeaseCell
from cableway.errors import Error

__all__ = [
    "PRIVATE_VIEWS_MAX",
    "Block",
    "bytes_layout",
    "copied",
    "leased",
    "made",
    "opened",
    "unwanted_names",
]

HANDLE_BYTES = 48
PRIVATE_VIEWS_MAX = 16_000  # in a process, which may have 65,530 mappings (vm.max_map_count); beyond, a view is a copy

_made = False
# Names that this process gave to blocks that it holds no more, each with the run of its broker; a thread of `names` removes them. A
# block may go at any moment, in any thread: so no more is done then than to put the name here, which takes no lock of Python's.
unwanted_names: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
_private: dict[int, weakref.ref[Any]] = {}  # the private views that are there


@functools.lru_cache(maxsize=64)
def bytes_layout(nbytes: int) -> Layout:
    """Of so many bytes."""
    return Layout((nbytes,), np.dtype("u1"))


class Block:
    """One frame in shared memory.

    Attributes:
        handle: names it for other processes of the broker, as long as one of them holds it.
        lease: this process's, read-only.
        nbytes: of the frame.
        name: by which other nodes fetch it (`names`); None: by none yet.
        has_name: this process gave it that name, which goes with this object.
    """

    __slots__ = ("handle", "has_name", "instance", "lease", "name", "nbytes")

    def __init__(self, handle: bytes, lease: Lease, nbytes: int, instance: int) -> None:
        self.handle = handle
        self.lease = lease
        self.nbytes = nbytes
        self.instance = instance
        self.name: str | None = None
        self.has_name = False

    def __del__(self) -> None:
        if self.has_name and self.name is not None:
            unwanted_names.put((self.instance, self.name))

    def memory(self) -> memoryview:
        """Its bytes, read-only, without a copy. They stay as long as anybody has this."""
        return np.asarray(self.lease).data

    def view(self, connection: client.Connection, writeable: bool) -> np.ndarray[Any, Any]:
        """Its bytes, without a copy: read-only, or private.

        Raises:
            Error: the private view cannot be made.
        """
        if not writeable:
            return np.asarray(self.lease)
        if len(_private) >= PRIVATE_VIEWS_MAX:
            return np.array(self.lease)
        cell, layout = LeaseCell(), bytes_layout(self.nbytes).c
        number = int(ffi.cast("uintptr_t", layout))
        check(cell.open(connection.number, self.handle, number, lib.CW_PRIVATE, False))
        # A cffi buffer stands between: NumPy must not find the lease, since a private view has no name and no handle.
        memory = ffi.buffer(keeping(ffi.cast("char *", cell.data()), cell), self.nbytes)
        found = np.frombuffer(memory, "u1")
        gone = weakref.ref(found, lambda ref: _private.pop(id(ref), None))
        _private[id(gone)] = gone
        return found


def made() -> bool:
    """Whether this process has made a block: then it may keep memory for the next ones."""
    return _made


def copied(connection: client.Connection, frame: Any) -> Block:
    """A new block with a copy of the frame.

    Raises:
        LimitExceeded: no memory left, or a limit of the broker.
        BrokerLost: the broker is gone.
    """
    global _made
    source = np.frombuffer(ensure_memoryview(frame), "u1")
    layout = bytes_layout(source.nbytes).c
    lease = lease_again(Lease, lib.cw_array_new, connection.pointer, b"cpu", layout, 0)
    address = ffi.cast("void *", source.__array_interface__["data"][0])
    check_again(lib.cw_array_write, lease.pointer, 0, address, source.nbytes)
    _made = True
    handle = bytes(ffi.buffer(exported(lease.pointer, 0)))
    return opened(connection, handle, source.nbytes)  # and the writable lease ends


def leased(
    connection: client.Connection, handle: bytes, nbytes: int, flags: int = lib.CW_READONLY
) -> Lease:
    """A lease on the block behind a handle of another process, of so many bytes.

    Args:
        flags: of `cw_array_open`.

    Raises:
        Stale: nobody holds it any more.
        BrokerLost: the broker is gone.
        Error: the handle is malformed, or of another size.
    """
    if len(handle) != HANDLE_BYTES:
        raise Error(f"a handle has {HANDLE_BYTES} bytes, not {len(handle)}")
    size = ffi.from_buffer("cw_handle *", handle).size_bytes
    if size != nbytes:
        raise Error(f"a message says that a block has {nbytes} bytes, its handle says {size}")
    return lease_of_handle(connection, handle, bytes_layout(nbytes), flags)


def opened(connection: client.Connection, handle: bytes, nbytes: int) -> Block:
    """The block behind a handle of another process. Raises as `leased`."""
    return Block(handle, leased(connection, handle, nbytes), nbytes, connection.instance)
