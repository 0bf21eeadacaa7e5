"""Arrays that tasks made in shared memory (`cableway.allocate`): their first sending copies nothing.

Before a worker serves a key it looks whether the object is such an array, and whether nobody but its data has it: then the data get a
private view of the block in its place, with a record, and the array is gone. Nobody can write to the block any more. Whatever somebody
has, a view, a buffer, a running task, is copied as ever.

Invariant: a block's handle leaves this process when the array that lay there is gone.

Owner: the event loop, as all that changes the data. The broker dies: the array stays as it is.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection
from typing import Any

import numpy as np
from distributed.utils import nbytes

from cableway import client
from cableway._core import numpy_memory
from cableway._dask import blocks, family, memory, node, records, same

__all__ = ["publish"]

logger = logging.getLogger("cableway.dask")


def _references(data: Any, key: Any) -> int:
    """How often an object of a worker's data is referred to, and in here."""
    obj = memory.held(data, key)
    return sys.getrefcount(obj)


# By the data alone. What is added in here differs by Python's version.
_ALONE = _references({0: np.empty(0)}, 0)


def publish(data: Any, keys: Collection[Any], comm: Any) -> None:
    """Those of a worker's data under these keys that can be shared where they lie are so now. Never blocks.

    Args:
        comm: whoever asks for them.
    """
    if not numpy_memory.used_bytes():
        return
    connection = node.established()
    if connection is None:
        return
    for key in keys:
        view = _published(connection, data, key, comm)
        if view is not None:
            data[key] = view


def _published(connection: client.Connection, data: Any, key: Any, comm: Any) -> Any:
    """The view that stands for the object from now on; None: it stays."""
    if _references(data, key) > _ALONE:
        return None
    obj: Any = memory.held(data, key)
    if type(obj) is not np.ndarray or not obj.flags.owndata or obj.dtype.hasobject:
        return None
    if records.recall(obj, key) is not None:
        return None
    try:
        handle = numpy_memory.handle(connection, obj)
        if handle is None:
            return None
        block = blocks.opened(connection, handle, obj.nbytes)
        context = {"sender": comm.local_info, "recipient": comm.remote_info}
        found = family.framed(obj, {**context, **comm.handshake_options}, whole=True)
        if [nbytes(frame) for frame in found.frames] != [obj.nbytes]:
            return None
        record = family.pack(found, records.name_of(key), lies_in=block)
        del found
        view = None if record is None else family.unpack(record)
    except Exception as error:  # of the store, or of the array's own family: it is copied, and what is wrong is said there
        logger.info("%r is not sent from where it lies: %s", key, error)
        return None
    if not same.alike(obj, view):
        return None
    del obj
    return view if _references(data, key) == _ALONE else None
