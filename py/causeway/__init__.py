"""causeway: arrays shared by name between processes, without copies, and a Pool on them.

>>> import numpy as np, causeway as cw
>>> w = cw.put("weights", np.ones((2, 3)))     # in one process
>>> float(np.asarray(cw.get("weights")).sum()) # in any other
6.0
>>> cw.remove("weights")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from causeway._copies import copy
from causeway._order import work
from causeway.array import Array
from causeway.client import Connection, connect
from causeway.constant import Constant, constant
from causeway.create import asarray, empty, full, zeros
from causeway.device import devices
from causeway.errors import (
    BrokerLost,
    DeviceError,
    Error,
    LimitExceeded,
    NameNotFound,
    NameTaken,
    ProducerDied,
    RemoteError,
    Stale,
    TaskTimeout,
    Timeout,
    WorkerDied,
)
from causeway.name import get, names, put, remove, wait
from causeway.stream import current_stream
from causeway.transfers import In, InOut, Out

if TYPE_CHECKING:
    from causeway.executor import Executor
    from causeway.pool import Pool
    from causeway.queue import JoinableQueue, Queue, SimpleQueue

__all__ = [
    "Array",
    "BrokerLost",
    "Connection",
    "Constant",
    "DeviceError",
    "Error",
    "Executor",
    "In",
    "InOut",
    "JoinableQueue",
    "LimitExceeded",
    "NameNotFound",
    "NameTaken",
    "Out",
    "Pool",
    "ProducerDied",
    "Queue",
    "RemoteError",
    "SimpleQueue",
    "Stale",
    "TaskTimeout",
    "Timeout",
    "WorkerDied",
    "asarray",
    "connect",
    "constant",
    "copy",
    "current_stream",
    "devices",
    "empty",
    "full",
    "get",
    "names",
    "put",
    "remove",
    "wait",
    "work",
    "zeros",
]
__version__ = "0.1.0"


# Imported when first used: they need multiprocessing.
_LATER = {
    "Executor": "causeway.executor",
    "JoinableQueue": "causeway.queue",
    "Pool": "causeway.pool",
    "Queue": "causeway.queue",
    "SimpleQueue": "causeway.queue",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'causeway' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
