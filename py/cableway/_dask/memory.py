"""Two budgets: each worker's private memory, and the shared memory of the node.

Private is what a process would give back if it ended alone: its resident memory without the shared pages that it has mapped. Dask's
limits of a worker (spill at 70 %, pause at 80 %, an end by the nanny at 95 %) count that. Shared memory has one limit for the node,
the broker's (`CABLEWAY_MAX_BYTES`). When more than 70 % of it is in use, workers spill the oldest of their data that lie there.

What nobody uses any more comes back to the process that made it, which keeps so much of it as `CABLEWAY_CACHE_BYTES` says. It has to
look for that: a worker does so every 2 s, another process for as long after it sent handles as something has not come back.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import weakref
from typing import Any, NamedTuple

from cableway import client
from cableway._core import idle_memory, numpy_memory, programs
from cableway._dask import records

__all__ = [
    "ALLOCATE_FRACTION",
    "LOOK_SECONDS",
    "SHARED_SPILL_FRACTION",
    "Store",
    "collect_soon",
    "held",
    "oldest_shared",
    "own_bytes",
    "parts",
    "private_bytes",
    "store",
]

LOOK_SECONDS = 2.0
SHARED_SPILL_FRACTION = 0.7
ALLOCATE_FRACTION = 0.5  # of it in use: tasks' arrays lie in private memory (`cableway.allocate`)
_ASK_SECONDS = 10.0


def private_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process, in bytes, without shared pages (RssShmem: ours, and any other shared memory).

    Raises:
        OSError: there is no such process.

    >>> private_bytes() > 1 << 20
    True
    """
    found = {"VmRSS": 0, "RssShmem": 0}
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) << 10  # kB
    return found["VmRSS"] - found["RssShmem"]


def own_bytes() -> int:
    """The same of this process, with its memory of ours that nobody else has (`cableway.allocate`)."""
    return private_bytes() + numpy_memory.used_bytes()


class Store(NamedTuple):
    """The shared memory of the node, in bytes. limit 0: unknown."""

    used: int
    limit: int


def store() -> Store:
    """As the broker's monitor page says, which `cableway status` reads: nothing is asked of the broker. Some milliseconds."""
    found = client.known()
    if found is None or found.closed or found.lost:
        return Store(0, 0)
    done = subprocess.run(
        [programs.path("cableway"), "status", "--json"],
        env={**os.environ, "CABLEWAY_DIR": os.path.dirname(found.address)},
        capture_output=True,
        timeout=_ASK_SECONDS,
        check=False,
    )
    if done.returncode:
        return Store(0, 0)
    said = json.loads(done.stdout)
    return Store(int(said["gauges"]["bytes"]), int(said["limits"]["max_bytes"]))


def parts(data: Any) -> list[Any]:
    """Of a worker's data those dicts whose objects are in memory: of Dask's one, of dask-cuda's (`DeviceHostFile`) one for the host and
    one for the GPU. To look into them brings nothing back from disk or to the GPU.
    """
    fast = getattr(data, "fast", data)
    on_gpu = getattr(data, "device", None)
    return [getattr(fast, "d", fast), *([] if on_gpu is None else [on_gpu])]


def held(data: Any, key: Any) -> object | None:
    """What a worker has in memory under the key; None: nothing."""
    return next((part[key] for part in parts(data) if key in part), None)


def oldest_shared(fast: Any) -> object | None:
    """The key, among the data in a worker's memory, whose shared memory was used last the longest time ago; None: there is none."""
    return next((key for key in fast.order if records.mapped_bytes(fast.d[key])), None)


_collecting: weakref.WeakSet[Any] = weakref.WeakSet()  # event loops that will look


def collect_soon() -> None:
    """This process let go of blocks: looks for what comes back of them, on its event loop, until all has."""
    loop = asyncio.get_running_loop()
    if loop not in _collecting:
        _collecting.add(loop)
        loop.call_later(LOOK_SECONDS / 2, _collect, loop)


def _collect(loop: Any) -> None:
    if idle_memory.settle():
        loop.call_later(LOOK_SECONDS, _collect, loop)
    else:
        _collecting.discard(loop)
