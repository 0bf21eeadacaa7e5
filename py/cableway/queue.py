"""Queues between processes, with the interfaces of `multiprocessing.Queue`, `SimpleQueue` and `JoinableQueue`.

>>> import cableway as cw
>>> q = cw.Queue(maxsize=100)
>>> q.put({"answer": 42})
>>> q.get(timeout=1)
{'answer': 42}

A queue lies in shared memory and belongs to no process: any number of processes and threads may put and get. If a process is
killed, at whatever moment, at most the item that it was putting or had just taken is lost, and no other process is blocked. What a
signal's handler raises, as Ctrl-C does, loses no item: out of get() it means that the next get() of this process gives the item,
out of put() that the queue has not got it (on Python 3.10 only nearly always). A `cableway.Array` in an item travels as a handle. NumPy arrays and other buffers of 256 KiB and more are copied once, into
memory that the receiver then owns and may write to. Everything else is pickled and copied.

What differs from the standard library, and why:

- put() pickles at once, in the calling thread. If an object cannot be pickled, put() raises, and the receiver does not see
  later changes to an object. There is no feeder thread: when put() has returned, the item is in the queue, even if this
  process is killed next. So join_thread() and cancel_join_thread() have nothing to do.
- A queue without maxsize grows until memory is full. put() then raises `LimitExceeded`: at the broker's limit on bytes
  (`max_user_bytes`, half of the machine's memory; see `man cablewayd`), or when small items fill 64 pieces of memory of up
  to 64 MiB. `maxbytes` limits the queue itself.
- Full and Empty are raised only if the queue is full or empty, never because other processes use it. put_nowait() and calls
  with a short timeout wait for processes that are putting at that moment, some microseconds for each. If one of these stops
  in the middle (it is stopped by a signal, or waits for a broker that does not answer), calls with a timeout raise
  `QueueBlocked`, after a second at the earliest. That ends by itself when the process continues or dies. In the standard
  library get() then raises Empty, and put() only fills the memory of its own process.
- empty(), full() and qsize() tell the state at that moment, for all processes: an item that was put is seen at once.
- A queue can be pickled in every way, also into another queue, and not only for a child process. A queue that is put into
  itself and never taken ends after `transit_seconds`.
- After close(), put(), get() and empty() raise `QueueClosed`, which is both a ValueError and an OSError, since methods of
  multiprocessing raise one or the other. qsize() and full() tell the state at close(), and so does empty() of a Queue that
  was never used, as in the standard library. Other processes, and other copies of the queue, are not affected.
"""

from __future__ import annotations

import contextlib
import errno
import math
import operator
import os
import queue as _standard
import threading
import time
import types
import weakref
from typing import Any

from cableway import _dispatch, client
from cableway import array as arrays
from cableway._core import deadlines, locks
from cableway._core.handler_errors import is_handlers
from cableway._core.leases import Lease, lease_again, usable
from cableway._core.library import check, check_again, failure, ffi, from_cell, lib
from cableway._dispatch import QueueItem, Uninterrupted
from cableway._queue import descriptors as watching
from cableway._queue import items
from cableway.array import Array
from cableway.errors import BrokerLost, Error, QueueBlocked, Stale

__all__ = ["JoinableQueue", "Queue", "SimpleQueue"]

_queue_put = Uninterrupted(lib.cwpy_queue_put)
_raise_later = Uninterrupted(_dispatch.raise_later)
_UNBOUNDED = 0x7FFFFFFF  # multiprocessing's _maxsize of a queue without one
_FOR_EVER_SECONDS = 1e9  # and longer: for ever
_forks = 0  # how often this process is the child of a fork
_watching = locks.RLock()  # decides who makes a watch
# Those that are open, by the address of their memory: all queue objects of this process for one queue have one, so that an item
# that is kept is there for the next get() of any of them.
_ends: weakref.WeakValueDictionary[int, _End] = weakref.WeakValueDictionary()


def _after_fork_in_child() -> None:
    global _forks, _watching, _ends
    _forks += 1
    _watching = locks.RLock()  # another thread of the parent may have had it
    _ends = weakref.WeakValueDictionary()


os.register_at_fork(after_in_child=_after_fork_in_child)


class QueueClosed(ValueError, OSError):
    """A queue was used after its close()."""


