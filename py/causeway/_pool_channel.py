"""Channels and bells: the library's rings between a Pool and its workers, as Python objects.

A *plane* is one array of the parent: the bell at which the parent sleeps, then one slot for each worker's channel.
Worker processes have it mapped by fork, or open it as any other array.

Side 0 is the parent, side 1 the worker. One thread at a time sends on a channel, and one receives. Either side may
die at any moment: a message was published whole, or it never was.
"""

from __future__ import annotations

import errno
from typing import Any

from causeway._lib import check, failure, ffi, lib

__all__ = ["BELL_BYTES", "PARENT", "WORKER", "Bell", "Channel", "Plane", "wait"]

PARENT, WORKER = 0, 1
BELL_BYTES = 64
_FOR_EVER = -1
_PAGE = 4096


class Plane:
    """Where things lie in the memory that a Pool and its workers share."""

    __slots__ = ("channel_bytes", "ring_bytes", "slots")

    def __init__(self, slots: int, ring_bytes: int) -> None:
        self.slots = slots
        self.ring_bytes = ring_bytes
        self.channel_bytes = -(-int(lib.cw_channel_bytes(ring_bytes)) // _PAGE) * _PAGE

    @property
    def nbytes(self) -> int:
        """Bytes of the whole."""
        return _PAGE + self.slots * self.channel_bytes

    def offset(self, slot: int) -> int:
        """Where a slot's channel begins. The parent's bell is at 0."""
        return _PAGE + slot * self.channel_bytes


class Bell:
    """A word at which one thread sleeps, and which any process that maps it can ring."""

    __slots__ = ("pointer",)

    def __init__(self, address: int) -> None:
        self.pointer = ffi.cast("void *", address)

    def ring(self) -> None:
        """Wakes who sleeps here. Takes no lock: finalisers may call it."""
        lib.cw_bell_ring(self.pointer)


class Channel:
    """One end of a two-way channel. The memory must stay mapped while it is open."""

    __slots__ = ("_data", "_kind", "_size", "max_bytes", "pointer")

    def __init__(self, address: int, plane: Plane, side: int, parent_bell: Bell) -> None:
        out = ffi.new("cw_channel **")
        mine = parent_bell.pointer if side == PARENT else ffi.NULL
        peers = ffi.NULL if side == PARENT else parent_bell.pointer
        memory = ffi.cast("void *", address)
        if side == PARENT:
            check(lib.cw_channel_format(memory, plane.channel_bytes, plane.ring_bytes))
        check(
            lib.cw_channel_open(
                memory, plane.channel_bytes, plane.ring_bytes, side, mine, peers, out
            )
        )
        self.pointer: Any = ffi.gc(out[0], lib.cw_channel_close)
        self.max_bytes: int = lib.cw_channel_max(self.pointer)
        self._kind = ffi.new("uint32_t *")
        self._data = ffi.new("void const **")
        self._size = ffi.new("uint32_t *")

    def send(self, kind: int, message: bytes) -> None:
        """Sends a message of at most max_bytes. Blocks while the ring is full."""
        while True:
            status = lib.cw_channel_send(self.pointer, kind, message, len(message), _FOR_EVER)
            if status >= 0:
                return
            if status != -errno.EINTR:
                raise failure(status)

    def receive(self, timeout_ns: int = _FOR_EVER) -> tuple[int, Any] | None:
        """The next message: its kind and its bytes, which are valid until the next call.

        None when the time ran out, or a signal came (whose handler runs as soon as Python is back).
        """
        status = lib.cw_channel_recv(self.pointer, timeout_ns, self._kind, self._data, self._size)
        if status < 0:
            if status in (-errno.ETIMEDOUT, -errno.EINTR, -errno.EAGAIN):
                return None
            raise failure(status)
        return self._kind[0], memoryview(ffi.buffer(self._data[0], self._size[0]))

    def close(self) -> None:
        """Ends this side. May be repeated."""
        pointer, self.pointer = self.pointer, None
        if pointer is not None:
            ffi.release(pointer)


class Waiter:
    """What wait() needs of a set of channels that share one bell."""

    __slots__ = ("count", "pointers")

    def __init__(self, channels: list[Channel]) -> None:
        self.pointers = ffi.new("cw_channel *[]", [channel.pointer for channel in channels] or 1)
        self.count = len(channels)


def wait(waiter: Waiter, bell: Bell) -> bool:
    """Sleeps until one of the channels has a message (True), or the bell rang or a signal came (False)."""
    status = lib.cw_channels_wait(waiter.pointers, waiter.count, bell.pointer, _FOR_EVER)
    if status >= 0:
        return True
    if status in (-errno.EAGAIN, -errno.EINTR, -errno.ETIMEDOUT):
        return False
    raise failure(status)
