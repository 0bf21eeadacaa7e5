"""What the programs share: a cluster, tasks, and looks into workers. Runs in the environment of Dask."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster

import cableway.dask  # noqa: F401 - before the cluster is made
from cableway._dask import memory, node, records

MIB = 1 << 20
kept: list[Any] = []  # by tasks, in a worker

dask.config.set(
    {"distributed.comm.timeouts.connect": "120s", "distributed.deploy.lost-worker-timeout": "120s"}
)


@contextlib.contextmanager
def cluster(workers: int = 4, **options: Any) -> Iterator[tuple[Client, list[str]]]:
    """A client of a new cluster, and its workers' addresses."""
    made = LocalCluster(
        n_workers=workers,
        **{"threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0, **options},
    )
    with made, Client(made, timeout="120s") as client:
        client.wait_for_workers(workers, timeout=120)
        yield client, addresses(client)


def addresses(client: Client) -> list[str]:
    """Of all workers."""
    return [*client.run(os.getpid)]


def made(mib: float, log: str = "", fill: float = 1.0) -> np.ndarray[Any, Any]:
    """An array whose numbers differ; a line in the log for each time that it is made."""
    if log:
        with open(log, "a") as lines:
            lines.write("made\n")
    return np.arange(int(mib * MIB) // 8, dtype="f8") + fill


def total_of(mib: float, fill: float = 1.0) -> float:
    """Their sum."""
    count = int(mib * MIB) // 8
    return count * (count - 1) / 2 + count * fill


def total(x: Any) -> float:
    """The sum of an array."""
    return float(x.sum())


def spoiled(x: Any) -> float:
    """The sum that a task sees, before it writes all over its argument."""
    found = float(x.sum())
    x[:] = 7
    assert float(x.sum()) == 7.0 * x.size
    return found


def times_made(log: Path) -> int:
    """How often `made` was called."""
    return len(log.read_text().splitlines())


def look(dask_worker: Any) -> dict[str, Any]:
    """A worker's memory and data."""
    fast = getattr(dask_worker.data, "fast", dask_worker.data)
    values = dict(getattr(fast, "d", fast))
    return {
        "pid": os.getpid(),
        "private": memory.private_bytes(),
        "mapped": {key: records.mapped_bytes(value) for key, value in values.items()},
        "spilled": len(getattr(dask_worker.data, "slow", ())),
        "status": dask_worker.status.name,
    }


def used() -> int:
    """Bytes of shared memory that the broker has given out."""
    assert node.connection() is not None  # without one, nothing is known of the store
    found = memory.store()
    assert found.limit, found
    return found.used


def main(functions: dict[str, Any]) -> None:
    """Runs the function that the command line names."""
    name, *arguments = sys.argv[1:]
    functions[name](*arguments)
    print("well")
