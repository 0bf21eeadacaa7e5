"""Loans: arrays of other libraries that lie in our memory, given to other processes without a copy.

A library that has its memory from us (`causeway.cupy.use()` and the like) may use it anew when its own array is gone.
So the array that was lent is kept here until nobody holds the loan any more.
"""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING, Any

from causeway import client
from causeway._lib import check, ffi, lib
from causeway.views import Lease

if TYPE_CHECKING:
    from causeway._gpu import Foreign
    from causeway.client import Connection

__all__ = ["borrow", "collect", "lend"]

_lock = threading.RLock()  # a finaliser may come to take it on a thread that has it
_kept: dict[int, tuple[Any, list[Any]]] = {}  # by loan: its client, and what must not go before it


def lend(told: Foreign, insist: bool) -> Lease | None:
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


def borrow(told: Foreign) -> Lease:
    """A lease on another library's array that lies in memory of its own, by a legacy handle of CUDA's.

    Raises:
        ValueError: the driver gives no handle for such memory.
    """
    status, lease = _open(lib.cw_array_borrow, told)
    check(status)
    assert lease is not None
    return lease


def _open(call: Any, told: Foreign) -> tuple[int, Lease | None]:
    connection = client.current()
    out, number = ffi.new("cw_array **"), ffi.new("uint64_t *")
    status = call(connection.pointer, ffi.cast("void *", told.low), told.layout.span, out, number)
    if status < 0:
        return status, None
    lease = Lease(out[0])
    _keep(connection, number[0], told.owner)
    return status, lease


def _keep(connection: Connection, number: int, owner: Any) -> None:
    with _lock:
        _, owners = _kept.setdefault(number, (connection.pointer, []))
        if not any(owner is known for known in owners):
            owners.append(owner)


def collect() -> None:
    """Lets go of the arrays whose loans have ended."""
    if not _kept:
        return
    ended = ffi.new("uint64_t *")
    gone = []  # goes after the lock: letting go runs the library's code
    with _lock:
        for pointer in {pointer for pointer, _ in list(_kept.values())}:
            while lib.cw_loan_next(pointer, ended) == 0:
                gone.append(_kept.pop(ended[0], None))
