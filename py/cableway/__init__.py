"""cableway: arrays shared by name between processes, without copies, and a Pool on them.

>>> import numpy as np, cableway as cw
>>> w = cw.put("weights", np.ones((2, 3)))     # in one process
>>> float(np.asarray(cw.get("weights")).sum()) # in any other
6.0
>>> cw.remove("weights")
"""

from __future__ import annotations

import errno
import importlib
import os
from typing import TYPE_CHECKING, Any

from cableway._core import imports as _imports  # noqa: F401 - first: a fork may come while the rest is imported

# isort: split
from cableway._array.copies import copy
from cableway._cuda.stream_order import work
from cableway._load.trees import load
from cableway._transport.handles import from_handle, to_handle
from cableway.array import Array
from cableway.client import Connection, connect
from cableway.constant import Constant, constant
from cableway.create import asarray, empty, full, zeros
from cableway.device import devices
from cableway.errors import (
    BrokerLost,
    DeviceError,
    Error,
    GroupBroken,
    LayoutChanged,
    LimitExceeded,
    NameExists,
    NameNotFound,
    NameTaken,
    NotATree,
    ProducerDied,
    QueueBlocked,
    RemoteError,
    Stale,
    TaskTimeout,
    Timeout,
    VersionChanged,
    WorkerDied,
)
from cableway.name import get, names, put, remove, wait
from cableway.stream import current_stream
from cableway.transfers import In, InOut, Out
from cableway.tree import Tree

if TYPE_CHECKING:
    from cableway._watch.status import Status, status
    from cableway.executor import Executor
    from cableway.group import Group
    from cableway.pool import Pool
    from cableway.queue import JoinableQueue, Queue, SimpleQueue

__all__ = [
    "Array",
    "BrokerLost",
    "Connection",
    "Constant",
    "DeviceError",
    "Error",
    "Executor",
    "Group",
    "GroupBroken",
    "In",
    "InOut",
    "JoinableQueue",
    "LayoutChanged",
    "LimitExceeded",
    "NameExists",
    "NameNotFound",
    "NameTaken",
    "NotATree",
    "Out",
    "Pool",
    "ProducerDied",
    "Queue",
    "QueueBlocked",
    "RemoteError",
    "SimpleQueue",
    "Stale",
    "Status",
    "TaskTimeout",
    "Timeout",
    "Tree",
    "VersionChanged",
    "WorkerDied",
    "asarray",
    "connect",
    "constant",
    "copy",
    "current_stream",
    "devices",
    "empty",
    "from_handle",
    "full",
    "get",
    "load",
    "names",
    "put",
    "remove",
    "status",
    "to_handle",
    "wait",
    "work",
    "zeros",
]
__version__ = "0.1.0"


# Imported when first used: they need multiprocessing or subprocess.
_LATER = {
    "Executor": "cableway.executor",
    "Group": "cableway.group",
    "JoinableQueue": "cableway.queue",
    "Pool": "cableway.pool",
    "Queue": "cableway.queue",
    "SimpleQueue": "cableway.queue",
    "Status": "cableway._watch.status",
    "status": "cableway._watch.status",
}

# Modules that nothing imports by itself, since each needs another package or is named like one.
_MODULES = frozenset({"cupy", "joblib", "numba", "safetensors", "torch"})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        raise AttributeError(
            f"module 'cableway' has no attribute {name!r}; it is a module of its own: `import cableway.{name}`"
        )
    if name not in _LATER:
        raise AttributeError(f"module 'cableway' has no attribute {name!r}")
    try:
        module = importlib.import_module(_LATER[name])
    except OSError as error:  # a file of it, or of a module that it imports, could not be opened
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise LimitExceeded(
            f"cableway.{name} is imported when it is first used, and its files could not be opened: {error}; this process may "
            f"open {os.sysconf('SC_OPEN_MAX')} files: raise that limit (ulimit -n) and start it again"
        ) from error
    found = globals()[name] = getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
