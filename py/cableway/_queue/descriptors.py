"""Descriptors of queues, for `select`, asyncio and `multiprocessing.connection.wait`: `Queue._reader` and `_writer`, as in
the standard library.

The reader's descriptor is readable if, and only if, an item waits; the writer's is writable while the queue is not full. Each is an
eventfd of this process only. A thread keeps it up to date; it starts when somebody asks for the descriptor.

    state       reader: an item waits; writer: the queue is full. The eventfd shows the state as of the last look
    who looks   the thread, whenever the state may have changed: it watches puts while the state is false, and takes while it is
                true (shm/tasks/queue.h). Every process rings the bell for these, this one included. And each put and get of this
                process looks before it returns, so that the process sees its own change at once
    a look      reads the numbers and then writes the eventfd, under a lock. Looks of this process follow one another, so the last
                one decides, and it has seen the newest numbers. If a signal handler interrupts a look and looks itself, the
                interrupted look is done again. If a handler ends a look by an exception, the thread repairs it: the bell has
                rung for the thread, too

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
    from cableway.queue import _Shared

__all__ = ["Descriptor", "Watch"]

_BLOCKED = (1 << 64) - 2  # with so much in it an eventfd is not writable


class Watch:
    """Keeps one descriptor as it is to be.

    Args:
        pointer: the queue as this process has it open.
        lease: of its memory, which stays mapped as long as the thread looks.
        writer: it is the writers'.
    """

    def __init__(self, pointer: Any, lease: Lease, writer: bool) -> None:
        self._pointer = pointer
        self._lease = lease
        self._writer = writer
        self._state = False
        self._looks = 0
        self._pid = os.getpid()
        self._lock = (
            threading.RLock()
        )  # a finaliser, or a signal's handler, may come on a thread that has it
        self._info = ffi.new("cw_queue_info *")
        self.fd = above_stdio(lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self.look()
        if not writer or self._info.max_items or self._info.max_bytes:
            threading.Thread(target=self._serve, name="cableway-queue", daemon=True).start()

    def look(self) -> None:
        """Makes the descriptor say what is so now. Any thread."""
        with self._lock:
            while self.fd >= 0:
                self._looks += 1
                look = self._looks
                lib.cw_queue_look_at(self._pointer, self._info)
                state = is_full(self._info) if self._writer else self._info.items > 0
                if state and not self._state:
                    os.eventfd_write(self.fd, _BLOCKED if self._writer else 1)
                    self._state = True
                elif self._state and not state:
                    os.eventfd_read(self.fd)
                    self._state = False
                if look == self._looks:
                    return

    def _serve(self) -> None:
        sight = ffi.new("cw_queue_sight_words *")
        while self.fd >= 0:
            watched = self._state
            lib.cw_queue_watch_begin(self._pointer, watched, sight)
            self.look()
            if self.fd >= 0 and self._state == watched:
                lib.cw_queue_watch_wait(self._pointer, sight)

    def end(self) -> None:
        """Nobody asks for it any more. May be repeated."""
        if os.getpid() != self._pid:  # a thread of the parent may have the lock
            fd, self.fd = self.fd, -1
            if fd >= 0:
                os.close(fd)
            return
        with self._lock:
            fd, self.fd = self.fd, -1
            if fd >= 0:
                os.close(fd)
        if fd >= 0:
            lib.cw_queue_watch_rouse(self._pointer)


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


def watch(end: Any, pointer: Any, lease: Lease, writer: bool) -> Watch:
    """A watch that ends with the end of a queue."""
    made = Watch(pointer, lease, writer)
    weakref.finalize(end, made.end).atexit = False
    return made
