"""Blocks: shared memory that holds the arrays of one object of Ray's.

Invariant: a block that was copied here is written once, before anybody else knows of it, and never again. Where an array lay in memory of
cableway already, its block is that memory, which its owner may write to: then a reader may see it, as with Ray's own transports. What a
reader gets is a private view (copy-on-write): its writes are seen by nobody else.

Deaths: a lease ends with its process. The memory is freed with the last one, whoever made it. A handle with a transit holds it as well,
until it was opened once, or `transit_seconds` ran out. If the broker dies, what is mapped stays readable, and no handle to it can be
opened any more.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, NamedTuple

import numpy as np

from cableway import client
from cableway._core import leases
from cableway._core.layouts import Layout
from cableway._core.leases import Lease, lease_again, lease_of_handle
from cableway._core.library import check, check_again, exported, ffi, keeping, lib
from cableway._dispatch import LeaseCell
from cableway.errors import Error

__all__ = [
    "PRIVATE_VIEWS_MAX",
    "Block",
    "copied",
    "discard",
    "held",
    "in_transit",
    "of_array",
    "seen_bytes",
    "view",
]

HANDLE_BYTES = 48
PRIVATE_VIEWS_MAX = 16_000  # in a process, which may have 65,530 mappings (vm.max_map_count); beyond, a view is a copy
_ALIGNED = 64  # where each array begins in a block, in bytes

_private: dict[int, weakref.ref[Any]] = {}  # the private views that are there


class Block(NamedTuple):
    """Shared memory as its maker has it.

    Attributes:
        lease: the maker's.
        handle: names it for other processes of the broker, as long as one of them holds it.
        nbytes: of all of it.
        written_once: False: it is the array of somebody who may write there.
    """

    lease: Lease
    handle: bytes
    nbytes: int
    written_once: bool


@functools.lru_cache(maxsize=64)
def _layout(nbytes: int) -> Layout:
    return Layout((nbytes,), np.dtype("u1"))


def copied(
    connection: client.Connection, parts: list[np.ndarray[Any, Any]]
) -> tuple[Block, list[int]]:
    """A new block with copies of the parts, and where in it each begins.

    Args:
        parts: contiguous bytes, at least one in all.

    Raises:
        LimitExceeded: no memory left, or a limit of the broker.
        BrokerLost: the broker is gone.
    """
    offsets, end = [], 0
    for part in parts:
        offsets.append(end)
        end += -(-part.nbytes // _ALIGNED) * _ALIGNED
    lease = lease_again(Lease, lib.cw_array_new, connection.pointer, b"cpu", _layout(end).c, 0)
    for part, offset in zip(parts, offsets, strict=True):
        address = ffi.cast("void *", part.__array_interface__["data"][0])
        check_again(lib.cw_array_write, lease.pointer, offset, address, part.nbytes)
    return Block(lease, _handle(lease, 0), end, True), offsets


def of_array(values: np.ndarray[Any, Any]) -> tuple[Block, int] | None:
    """The block in which an array without gaps lies, and where; None: it lies in memory that cannot be shared as it is."""
    lease = leases.find(values) if values.size else None
    if lease is None or type(lease) is not Lease or lease.gpu >= 0:
        return None
    low, nbytes = lease.span()
    handle = _handle(lease, 0)
    offset = values.__array_interface__["data"][0] - low
    if ffi.from_buffer("cw_handle *", handle).size_bytes != nbytes:
        return None
    return Block(lease, handle, nbytes, False), offset


def _handle(lease: Lease, openers: int) -> bytes:
    return bytes(ffi.buffer(exported(leases.usable(lease), openers)))


def in_transit(block: Block) -> bytes:
    """A handle by which the broker holds the block until it was opened once.

    Raises:
        LimitExceeded: more handles under way than `max_client_transits`.
        BrokerLost: the broker is gone.
    """
    return _handle(block.lease, 1)


def discard(connection: client.Connection, handle: bytes) -> None:
    """Ends the transit of a handle, if nobody has opened it."""
    lib.cw_handle_discard(connection.pointer, ffi.from_buffer("cw_handle *", handle))


def held(connection: client.Connection, handle: bytes) -> Lease:
    """A lease on the block behind a handle, which keeps it and reads nothing. The handle's transit is over then.

    Raises:
        Stale: nobody holds it any more.
        BrokerLost: the broker is gone.
    """
    size = _size(handle)
    return lease_of_handle(connection, handle, _layout(size), lib.CW_READONLY)


def _size(handle: bytes) -> int:
    if len(handle) != HANDLE_BYTES:
        raise Error(f"a handle has {HANDLE_BYTES} bytes, not {len(handle)}")
    return int(ffi.from_buffer("cw_handle *", handle).size_bytes)


def view(connection: client.Connection, handle: bytes) -> np.ndarray[Any, Any]:
    """The bytes of the block behind a handle, as a private view; beyond PRIVATE_VIEWS_MAX views as a copy.

    Raises:
        Stale: nobody holds it any more.
        BrokerLost: the broker is gone.
        Error: the handle is malformed, or the view cannot be made.
    """
    nbytes = _size(handle)
    if len(_private) >= PRIVATE_VIEWS_MAX:
        return np.array(held(connection, handle))
    cell = LeaseCell()
    number = int(ffi.cast("uintptr_t", _layout(nbytes).c))
    check(cell.open(connection.number, handle, number, lib.CW_PRIVATE, False))
    # A cffi buffer stands between: NumPy must not find the lease, since a private view has no name and no handle.
    memory = ffi.buffer(keeping(ffi.cast("char *", cell.data()), cell), nbytes)
    found = np.frombuffer(memory, "u1")
    gone = weakref.ref(found, lambda ref: _private.pop(id(ref), None))
    _private[id(gone)] = gone
    return found


def seen_bytes(address: int, nbytes: int) -> int:
    """How many of the bytes from an address on lie in private views, 0 or all of them."""
    for reference in list(_private.values()):
        found = reference()
        if found is not None and nbytes:
            low = found.__array_interface__["data"][0]
            if low <= address and address + nbytes <= low + found.nbytes:
                return nbytes
    return 0
