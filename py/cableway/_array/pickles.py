"""Transits of handles in plain pickles, which somebody may open, or nobody ever.

`pickle.dumps(w)` begins a transit, so that its array stays until the pickle is opened. Many pickles are never opened (they are
hashed, measured, stored), and each holds its transit until the broker's limit of seconds. So they are bound by number, the oldest
first to end: MOST of a process, and fewer where the broker's limit of transits is reached otherwise. What a Pool or a
Queue sends is not among them; it is never ended here, and never refused because of them.

A pickle whose transit ended opens as long as somebody else holds the array; else it is `Stale`.

Owner: the process that pickled, any thread. If it dies the broker ends the transits by their limit. A forked child has none of
its parent's.
"""

from __future__ import annotations

import os
from collections import deque

from cableway import client
from cableway._core.library import ffi, lib, when_full

__all__ = ["MOST", "begun"]

MOST = 65_536  # as many transits as one client may have
_END_AT_ONCE = 4096  # where the limit is reached

_handles: deque[bytes] = deque()


def begun(handle: bytes) -> None:
    """A plain pickle has this handle, with a transit of its own."""
    _handles.append(handle)
    if len(_handles) > MOST:
        _end(1)


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


def _make_room() -> bool:
    return _end(max(1, min(_END_AT_ONCE, len(_handles) // 2)))


when_full(_make_room)
os.register_at_fork(after_in_child=_handles.clear)