class _End:
    """This process's open queue: the library's pointer, the lease that keeps its memory mapped, and the items that were taken and
    not handed out (csrc/dispatch_queue.c).
    """

    __slots__ = (
        "__weakref__", "bounded", "forks", "get", "lease", "max_bytes", "plain", "pointer", "put", "watches",
    )  # fmt: skip

    def __init__(self, memory: Array) -> None:
        out = ffi.gc(ffi.new("cw_queue **"), lib.cwpy_queue_end)
        self.lease = memory._open_lease()
        check_again(lib.cw_queue_open, usable(self.lease), out)
        self.pointer: Any = from_cell(out)
        self.max_bytes: int = lib.cw_queue_max(out[0])
        self.plain = _dispatch.QueueEnd(int(ffi.cast("uintptr_t", out[0])), self.max_bytes)
        self.put, self.get = Uninterrupted(self.plain.put), Uninterrupted(self.plain.get)
        self.bounded = watching.is_bounded(_looked_at(self.pointer))
        self.forks = _forks
        self.watches: dict[bool, watching.Watch] = {}  # of descriptors that were asked for


def _nanoseconds(block: bool, timeout: float | None) -> int:
    if not block:
        return 0
    return -1 if timeout is None or timeout > _FOR_EVER_SECONDS else max(0, int(timeout * 1e9))


def _refusal(status: int) -> Exception:
    error = failure(status)
    return QueueBlocked(str(error)) if status == -errno.EBUSY else error


def _looked_at(pointer: Any) -> Any:
    """The numbers of a queue now. The caller keeps its `_End`: a thread may close the queue."""
    info = ffi.new("cw_queue_info *")
    lib.cw_queue_look_at(pointer, info)
    return info


def _later(error: BaseException) -> bool:
    """Raises what a signal's handler raised in the caller's caller. False: it is none, since no handler runs on this thread."""
    if threading.current_thread() is not threading.main_thread():
        return False
    _raise_later[error,]
    return True


class _Left:
    """The state of a queue at its close().

    Attributes:
        used: whether this object had opened it.
        info: its numbers at that moment; None if its memory was gone by then.
        count: of items that get() would have given.
    """

    def __init__(self, closed: _Shared) -> None:
        self.used = closed._end is not None
        self.info: Any = None
        self.count = 0
        with contextlib.suppress(Error, QueueClosed):  # another thread has closed it meanwhile
            self.info, self.count = closed._numbers()


