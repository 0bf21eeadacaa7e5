"""Blocks: how large arguments and results cross from one process to another.

The sender copies a buffer once into a *block*, an array in its own slabs, and names it in the message. The receiver takes a lease on
the block and builds its object as a view on it, which it may write. The sender keeps its own lease, so that it can use the block
again when the receiver has said that the last view is gone; the pages are then already mapped in both processes.

The receiver says so in the block's first word. So a finaliser, which may run at any moment, needs neither a lock nor a message:

    LENT      sent, but not opened yet
    OPENED    the receiver has opened it
    RETURNED  the last view is gone: the sender may use it again
    LEFT      the last view is gone, but a process that was forked meanwhile may still use the block: the sender closes it

A block with several receivers (`_transport.shared_arguments`) does not use the word: receivers open it copy-on-write, and the
sender closes it.

Each word has one writer at a time: the sender until the message is sent, then the receiver. x86-64 makes stores visible in order, so
everything that a view wrote or read is complete when the word says RETURNED.

If a message is released while its block's word is still LENT, the receiver has refused it, and the sender may use the block again at
once.

Deaths: a lease ends with its holder. A receiver that dies never returns its blocks: the sender drops them, and the broker takes the
memory back when no lease is left. If the sender dies, only its lease ends: what the receiver has opened stays.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from typing import Any, TypeVar

import numpy as np

from cableway import client
from cableway._core import idle_memory, locks
from cableway._core.byte_blocks import bytes_layout
from cableway._core.leases import Lease, lease_again
from cableway._core.library import check_again, exported, failure, ffi, keeping, lib
from cableway._dispatch import LeaseCell
from cableway.errors import BrokerLost, Error, Stale

__all__ = [
    "HEADER_BYTES", "THRESHOLD_BYTES", "Block", "BlockLease", "BlockStore", "buffer_of", "open_block", "open_into", "open_lease",
    "open_silently",
]  # fmt: skip

THRESHOLD_BYTES = 64 << 10  # smaller buffers travel inside the message
LENT, RETURNED, LEFT, OPENED = 1, 2, 3, 4
HEADER_BYTES = 64
_LOOK_AT = 32  # lent blocks that one search for memory looks at
_MISSES_MIN = 4  # of these that have not come back; and one more for each
_MISS_BYTES = (
    64 << 10
)  # that are searched for: 32 looks take as long as it takes to make a block of some 100 KiB
_LOOKS_EACH = (
    4  # blocks that must stay, that are looked at for each one that is lent above the limit
)

_Kind = TypeVar("_Kind", bound=Lease)
_forks = 0  # how often this process has forked


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=_count_fork)


class Block:
    """One piece of memory that the sender owns."""

    __slots__ = (
        "_handle",
        "_lease",
        "_word",
        "address",
        "array",
        "capacity",
        "connection",
        "receiver",
    )

    def __init__(self, connection: client.Connection, capacity: int) -> None:
        layout = bytes_layout(capacity + HEADER_BYTES)
        self._lease = lease_again(Lease, lib.cw_array_new, connection.pointer, b"cpu", layout.c, 0)
        self.array: Any = self._lease.pointer
        base = lib.cw_array_data(self.array)
        self._handle: bytes | None = None
        self._word = ffi.cast("uint32_t *", base)
        self.address = int(ffi.cast("uintptr_t", base)) + HEADER_BYTES
        self.capacity = capacity
        self.connection = connection
        self.receiver: object = None

    @property
    def handle(self) -> bytes:
        """Names it for a receiver."""
        if self._handle is None:  # a queue's item never asks for it
            self._handle = ffi.buffer(exported(self.array, 0))[:]
        return self._handle

    @property
    def state(self) -> int:
        """LENT, OPENED, RETURNED or LEFT."""
        return int(self._word[0])

    def lend(self) -> None:
        """Before its message is sent."""
        self._word[0] = LENT

    def memory(self, nbytes: int) -> Any:
        """Its first bytes, to be written. Valid while the block is held."""
        lib.cw_array_prefault(self.array)
        return ffi.buffer(ffi.cast("char *", self.address), nbytes)

    def write(self, values: np.ndarray[Any, Any]) -> None:
        """Copies a contiguous array into its first bytes."""
        source = ffi.cast("void *", values.__array_interface__["data"][0])
        nothing = ffi.NULL
        check_again(
            lib.cw_array_copy_in, self.array, HEADER_BYTES, source, -1, values.nbytes, nothing
        )

    def close(self) -> None:
        """Ends the sender's lease. May be repeated."""
        self.array = None
        self._lease.end()


