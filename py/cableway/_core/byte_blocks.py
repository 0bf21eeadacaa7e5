"""Blocks: so many bytes of host memory, by a lease and a handle, and private views of them.

Invariant: what a private view's user writes there is seen by nobody else (copy-on-write). Such a view has no name and no handle: who
looks for the lease behind it finds none. `private_views` has those of this process that are there.

Owner: this process; any thread may make views, and let go of them.

Deaths: a lease ends with its process. The memory is freed with the last one, whoever made it. If the broker dies, what is mapped stays
readable, and no handle to it can be opened any more.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import numpy as np

from cableway import client
from cableway._core.layouts import Layout
from cableway._core.leases import Lease, lease_again, usable
from cableway._core.library import check, check_again, exported, ffi, keeping, lib
from cableway._dispatch import LeaseCell
from cableway.errors import Error

__all__ = [
    "HANDLE_BYTES",
    "PRIVATE_VIEWS_MAX",
    "bytes_layout",
    "handle_of",
    "new",
    "private_view",
    "private_views",
    "size_of",
    "slab_of",
    "write",
]

HANDLE_BYTES = 48
PRIVATE_VIEWS_MAX = 16_000  # in a process, which may have 65,530 mappings (vm.max_map_count); beyond, a view is a copy

private_views: dict[int, weakref.ref[Any]] = {}


@functools.lru_cache(maxsize=256)
def bytes_layout(nbytes: int) -> Layout:
    """Of so many bytes."""
    return Layout((nbytes,), np.dtype("u1"))


def new(connection: client.Connection, nbytes: int) -> Lease:
    """The writable lease on a new block.

    Raises:
        LimitExceeded: no memory left, or a limit of the broker.
        BrokerLost: the broker is gone.
    """
    layout = bytes_layout(nbytes).c
    return lease_again(Lease, lib.cw_array_new, connection.pointer, b"cpu", layout, 0)


def write(lease: Lease, offset: int, part: np.ndarray[Any, Any]) -> None:
    """Copies contiguous bytes into the block of a writable lease."""
    address = ffi.cast("void *", part.__array_interface__["data"][0])
    check_again(lib.cw_array_write, lease.pointer, offset, address, part.nbytes)


def handle_of(lease: Lease, openers: int = 0) -> bytes:
    """Names the block for other processes of the broker, as long as one of them holds it.

    Args:
        openers: how often it will be opened; until then, or until `transit_seconds` ran out, the broker holds it as well.

    Raises:
        LimitExceeded: more handles under way than `max_client_transits`.
        BrokerLost: the broker is gone.
    """
    return bytes(ffi.buffer(exported(usable(lease), openers)))


def size_of(handle: bytes) -> int:
    """The size of the block behind a handle, in bytes, as the handle says.

    Raises:
        Error: it is malformed.
    """
    return int(_parts(handle).size_bytes)


def slab_of(handle: bytes) -> tuple[int, int]:
    """The run of the broker, and the number of the slab in which the block behind a handle lies. Raises as `size_of`."""
    parts = _parts(handle)
    return int(parts.instance), int(parts.slab)


def _parts(handle: bytes) -> Any:
    if len(handle) != HANDLE_BYTES:
        raise Error(f"a handle has {HANDLE_BYTES} bytes, not {len(handle)}")
    return ffi.from_buffer("cw_handle *", handle)


def private_view(connection: client.Connection, handle: bytes, nbytes: int) -> np.ndarray[Any, Any]:
    """The bytes of the block behind a handle, as a private view.

    Raises:
        Stale: nobody holds it any more.
        BrokerLost: the broker is gone.
        Error: the view cannot be made.
    """
    cell, layout = LeaseCell(), bytes_layout(nbytes).c
    number = int(ffi.cast("uintptr_t", layout))
    pointer = connection.pointer  # stays for as long as the call lasts, though a thread closes it
    check(cell.open(connection.number, handle, number, lib.CW_PRIVATE, False))
    del pointer
    # A cffi buffer stands between: NumPy must not find the lease, since a private view has no name and no handle.
    memory = ffi.buffer(keeping(ffi.cast("char *", cell.data()), cell), nbytes)
    found = np.frombuffer(memory, "u1")
    gone = weakref.ref(found, lambda ref: private_views.pop(id(ref), None))
    private_views[id(gone)] = gone
    return found