class _Shared:
    """What all kinds of queues have in common."""

    _memory: Array | None
    _end: _End | None
    _left: _Left | None = None

    def __init__(self, maxsize: int = 0, maxbytes: int | None = None) -> None:
        limit = 0 if maxbytes is None else operator.index(maxbytes)
        if limit < 0 or (limit == 0 and maxbytes is not None):
            raise ValueError(f"maxbytes is a number of bytes above 0, or None, not {maxbytes}")
        pointer = client.current().pointer
        places = max(0, operator.index(maxsize))
        made = lease_again(Lease, lib.cw_queue_new, pointer, places, limit)
        self._memory = arrays.make(made, None)
        self._end = None

    def _open(self) -> _End:
        """The queue, opened by this process; after a fork the child opens it again."""
        end = self._end
        if end is not None and end.forks == _forks:
            return end
        memory = self._memory
        if memory is None:
            raise QueueClosed(f"Queue {self!r} is closed")
        try:
            address = memory._open_lease().address
            self._end = end = _ends.get(address) or _ends.setdefault(address, _End(memory))
        except Stale as error:
            raise BrokerLost(
                f"the broker that this queue was made at has ended, and this process, a child of a fork, had not opened it: {error}"
            ) from None
        if self._memory is None:  # another thread has closed it meanwhile
            self._end = None
        return end

    def _put(self, obj: Any, timeout_ns: int) -> None:
        end = self._end
        if end is None or end.forks != _forks:
            end = self._open()
        if not end.put[obj,]:
            self._put_slowly(end, obj, timeout_ns)

    def _put_slowly(self, end: _End, obj: Any, timeout_ns: int) -> None:
        """Puts any object, and waits for room."""
        out = items.encode_alone(obj, end.max_bytes)
        if out is None:
            out = items.encode(obj, end.max_bytes)
        data = out.data
        give_up = math.inf if timeout_ns < 0 else time.monotonic() + timeout_ns / 1e9
        while True:
            part_ns, last = deadlines.slice_ns(give_up)
            status = _queue_put[end.pointer, data, len(data), out.handles, out.extra_bytes, part_ns]
            if status != -errno.EINTR and (last or status not in (-errno.ETIMEDOUT, -errno.EBUSY)):
                break
        if status == 0:
            try:  # no handler came since
                end.plain.look(True)
                out.sent()
            except BaseException as late:
                if isinstance(late, Error) or not _later(late):
                    raise
            return
        error = _standard.Full() if status == -errno.ETIMEDOUT else _refusal(status)
        out.refused()
        raise error

    def _get(self, timeout_ns: int) -> Any:
        end = self._end
        if end is None or end.forks != _forks:
            end = self._open()
        found = end.get[timeout_ns,]
        # By no call: behind type(found), while the interpreter has not specialised it, a handler would lose what was found.
        if found.__class__ is not QueueItem:
            return found
        if found.status == -errno.ETIMEDOUT:
            raise _standard.Empty
        if found.status < 0:
            raise _refusal(found.status)
        # No handler came since it was taken. From here to the `return` one may, and then it is given back.
        try:
            return items.decode(found)
        except BaseException as error:
            try:
                again = is_handlers(error, lambda: items.decode(found))
            except BaseException:
                end.plain.give_back(found)
                raise
            if again:
                end.plain.give_back(found)
            raise

    def _numbers(self) -> tuple[Any, int]:
        """Its numbers, and the items in it with those that this process keeps for its next get(); after close() those at that moment."""
        try:
            end = self._open()
        except QueueClosed:
            left = self._left
            if left is None or left.info is None:
                raise
            return left.info, left.count
        info = _looked_at(end.pointer)
        return info, int(info.items) + end.plain.kept

    def _info(self) -> Any:
        return self._numbers()[0]

    def _count(self) -> int:
        return self._numbers()[1]

    def empty(self) -> bool:
        """Whether there is no item in it now."""
        if self._memory is None and self._left is not None and self._left.used:
            raise QueueClosed(f"Queue {self!r} is closed")
        return self._count() == 0

    def close(self) -> None:
        """Ends this object's use of the queue. Its items stay for others. May be repeated."""
        if self._memory is not None:
            left = _Left(self)
            if self._left is None:  # another thread may have closed it meanwhile
                self._left = left
        self._memory = None
        self._end = None

    # ---- what programs read of multiprocessing's queues beside their interface

    def _watch(self, writer: bool) -> watching.Watch:
        end = self._open()
        with _watching:
            found = end.watches.get(writer)
            if found is None:
                found = watching.watch(end, writer)
                end.watches[writer] = found
        return found

    @property
    def _maxsize(self) -> int:
        return int(self._info().max_items) or _UNBOUNDED

    @property
    def _closed(self) -> bool:
        return self._memory is None

    @property
    def _reader(self) -> watching.Descriptor:
        """For `select` and `connection.wait`: its fileno() is readable if, and only if, an item waits."""
        return watching.Descriptor(self, False)

    @property
    def _writer(self) -> watching.Descriptor:
        """Its fileno() is writable while the queue is not full."""
        return watching.Descriptor(self, True)

    def __getstate__(self) -> Any:
        memory = self._memory
        if memory is None:
            raise QueueClosed(f"Queue {self!r} is closed")
        return memory

    def __setstate__(self, memory: Any) -> None:
        self._memory = memory
        self._end = None

    def __repr__(self) -> str:
        state = " closed" if self._memory is None else ""
        return f"<cableway.{type(self).__name__}{state} at {id(self):#x}>"

    __class_getitem__: Any = classmethod(types.GenericAlias)


