"""Blocks: shared memory that holds one large frame of a message each.

Invariant: a block is written once, before anybody else knows of it, and never again. Each process that has it holds a read-only lease,
by which it hands the block on. What a task may write to is a private view (copy-on-write): its writes are seen by nobody else.

Deaths: a lease ends with its process. The memory is freed with the last one, whoever made it. If the broker dies, what is mapped stays
readable, and no handle to it can be opened any more.
"""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
from distributed.utils import ensure_memoryview

from cableway import client
from cableway._core import byte_blocks
from cableway._core.byte_blocks import PRIVATE_VIEWS_MAX, bytes_layout
from cableway._core.byte_blocks import private_views as _private
from cableway._core.leases import Lease, lease_of_handle
from cableway._core.library import lib
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

_made = False
# Names that this process gave to blocks that it holds no more, each with the run of its broker; a thread of `names` removes them. A
# block may go at any moment, in any thread: so no more is done then than to put the name here, which takes no lock of Python's.
unwanted_names: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()


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
        return byte_blocks.private_view(connection, self.handle, self.nbytes)


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
    lease = byte_blocks.new(connection, source.nbytes)
    byte_blocks.write(lease, 0, source)
    _made = True
    handle = byte_blocks.handle_of(lease)
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
    size = byte_blocks.size_of(handle)
    if size != nbytes:
        raise Error(f"a message says that a block has {nbytes} bytes, its handle says {size}")
    return lease_of_handle(connection, handle, bytes_layout(nbytes), flags)


def opened(connection: client.Connection, handle: bytes, nbytes: int) -> Block:
    """The block behind a handle of another process. Raises as `leased`."""
    return Block(handle, leased(connection, handle, nbytes), nbytes, connection.instance)
