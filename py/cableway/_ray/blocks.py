"""Blocks: shared memory that holds the arrays of one object of Ray's.

Invariant: a block that was copied here is written once, before anybody else knows of it, and never again. Where an array lay in memory of
cableway already, its block is that memory, which its owner may write to: then a reader may see it, as with Ray's own transports. What a
reader gets is a private view (copy-on-write): its writes are seen by nobody else.

Deaths: a lease ends with its process. The memory is freed with the last one, whoever made it. A handle with a transit holds it as well,
until it was opened once, or `transit_seconds` ran out. If the broker dies, what is mapped stays readable, and no handle to it can be
opened any more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cableway import client
from cableway._core import byte_blocks, leases
from cableway._core.byte_blocks import PRIVATE_VIEWS_MAX, handle_of, private_views
from cableway._core.leases import Lease, lease_of_handle
from cableway._core.library import ffi, lib

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

_ALIGNED = 64  # where each array begins in a block, in bytes


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
    lease = byte_blocks.new(connection, end)
    for part, offset in zip(parts, offsets, strict=True):
        byte_blocks.write(lease, offset, part)
    return Block(lease, handle_of(lease), end, True), offsets


def of_array(values: np.ndarray[Any, Any]) -> tuple[Block, int] | None:
    """The block in which an array without gaps lies, and where; None: it lies in memory that cannot be shared as it is."""
    lease = leases.find(values) if values.size else None
    if lease is None or type(lease) is not Lease or lease.gpu >= 0:
        return None
    low, nbytes = lease.span()
    handle = handle_of(lease)
    offset = values.__array_interface__["data"][0] - low
    if byte_blocks.size_of(handle) != nbytes:
        return None
    return Block(lease, handle, nbytes, False), offset


def in_transit(block: Block) -> bytes:
    """A handle by which the broker holds the block until it was opened once.

    Raises:
        LimitExceeded: more handles under way than `max_client_transits`.
        BrokerLost: the broker is gone.
    """
    return handle_of(block.lease, 1)


def discard(connection: client.Connection, handle: bytes) -> None:
    """Ends the transit of a handle, if nobody has opened it."""
    lib.cw_handle_discard(connection.pointer, ffi.from_buffer("cw_handle *", handle))


def held(connection: client.Connection, handle: bytes) -> Lease:
    """A lease on the block behind a handle, which keeps it and reads nothing. The handle's transit is over then.

    Raises:
        Stale: nobody holds it any more.
        BrokerLost: the broker is gone.
    """
    layout = byte_blocks.bytes_layout(byte_blocks.size_of(handle))
    return lease_of_handle(connection, handle, layout, lib.CW_READONLY)


def view(connection: client.Connection, handle: bytes) -> np.ndarray[Any, Any]:
    """The bytes of the block behind a handle, as a private view; beyond PRIVATE_VIEWS_MAX views as a copy.

    Raises:
        Stale: nobody holds it any more.
        BrokerLost: the broker is gone.
        Error: the handle is malformed, or the view cannot be made.
    """
    if len(private_views) >= PRIVATE_VIEWS_MAX:
        return np.array(held(connection, handle))
    return byte_blocks.private_view(connection, handle, byte_blocks.size_of(handle))


def seen_bytes(address: int, nbytes: int) -> int:
    """How many of the bytes from an address on lie in private views, 0 or all of them."""
    for reference in list(private_views.values()):
        found = reference()
        if found is not None and nbytes:
            low = found.__array_interface__["data"][0]
            if low <= address and address + nbytes <= low + found.nbytes:
                return nbytes
    return 0
