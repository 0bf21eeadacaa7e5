"""Transits of handles in plain pickles, which may be opened later or never.

`pickle.dumps(w)` begins a transit, so that the array stays until the pickle is opened. Many pickles are never opened (they are
hashed, measured or stored), and each would keep its transit until the broker's limit of seconds. So their number is limited: a
process keeps at most MOST of them, or fewer if the broker's limit of transits would be exceeded. The oldest end first. Transits of
a Pool or a Queue do not count; they are never ended here, and never refused because of plain pickles.

A pickle may be opened by many: `comm.bcast(a)` of mpi4py pickles once, and each rank opens that one pickle, the root first. Nobody
tells how many they are, and the sender may have let go. So the array stays for `pickle_seconds` after another process first opened a
pickle of it, or after the end of its maker if that alone did (broker/memory/transit.h). Who knows the number says it: `to_handle(a, openers=n)`.

A pickle whose transit has ended can be opened as long as another process holds the array; after that it is `Stale`.

Owner: the process that pickled, any of its threads. If it dies, the broker ends the transits at their limit. A forked child has
none of its parent's.
"""

from __future__ import annotations

import os
from collections import deque

from cableway import client
from cableway._core.library import ffi, lib, when_full

__all__ = ["MOST", "UNKNOWN", "begun", "make_room"]

UNKNOWN = int(lib.CW_OPENERS_UNKNOWN)  # as many openers as a plain pickle has
MOST = 65_536  # as many transits as one client may have
_END_AT_ONCE = 4096  # where the limit is reached

_handles: deque[bytes] = deque()


def begun(handle: bytes) -> None:
    """A plain pickle has this handle, with a transit of its own."""
    _handles.append(handle)
    if len(_handles) > MOST:
        _end(len(_handles) - MOST)


def _end(count: int) -> bool:
    """Ends the oldest ones; False: there are none."""
    connection = client.known()
    ended = False
    for _ in range(count):
        try:
            handle = _handles.popleft()
        except IndexError:
            break
        ended = True
        raw = ffi.from_buffer("cw_handle *", handle)
        if connection is not None and not connection.closed and raw.instance == connection.instance:
            lib.cw_handle_discard(connection.pointer, raw)  # nothing, if it was opened meanwhile
    return ended


def make_room() -> bool:
    """Ends the oldest transits of plain pickles; False: there are none."""
    return _end(max(1, min(_END_AT_ONCE, len(_handles) // 2)))


when_full(make_room)
os.register_at_fork(after_in_child=_handles.clear)
