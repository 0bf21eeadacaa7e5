"""A Dask cluster whose workers on a node share large arrays: import this module before you make the cluster.

>>> import cableway.dask
>>> from dask.distributed import LocalCluster, Client
>>> with LocalCluster(n_workers=2, dashboard_address=None) as cluster, Client(cluster) as c:  # doctest: +SKIP
...     x = c.submit(numpy.ones, 32 << 20)                                           # 256 MiB
...     c.gather([c.submit(numpy.sum, x, workers=w, pure=False) for w in cluster.workers])

What workers of a node send each other, and a client that reads from them directly, goes by handle from 1 MiB on: NumPy arrays, pandas,
Arrow, sparse matrices, whatever Dask serializes with large frames. The sender copies a frame into shared memory once; all readers, and
from then on the sender itself, see that memory, each by a private view: what a task writes into its argument no other process sees.
Between nodes whose brokers know each other and may read `dask/*`, such objects from 8 MiB on go by `cableway-bridge`, once a node.
Everything else goes as bytes, as always: to the scheduler, to other nodes, and to processes without cableway. These, too, are the bytes
that were first sent.

The import changes Dask in this process (the backends of tcp and tls, and the policy of the memory manager), and sees to it that
schedulers, workers and nannies that are started from here import it, too; workers and nannies whatever other preloads they are given.
On other machines: `dask worker --preload cableway.dask`, and the same of `dask scheduler`; or
`DASK_DISTRIBUTED__WORKER__PRELOAD='["cableway.dask"]'` and the like in the environment.

`cableway.threshold` in Dask's configuration (`DASK_CABLEWAY__THRESHOLD`) is the size from which a frame goes by handle, and
`cableway.bridge-threshold` (`DASK_CABLEWAY__BRIDGE_THRESHOLD`) that of all of an object's such frames from which they go by the bridge.
NumPy's large arrays of tasks lie in shared memory that their worker has used before, where some is free, and the first sending copies
nothing, either; `cableway.allocate: true` (`DASK_CABLEWAY__ALLOCATE`) says always, `false` never.
With `cableway.gpu-share: true` (`DASK_CABLEWAY__GPU_SHARE`) the workers of a GPU use one copy of an array there; no task may write to it.
"""

from __future__ import annotations

from typing import Any

import dask.config
import distributed
from distributed.comm.registry import backends
from distributed.protocol.serialize import register_serialization_family

from cableway._dask import family, gpu_objects, preloads, records, settings, worker
from cableway._dask.comm import TCPBackend, TLSBackend
from cableway._dask.replicas import OneCopyANode

__all__ = ["OneCopyANode", "dask_setup", "enable", "shared_bytes"]

_MANAGER = "distributed.scheduler.active-memory-manager.policies"
_ROUTES = "distributed.scheduler.http.routes"


def enable() -> None:
    """What the import does. May be repeated, after Dask's configuration was read anew.

    Raises:
        ValueError: `cableway.threshold`, `cableway.bridge-threshold` or `cableway.gpu-keep` is no size, `cableway.gpu-share` is neither
            true nor false, or `cableway.allocate` none of these and not "reuse".
    """
    settings.check()
    register_serialization_family("cableway", family.dumps, family.loads)
    gpu_objects.register()
    backends["tcp"], backends["tls"] = TCPBackend(), TLSBackend()
    preloads.follow()
    found: dict[str, list[Any]] = {
        f"distributed.{kind}.preload": _with(f"distributed.{kind}.preload", preloads.MODULE)
        for kind in ("scheduler", "worker", "nanny")
    }
    found[_ROUTES] = _with(_ROUTES, "cableway._dask.page")
    found[_MANAGER] = [
        {**policy, "class": "cableway.dask.OneCopyANode"}
        if policy["class"] == "distributed.active_memory_manager.ReduceReplicas"
        else policy
        for policy in dask.config.get(_MANAGER)
    ]
    dask.config.set(found)


def _with(name: str, module: str) -> list[str]:
    """A list of the configuration, and the module in it."""
    return preloads.with_module(dask.config.get(name, default=[]), module)


def dask_setup(server: Any) -> None:
    """Dask calls it where this module is a preload, when a scheduler, worker or nanny has started."""
    if isinstance(server, distributed.Worker):
        worker.attach(server)
    elif isinstance(server, distributed.Nanny):
        worker.attach_nanny(server)


def shared_bytes(obj: object) -> int:
    """How many bytes of an object, as a task gets it or a worker has it, are a view of shared memory; 0: none.

    Raises:
        TypeError: a future, which is no data of this process, or None, which is what `dask_worker.data.get` returns for a key that the
            worker does not have.

    >>> shared_bytes(b"not sent by a worker")
    0
    """
    if obj is None or isinstance(obj, distributed.Future):
        what = "None: does this worker have the key?" if obj is None else "a Future"
        raise TypeError(f"shared_bytes() takes the object of a worker or a task, and got {what}")
    return records.mapped_bytes(obj)


enable()
