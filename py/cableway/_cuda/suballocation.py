"""Suballocations: arrays of other libraries that lie in cableway's memory, passed to other processes without a copy.

A library that allocates from cableway (`cableway.cupy.use()` and the like) may use memory again when its own array is gone. So an
array that was passed on is kept here until no process holds the suballocation any more.

The broker tells the end of a suballocation in shared memory, and it is noticed whenever anything is passed on again. If somebody
waits for such memory to come back (`collect_soon`), a thread looks for it, with pauses that grow to a second, as long as one of these
arrays is in use; then it sleeps. The thread is started when something is passed on (`will_drop`), since a finaliser can run anywhere
and so must not start a thread or take a lock. A forked child has no such thread, and the suballocations belong to the parent.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from cableway import client
from cableway._core import locks
from cableway._core.leases import Lease, lease_served
from cableway._core.library import check, ffi, lib

if TYPE_CHECKING:
    from cableway._cuda.interop import ExternalArray
    from cableway.client import Connection

__all__ = ["borrow", "collect", "collect_soon", "lend", "number_of", "will_drop"]

_lock = locks.RLock()  # a finaliser may come to take it on a thread that has it
_kept: dict[
    int, tuple[Any, Any]
] = {}  # by suballocation: its client, and what must not go before it
_ended = ffi.new("uint64_t *")  # a suballocation that has ended and is in _kept yet, or 0
_NAP_S, _SHORT_NAP_S, _LONGEST_NAP_S = 0.001, 0.01, 1.0
_dropped: queue.SimpleQueue[int] = (
    queue.SimpleQueue()
)  # whose end somebody waits for; any finaliser
_collector: threading.Thread | None = None
_parents: frozenset[int] = frozenset()  # in a forked child: its end is not told here
_numbers: weakref.WeakKeyDictionary[Lease, int] = weakref.WeakKeyDictionary()


def lend(told: ExternalArray, insist: bool) -> Lease | None:
    """A lease on another library's array if it lies in our memory, else None.

    Args:
        insist: raise rather than return None where memory of ours cannot be lent.

    Raises:
        LimitExceeded: (insist) too many pieces of the same slab are lent.
    """
    collect()
    status, lease = _open(lib.cw_array_at, told)
    if status == -errno.ENOENT or (status == -errno.EDQUOT and not insist):
        return None
    check(status)
    return lease


def borrow(told: ExternalArray) -> Lease:
    """A lease on another library's array that lies in memory of its own, by a legacy handle of CUDA's.

    Raises:
        ValueError: the driver gives no handle for such memory.
    """
    status, lease = _open(lib.cw_array_borrow, told)
    check(status)
    assert lease is not None
    return lease


def _open(call: Any, told: ExternalArray) -> tuple[int, Lease | None]:
    connection = client.current()
    address, number = ffi.cast("void *", told.low), ffi.new("uint64_t *")

    def take(out: Any) -> int:
        return int(call(connection.pointer, address, told.layout.span, out, number))

    status, lease = lease_served(Lease, take)
    if status < 0:
        return status, None
    _numbers[lease] = number[0]
    _keep(connection, number[0], told.owner)
    return status, lease


def _keep(connection: Connection, number: int, owner: Any) -> None:
    with _lock:  # the first one will do: a later one may itself hold this suballocation, and would keep it for ever
        _kept.setdefault(number, (connection.pointer, owner))


def collect() -> None:
    """Lets go of the arrays whose suballocations have ended."""
    if not _kept:
        return
    gone: list[Any] = []  # goes after the lock: letting go runs the library's code
    with _lock:
        _take_ended(gone)


def _take_ended(gone: list[Any]) -> None:
    for pointer in {pointer for pointer, _ in list(_kept.values())}:
        told = True
        while told:
            if _ended[0]:  # perhaps told before, when a signal's handler raised
                gone.append(_kept.pop(_ended[0], None))
                _ended[0] = 0
            told = lib.cw_loan_next(pointer, _ended) == 0


def number_of(lease: Lease) -> int | None:
    """The suballocation that a lease came by; None if by none."""
    return _numbers.get(lease)


def will_drop() -> None:
    """`collect_soon` will be called: its thread is there then."""
    global _collector
    with _lock:
        if _collector is None:
            _collector = threading.Thread(
                target=_collect_dropped, name="cableway-suballocations", daemon=True
            )
            _collector.start()


def collect_soon(number: int) -> None:
    """Somebody has dropped an array that was lent: it goes as soon as nobody else holds it. Blocks nobody; also from a
    finaliser.
    """
    _dropped.put(number)


def _collect_dropped() -> None:
    waits: set[int] = set()
    nap = _NAP_S
    while True:
        if not waits or nap > _SHORT_NAP_S:
            try:
                waits.add(_dropped.get(timeout=nap if waits else None))
                nap = _NAP_S
            except queue.Empty:
                pass
        if (
            nap <= _SHORT_NAP_S
        ):  # nobody wakes us meanwhile: who drops one array after the other is not disturbed
            time.sleep(nap)
        nap = min(2 * nap, _LONGEST_NAP_S)
        while not _dropped.empty():
            waits.add(_dropped.get())
            nap = _NAP_S
        collect()
        waits = {number for number in waits if number in _kept and number not in _parents}


def _after_fork_in_child() -> None:
    global _collector, _dropped, _lock, _parents
    _collector, _dropped, _lock = None, queue.SimpleQueue(), locks.RLock()
    _parents = frozenset(_kept)


os.register_at_fork(after_in_child=_after_fork_in_child)