class BlockStore:
    """The blocks of one sender: free ones, and those that were lent and may come back.

    Args:
        limit_bytes: how much it keeps, free or lent, beyond what is under way. A block that is larger is not kept.
        in_transit: what was lent is held by the broker too until it is opened, so the sender may let go of it at any time.

    What is free is given up before anybody in this process is refused memory (`give_up`), and when the Pool ends: what
    comes back later is let go of. Any thread may call it. A forked child must not.
    """

    def __init__(self, limit_bytes: int, *, in_transit: bool = False) -> None:
        self._limit = limit_bytes
        self._in_transit = in_transit
        self._lock = locks.RLock()  # a finaliser may come to take it on a thread that has it
        self._free: list[Block] = []
        self._lent: deque[Block] = deque()
        self._free_bytes = 0
        self._lent_bytes = 0
        self._closed = False
        _stores.add(self)

    def take(self, nbytes: int) -> Block:
        """A block of at least nbytes.

        Raises:
            LimitExceeded: no memory left, or a limit of the broker.
            BrokerLost: the broker is gone.
        """
        connection = client.current()
        with self._lock:
            self._look(misses=_MISSES_MIN + nbytes // _MISS_BYTES)
            best = self._best(connection, nbytes)
            if best is not None:
                self._free.remove(best)
                self._free_bytes -= best.capacity
                return best
        return Block(connection, _rounded(nbytes))

    def _best(self, connection: client.Connection, nbytes: int) -> Block | None:
        best: Block | None = None
        for block in self._free:
            if block.connection is not connection:
                continue
            if nbytes <= block.capacity <= 2 * nbytes and (
                best is None or block.capacity < best.capacity
            ):
                best = block
        return best

    def untake(self, blocks: list[Block]) -> None:
        """These were taken and never sent."""
        with self._lock:
            for block in blocks:
                self._keep(block)

    def lent(self, blocks: list[Block], receiver: object) -> None:
        """These were sent: from now on only the receiver's word is looked at."""
        if not blocks:
            return
        with self._lock:
            for block in blocks:
                block.receiver = receiver
                self._lent.append(block)
                self._lent_bytes += block.capacity
            self._let_go(_LOOKS_EACH * len(blocks))

    def _let_go(self, looks: int) -> None:
        """Of lent blocks above the limit. However many there are, each that is lent costs a constant: a look at a few of
        them where some must stay, and else its own end."""
        while self._lent_bytes > self._limit and looks and self._lent:
            block = self._lent.popleft()
            state = block.state
            if (
                state == LENT and not self._in_transit
            ):  # let go now, it would be gone before it is opened
                self._lent.append(block)
                looks -= 1
                continue
            self._lent_bytes -= block.capacity
            if state == RETURNED:
                self._keep(block)
            else:
                block.close()

    def refused(self, blocks: list[Block]) -> None:
        """These were sent, and the receiver has let go of their message: what of them it has not opened, it never will."""
        back = [block for block in blocks if block.state == LENT]
        if not back:
            return
        with self._lock:
            for block in back:
                self._lent.remove(block)
                self._lent_bytes -= block.capacity
                self._keep(block)

    def lost(self, receiver: object) -> None:
        """The receiver died: nothing that was lent to it comes back."""
        with self._lock:
            staying: deque[Block] = deque()
            for block in self._lent:
                if block.receiver is receiver:
                    self._lent_bytes -= block.capacity
                    block.close()
                else:
                    staying.append(block)
            self._lent = staying

    def close(self) -> None:
        """Ends all leases of the sender. Receivers keep what they have opened."""
        with self._lock:
            self._closed = True
            for block in [*self._free, *self._lent]:
                block.close()
            self._free.clear()
            self._lent.clear()
            self._free_bytes = self._lent_bytes = 0

    def give_up(self) -> bool:
        """Lets go of all that is free. Whether there was some."""
        with self._lock:
            self._look(len(self._lent))
            given, self._free, self._free_bytes = self._free, [], 0
        for block in given:
            block.close()
        return bool(given)

    def _look(self, most: int = _LOOK_AT, misses: int | None = None) -> None:
        for _ in range(min(len(self._lent), most)):
            block = self._lent.popleft()
            state = block.state
            if state == RETURNED:
                self._lent_bytes -= block.capacity
                self._keep(block)
            elif state == LEFT:
                self._lent_bytes -= block.capacity
                block.close()
            else:
                self._lent.append(block)
                if misses is not None:
                    misses -= 1
                    if misses <= 0:
                        break

    def _keep(self, block: Block) -> None:
        if self._closed or block.connection.lost:
            block.close()
            return
        self._free.append(block)
        self._free_bytes += block.capacity
        while self._free_bytes > self._limit:
            oldest = self._free.pop(0)
            self._free_bytes -= oldest.capacity
            oldest.close()


_stores: weakref.WeakSet[BlockStore] = weakref.WeakSet()


def _give_up_idle() -> bool:
    return sum(store.give_up() for store in list(_stores)) > 0


def _forget_stores() -> None:
    """In a forked child they are the parent's."""
    global _stores
    _stores = weakref.WeakSet()


idle_memory.kept.append(_give_up_idle)
os.register_at_fork(after_in_child=_forget_stores)


def _rounded(nbytes: int) -> int:
    """A size that later requests of about this size can use: eighths of a power of two, header included.

    >>> _rounded(64 << 20) + 64 == 72 << 20, _rounded((64 << 20) - 64) + 64 == 64 << 20
    (True, True)
    """
    whole = nbytes + HEADER_BYTES
    step = max(4096, 1 << max((whole - 1).bit_length() - 4, 0))
    return -(-whole // step) * step - HEADER_BYTES


def open_into(cell: Any, handle: bytes, nbytes: int, *, private: bool = False) -> Exception | None:
    """Opens the first nbytes of a block that another process lent into a cell (`_dispatch.LeaseCell`), unless they are open
    there. What is open is noted by C, so this may be called again when a signal's handler has interrupted it.

    Args:
        cell: gives the block back when it goes.
        private: others get the block too: what is written is this process's alone, and its sender is not told.

    Returns:
        Why it cannot be opened: Stale, when the sender died before; BrokerLost. What is raised is a handler's.
    """
    raw = ffi.from_buffer("cw_handle *", handle)
    end = HEADER_BYTES + nbytes
    if end > raw.size_bytes:
        return ValueError(
            f"a message names the bytes up to {end} of memory that has {raw.size_bytes}"
        )
    layout = bytes_layout(raw.size_bytes).c
    try:
        connection = _connection_of(raw)
    except Error as error:
        return error
    flags = lib.CW_PRIVATE if private else 0
    number = int(ffi.cast("uintptr_t", layout))
    pointer = connection.pointer  # stays for as long as the call lasts, though a thread closes it
    status = cell.open(connection.number, handle, number, flags, not private)
    del pointer
    return _explained(failure(status), raw, connection) if status < 0 else None


def buffer_of(cell: Any, nbytes: int) -> Any:
    """What was opened into a cell, as a writable buffer that keeps the cell."""
    base = ffi.cast("char *", cell.data()) + HEADER_BYTES
    return ffi.buffer(keeping(base, cell), nbytes)


def open_block(handle: bytes, nbytes: int, *, private: bool = False) -> Any:
    """The first nbytes of a block that another process lent, as a writable buffer that holds the lease; see `open_into`.

    Raises:
        Stale: the sender died before it could be opened.
    """
    cell = LeaseCell()
    why_not = open_into(cell, handle, nbytes, private=private)
    if why_not is not None:
        raise why_not
    return buffer_of(cell, nbytes)


class BlockLease(Lease):
    """A lease on a block that another process lent, for an array on it.

    When it ends the sender may use the block again, unless somebody else may have been told of it: whoever hands the
    array on, or names it, needs `pointer`.
    """

    __slots__ = ("_forks", "_known", "_pid", "_word", "own")

    def __init__(self) -> None:
        super().__init__()
        self._word: Any = None
        self._known = False
        self._forks = _forks
        self._pid = os.getpid()

    def opened(self) -> None:
        """The array is there, and its sender is told."""
        self.own = self.out[0]
        self._word = ffi.cast("uint32_t *", lib.cw_array_data(self.own))
        self._word[0] = OPENED

    @property
    def pointer(self) -> Any:
        """The `cw_array *`, for whoever may tell others of it."""
        self._known = True
        return self.own

    def __del__(self, getpid: Any = os.getpid) -> None:
        try:
            if self._word is not None and getpid() == self._pid:
                stays = self._known or self._forks != _forks
                self._word[0] = LEFT if stays else RETURNED
        except AttributeError:
            pass  # it was interrupted as it began

    @property
    def readonly(self) -> bool:
        """Whether it is mapped read-only."""
        return bool(lib.cw_array_readonly(self.own))

    @property
    def gpu(self) -> int:
        """-1: it lies on the host."""
        return -1

    def span(self) -> tuple[int, int]:
        """The address of the lowest byte in this process, and the bytes from there to behind the highest one."""
        nbytes = ffi.new("uint64_t *")
        low = lib.cwpy_memory(self.own, nbytes)
        return int(ffi.cast("uintptr_t", low)), nbytes[0]


def open_lease(handle: bytes, nbytes: int) -> BlockLease:
    """As `open_block`, for an array that lies in the block, HEADER_BYTES behind its beginning."""
    return _opened(BlockLease, handle, HEADER_BYTES + nbytes, 0)


def open_silently(handle: bytes, end: int, flags: int = 0) -> Lease:
    """A lease on an array of another process's of which at least the bytes before end are there. A block's sender is not
    told: it may use the block again whenever the one to whom it lent it says so.

    Raises:
        Stale: it is gone.
        BrokerLost: it went with its broker, and another one runs.
    """
    return _opened(Lease, handle, end, flags)


def _explained(error: Exception, raw: Any, connection: client.Connection) -> Exception:
    """A block of a broker that has ended: its user has no handle, and calls again."""
    if not isinstance(error, Stale) or connection.instance == raw.instance:
        return error
    return BrokerLost(
        "the broker that held the arrays of this call has ended, and another one runs; call again, "
        "with a new Array for each that you passed"
    )


def _connection_of(raw: Any) -> client.Connection:
    connection = client.current()
    if connection.instance != raw.instance:  # the broker was lost, and one side knows it already
        connection = client.for_instance(raw.instance, connection.address)
    return connection


def _opened(kind: type[_Kind], handle: bytes, end: int, flags: int) -> _Kind:
    """A lease on an array, as bytes."""
    raw = ffi.from_buffer("cw_handle *", handle)
    if end > raw.size_bytes:
        raise ValueError(
            f"a message names the bytes up to {end} of memory that has {raw.size_bytes}"
        )
    connection = _connection_of(raw)
    layout = bytes_layout(raw.size_bytes)
    try:
        return lease_again(kind, lib.cw_array_open, connection.pointer, raw, layout.c, flags)
    except Stale as error:
        raise _explained(error, raw, connection) from None