class Queue(_Shared):
    """A queue with the interface of `multiprocessing.Queue`; see the module for what differs.

    Args:
        maxsize: how many items it holds at most; 0 or less: as many as memory allows.
        maxbytes: how many bytes it holds at most, those of arrays included; None for no limit. put() raises ValueError for
            an item that is larger than that.
        ctx: ignored; it is there because multiprocessing has it. Queues work with every start method.

    Raises:
        LimitExceeded: no memory left, or a limit of the broker.

    >>> import cableway as cw
    >>> q = cw.Queue(maxsize=1)
    >>> q.put("a")
    >>> q.full(), q.qsize(), q.get(), q.empty()
    (True, 1, 'a', True)
    """

    def __init__(self, maxsize: int = 0, *, maxbytes: int | None = None, ctx: Any = None) -> None:
        super().__init__(maxsize, maxbytes)

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Puts an object.

        Args:
            obj: anything that can be pickled.
            block: whether to wait while the queue is full.
            timeout: seconds to wait for room at most; None: for ever.

        Raises:
            What a signal's handler raises: the item is not in the queue.
            queue.Full: the queue was full all the time.
            QueueBlocked: the timeout is over, and a process in the middle of a put has not gone on for a second.
            LimitExceeded: no memory left for the item.
            ValueError: the queue is closed, or the item alone is larger than maxbytes.
            BrokerLost: the item has large parts, or the queue has to grow, and the broker that would keep the memory is gone.
            Whatever pickling raises.

        >>> import cableway as cw
        >>> q = cw.Queue()
        >>> q.put([1, 2], timeout=1)
        """
        self._put(obj, _nanoseconds(block, timeout))

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Takes the object that was put first.

        Args:
            block: whether to wait while the queue is empty.
            timeout: seconds to wait for an item at most; None: for ever.

        Raises:
            What a signal's handler raises: an item that was taken is what the next call gives.
            queue.Empty: the queue was empty all the time.
            QueueBlocked: the timeout is over, and a process in the middle of a get has not gone on for a second.
            ValueError: the queue is closed.
            BrokerLost: the item has large parts, and the broker that kept them is gone. The item is lost; the next call takes
                the next item.
            Stale: the queue had grown, and its broker ended before this process took an item from the new memory. This process
                cannot reach the items that are left. Make a new queue.
            Whatever unpickling raises.

        >>> import cableway as cw
        >>> q = cw.Queue(); q.put(b"x"); q.get()
        b'x'
        """
        return self._get(_nanoseconds(block, timeout))

    def put_nowait(self, obj: Any) -> None:
        """put(obj, block=False): does not wait for room."""
        self._put(obj, 0)

    def get_nowait(self) -> Any:
        """get(block=False): does not wait for an item."""
        return self._get(0)

    def qsize(self) -> int:
        """Items in it now, with those that the next get() of this process gives; after close() those at that moment."""
        return self._count()

    def nbytes(self) -> int:
        """Bytes of the items in it now, as maxbytes counts them."""
        return int(self._info().bytes)

    def full(self) -> bool:
        """Whether it holds as many items or bytes as it may hold; after close(), whether it did at that moment."""
        return watching.is_full(self._info())

    def join_thread(self) -> None:
        """Does nothing, since items that were put are in the queue already. As in the standard library, call close() first."""
        assert self._memory is None, f"Queue {self!r} not closed"

    def cancel_join_thread(self) -> None:
        """Does nothing: there is no thread for which the end of this process would wait."""


class JoinableQueue(Queue):
    """A queue that counts the items that are done, with the interface of `multiprocessing.JoinableQueue`.

    If a reader dies between get() and task_done(), or with an item that an interrupted get() had taken, join() waits for ever, as
    in the standard library. An item that is lost because its reader died inside get() counts as done.

    >>> import cableway as cw
    >>> q = cw.JoinableQueue()
    >>> q.put(1); q.get(); q.task_done(); q.join()
    1
    """

    def task_done(self) -> None:
        """Says that an item that was taken is done.

        Raises:
            ValueError: it was called more often than items were put.
        """
        end = self._open()  # kept: a thread may close the queue
        check(lib.cw_queue_task_done(end.pointer))

    def join(self) -> None:
        """Waits until every item that was put is done."""
        end = self._open()  # kept, as in task_done
        part_ns, _ = deadlines.slice_ns(math.inf)
        status = -errno.EINTR
        while status in (-errno.EINTR, -errno.ETIMEDOUT):
            status = lib.cw_queue_wait_done(end.pointer, part_ns)
        check(status)


class SimpleQueue(_Shared):
    """A queue with only get, put and empty, with the interface of `multiprocessing.SimpleQueue`.

    >>> import cableway as cw
    >>> q = cw.SimpleQueue()
    >>> q.put(1); q.get()
    1
    """

    def __init__(self, *, ctx: Any = None) -> None:
        super().__init__()

    def put(self, obj: Any) -> None:
        """Puts an object; see `Queue.put`."""
        self._put(obj, -1)

    def get(self) -> Any:
        """Takes the object that was put first; waits until there is one."""
        return self._get(-1)

    def empty(self) -> bool:
        """Whether there is no item in it now.

        Raises:
            QueueClosed: the queue is closed, whether it was used before or not.
        """
        self._open()
        return super().empty()
