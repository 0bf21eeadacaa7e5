"""Descriptors of queues, for `select`, asyncio and `multiprocessing.connection.wait`: `Queue._reader` and `_writer`, as in
the standard library.

The reader's descriptor is readable if, and only if, an item waits; the writer's is writable while the queue is not full. Each is an
eventfd of this process only. A thread keeps it up to date; it starts when somebody asks for the descriptor.

    state       reader: an item waits; writer: the queue is full. The eventfd shows the state as of the last look
    who looks   the thread, whenever the state may have changed: it watches puts while the state is false, and takes while it is
                true (shm/tasks/queue.h). Every process rings the bell for these, this one included. And each put and get of this
                process looks before it returns, so that the process sees its own change at once
    a look      reads the numbers and then writes the eventfd, in C, with the GIL (csrc/dispatch_queue.c). So looks of this process
                follow one another, the last one has seen the newest numbers, and no signal's handler comes in between. What this
                process has taken and keeps for its next get() counts as an item that waits

Another process may take an item between `select` and get(), as in the standard library: use get_nowait() if several processes read.
Only a look reads the eventfd empty.

Deaths. If another process dies in a put or a get, the thread learns of it as a sleeping reader or writer does. If this process dies,
thread and eventfd are gone, and the queue does not know of them. After a fork, the child makes its own when it asks for one. At the
queue's close(), or when it is dropped, the eventfd is closed and the thread is woken and ends.
"""

from __future__ import annotations

import os
import threading
import weakref
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from cableway._core.descriptors import above_stdio
from cableway._core.library import ffi, lib

if TYPE_CHECKING:
    from cableway._core.leases import Lease
    from cableway._dispatch import QueueEnd
    from cableway.queue import _End, _Shared

__all__ = ["Descriptor", "Watch"]


class Watch:
    """Keeps one descriptor as it is to be.

    Args:
        plain: the queue as this process has it open; keeps the eventfd as it is to be.
        pointer: the same for the library.
        lease: of its memory, which stays mapped as long as the thread looks.
        writer: it is the writers'.
    """

    def __init__(
        self, plain: QueueEnd, pointer: Any, lease: Lease, writer: bool, bounded: bool
    ) -> None:
        self._plain = plain
        self._pointer = pointer
        self._lease = lease
        self._writer = writer
        self._pid = os.getpid()
        self.fd = above_stdio(lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        plain.watch(writer, self.fd)
        if not writer or bounded:
            threading.Thread(target=self._serve, name="cableway-queue", daemon=True).start()

    def _serve(self) -> None:
        sight = ffi.new("cw_queue_sight_words *")
        watched = self._plain.look(self._writer)
        while self.fd >= 0:
            lib.cw_queue_watch_begin(self._pointer, watched, sight)
            now = self._plain.look(self._writer)
            if self.fd >= 0 and now == watched:
                lib.cw_queue_watch_wait(self._pointer, sight)
            watched = now

    def end(self) -> None:
        """Nobody asks for it any more. May be repeated."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        self._plain.watch(self._writer, -1)
        os.close(fd)
        if os.getpid() == self._pid:
            lib.cw_queue_watch_rouse(self._pointer)


def is_bounded(info: Any) -> bool:
    """Whether a queue may ever be full."""
    return bool(info.max_items or info.max_bytes)


def is_full(info: Any) -> bool:
    """Whether a queue holds as many items or bytes as it may."""
    return bool(
        (info.max_items and info.items >= info.max_items)
        or (info.max_bytes and info.bytes >= info.max_bytes)
    )


class Descriptor:
    """What stands in the place of a `multiprocessing.connection.Connection`: to wait for, not to read from.

    >>> import cableway as cw
    >>> from multiprocessing.connection import wait
    >>> q = cw.Queue()
    >>> wait([q._reader], 0), q.put(1), wait([q._reader]) == [q._reader]
    ([], None, True)
    """

    __slots__ = ("_queue", "_writer")

    def __init__(self, queue: _Shared, writer: bool) -> None:
        self._queue = queue
        self._writer = writer

    def fileno(self) -> int:
        """The descriptor; it is the queue's, and is closed with it."""
        if self.closed:
            raise OSError("handle is closed")
        return self._queue._watch(self._writer).fd

    @property
    def closed(self) -> bool:
        """Whether the queue is."""
        return self._queue._memory is None

    @property
    def readable(self) -> bool:
        return not self._writer

    @property
    def writable(self) -> bool:
        return self._writer

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether an item waits; waits for one at most timeout seconds, None for ever."""
        return bool(connection.wait([self], timeout))  # type: ignore[list-item]

    def close(self) -> None:
        """Closes the queue, in this process."""
        self._queue.close()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Descriptor):
            return NotImplemented
        return self._queue is other._queue and self._writer == other._writer

    def __hash__(self) -> int:
        return hash((id(self._queue), self._writer))


def watch(end: _End, writer: bool) -> Watch:
    """A watch that ends with the end of a queue."""
    made = Watch(end.plain, end.pointer, end.lease, writer, end.bounded)
    weakref.finalize(end, made.end).atexit = False
    return made
