"""Keeps Ray's own way for NumPy arrays that the transport does not take.

Once a process has sent NumPy arrays by a tensor transport, Ray pickles them there in any other message as bytes within the pickle, where it
otherwise puts them beside it, so that readers need no copy. This gives the other messages their own way back.

Within the transport, arrays of Python objects have no bytes that could be shared. They are pickled as Ray pickles all else there, and the
arrays within them are taken out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import ray
from ray import cloudpickle

__all__ = ["restore"]


def restore() -> None:
    """Other NumPy arrays go as if there were no tensor transport. Does nothing before Ray has registered its way."""
    known = cloudpickle.CloudPickler.dispatch.get(np.ndarray)
    if known is not None and not isinstance(known, _Reducer):
        cloudpickle.CloudPickler.dispatch[np.ndarray] = _Reducer(known)


class _Reducer:
    def __init__(self, by_transport: Any) -> None:
        self._by_transport = by_transport

    def __call__(self, array: np.ndarray[Any, Any]) -> Any:
        context = ray._private.worker.global_worker.get_serialization_context()
        sent = getattr(context._thread_local, "use_external_transport", True)
        if sent and not array.dtype.hasobject:
            return self._by_transport(array)
        return array.__reduce_ex__(5)
