"""What Ray leaves undone: at the end of a session (`ray.shutdown`), and for objects without arrays.

Ray's store of tensors and its metadata stay in a driver that ends its session while a reference is there. They would keep the memory, and
the next session gives the same ids again: its objects would get the arrays of the old ones. So what belongs to our transports is let go
when the worker has no mode any more: Ray sets that last, when its threads are gone.

Ray gives an object of `ray.put` no metadata if no array was taken out of it, and its readers fail or wait for ever. Such an object is given
an empty array beside it, which nobody sees.

Ray makes a process's store of tensors without a lock; it is made here, before a second thread needs it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from ray._private.ray_constants import OBJECT_METADATA_TYPE_PYTHON
from ray._private.serialization import SerializationContext
from ray._private.worker import Worker

from cableway._ray import plain

__all__ = ["TRANSPORTS", "watch"]

OF_NUMPY = "cableway_numpy".upper()  # Ray writes their names in capitals
TRANSPORTS = ("CABLEWAY", OF_NUMPY)

_watched = False
_prepared: weakref.WeakSet[SerializationContext] = weakref.WeakSet()  # in which `plain` has its way


def watch(ended: Callable[[], None]) -> None:
    """From now on. May be repeated.

    Args:
        ended: is called when a session has ended; lets go of what this process has shared.
    """
    global _watched
    if _watched:
        return
    _watched = True
    # Ray makes it at first use, without a lock: the thread that receives and the one of the task each made one, and the task waited for 60 s.
    _ = ray._private.worker.global_worker.rdt_manager
    set_mode, serialize = Worker.set_mode, SerializationContext.serialize_rdt_objects

    @functools.wraps(set_mode)
    def set_mode_and_let_go(self: Any, mode: Any) -> None:
        set_mode(self, mode)
        if mode is None and self is ray._private.worker.global_worker:
            _forget(self._rdt_manager)
            ended()

    @functools.wraps(serialize)
    def serialize_with_an_array(self: Any, value: Any, tensor_transport: str) -> Any:
        if tensor_transport == OF_NUMPY and self not in _prepared:
            # Ray registers how arrays are pickled, once a session
            serialize(self, None, tensor_transport)
            plain.restore()
            _prepared.add(self)
        found, tensors = serialize(self, value, tensor_transport)
        needs_metadata = found.metadata == OBJECT_METADATA_TYPE_PYTHON
        if needs_metadata and not tensors and tensor_transport in TRANSPORTS:
            tensors = [np.empty(0, "u1")]
        return found, tensors

    Worker.set_mode = set_mode_and_let_go
    SerializationContext.serialize_rdt_objects = serialize_with_an_array


def _forget(manager: Any) -> None:
    """What Ray has of our transports in this process."""
    if manager is None:
        return
    with manager._lock:
        known = manager._managed_rdt_metadata
        gone = {
            object_id: known.pop(object_id)
            for object_id, found in list(known.items())
            if found.tensor_transport_backend in TRANSPORTS
        }
    store = manager.rdt_store
    for object_id in gone:
        while store.has_object(object_id):
            try:
                store.pop_object(object_id)
            except Exception:  # noqa: BLE001 - what was received was an error, which goes with it
                continue
