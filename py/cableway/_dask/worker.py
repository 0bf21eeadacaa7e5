"""What is different in a worker and its nanny: whose data become views of blocks, what counts as their memory, what they report.

Dask calls `attach` and `attach_nanny` through the preload (`cableway.dask.dask_setup`), when the server has started.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import weakref
from collections.abc import Mapping
from typing import Any

from dask.typing import Key
from tornado.ioloop import PeriodicCallback

from cableway import client
from cableway._core import idle_memory, numpy_memory
from cableway._dask import (
    allocated,
    blocks,
    family,
    gpu_objects,
    gpus,
    memory,
    names,
    node,
    records,
    same,
    settings,
    spilling,
)
from cableway._dask.records import Record

__all__ = ["attach", "attach_nanny"]

logger = logging.getLogger("cableway.dask")


class Served:
    """The data of a worker, as its connections need them. It is a plugin of the worker, too: it is told what becomes of keys."""

    def __init__(self, worker: Any) -> None:
        self._worker = weakref.ref(worker)
        # Data that take no weak reference and have a record, by the names of their keys.
        self._held: dict[str, Any] = {}

    def size(self, key: Key) -> int | None:
        """Dask's estimate of an object of its data, in bytes; None: not known."""
        worker = self._worker()
        task = None if worker is None else worker.state.tasks.get(key)
        return None if task is None else task.nbytes

    def took(self, packed: Mapping[Key, tuple[object, Record | gpu_objects.GpuRecord]]) -> None:
        """These objects were packed for the first time: the worker's data become private views of the blocks, its own copies go.

        Objects that would not be the same afterwards stay (`same`). Runs on the event loop, as everything that changes the data.
        """
        worker = self._worker()
        if worker is None:
            return
        for key, (obj, record) in packed.items():
            if memory.held(worker.data, key) is not obj:
                continue
            if isinstance(record, gpu_objects.GpuRecord):
                view = gpu_objects.view_of(obj, records.name_of(key), record)
                if view is not None:
                    worker.data[key] = view
                continue
            view = _view(key, record) if same.may_be_another(obj) else None
            if same.alike(obj, view):
                worker.data[key] = view
                self.came(key, view)
            elif records.recall(obj, key) is None:
                self._hold(key, obj, record, 0)

    def transition(self, key: Key, start: str, finish: str, **others: Any) -> None:
        """Dask calls it when a task of the worker changes its state."""
        if finish != "memory":
            if self._held:
                self.let_go(records.name_of(key))
        elif start not in ("executing", "long-running"):
            worker = self._worker()
            if worker is not None:
                self.came(key, memory.held(worker.data, key))

    def came(self, key: Key, obj: object) -> None:
        """The worker has an object from elsewhere under this key."""
        found = records.arrived(obj, key)
        if found is not None:
            self._hold(key, obj, *found)

    def _hold(self, key: Key, obj: object, record: Record, mapped: int) -> None:
        self.let_go(records.name_of(key))
        records.hold(obj, record, mapped)
        self._held[records.name_of(key)] = obj

    def let_go(self, name: str) -> None:
        """The worker has the key no more, or on disk alone."""
        if name in self._held:
            records.let_go(self._held.pop(name), name)

    def teardown(self, worker: Any) -> None:
        """Dask calls it when the worker ends."""
        for name in list(self._held):
            self.let_go(name)


def _view(key: Key, record: Record) -> object:
    """None: it cannot be made."""
    try:
        return family.unpack(record)
    except Exception as error:  # of the store, or of the object's own family
        logger.warning("%r stays in private memory: %s", key, error)
        return None


class _Textual(logging.Filter):
    """Dask keeps its last log records. One with a traceback would keep the frames of a transfer that was cut, and so its objects, their
    blocks and names: it keeps the text of it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Takes the traceback out, and never a record."""
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = record.exc_text or _FORMATTER.formatException(record.exc_info)
            record.exc_info = None
        return True


_FORMATTER = logging.Formatter()
_TEXTUAL = _Textual()


def attach(worker: Any) -> None:
    """A worker has started."""
    for log in ("distributed.worker", "distributed.core"):
        logging.getLogger(log).addFilter(_TEXTUAL)
    found = node.connection()
    if found is not None:
        names.prepare(found)
    original, served = worker.handlers["get_data"], Served(worker)
    allocates = settings.allocates()

    def get_data(
        comm: Any, keys: Any, who: str | None = None, serializers: list[str] | None = None
    ) -> Any:  # a coroutine
        comm.worker = served
        if allocates:
            allocated.publish(worker.data, keys, comm)
        return original(comm, keys, who=who, serializers=serializers)

    worker.handlers["get_data"] = get_data
    worker.plugins["cableway"] = served
    _leave_out_of_bandwidth(worker)
    worker.monitor.get_process_memory = memory.own_bytes
    if allocates:
        _allocate(worker, allocates)
    worker.metrics["cableway"] = _metrics
    fast = getattr(worker.data, "fast", None)
    if hasattr(fast, "weight") and hasattr(fast, "order"):
        _budget(fast)
        spilling.attach(worker.data, served)
    _look_often(worker, fast)


def _allocate(worker: Any, allocates: int) -> None:
    """Tasks' arrays lie in shared memory from the beginning. Dask runs each task in the context of its own."""
    original = worker.execute

    async def execute(*args: Any, **others: Any) -> Any:
        found = node.established()
        if found is not None:
            numpy_memory.use(found, settings.threshold_bytes(), allocates == settings.REUSE)
        return await original(*args, **others)

    worker.execute = execute


def _leave_out_of_bandwidth(worker: Any) -> None:
    """Dask decides by a worker's bandwidth whether to move a task to where its data are; what came by handle says nothing of that."""
    original = worker._update_metrics_received_data

    def update(*, data: dict[Key, object], **others: Any) -> None:
        kept = worker.bandwidth, worker.bandwidth_workers.copy(), worker.bandwidth_types.copy()
        original(data=data, **others)
        if any(map(records.mapped_bytes, data.values())):
            worker.bandwidth, worker.bandwidth_workers, worker.bandwidth_types = kept

    worker._update_metrics_received_data = update


def _metrics(worker: Any) -> dict[str, Any] | None:
    """What its heartbeat tells the scheduler. None: no broker."""
    found = client.known()
    if found is None or found.closed or found.lost:
        return None
    values = [value for part in memory.parts(worker.data) for value in list(part.values())]
    return {
        "instance": str(found.instance),
        "node": socket.gethostname(),
        "mapped_bytes": sum(map(records.mapped_bytes, values)),
        "private_bytes": memory.own_bytes(),
        "store": list(_stores.get(worker, memory.Store(0, 0))),
    }


_stores: weakref.WeakKeyDictionary[Any, memory.Store] = weakref.WeakKeyDictionary()


def _budget(fast: Any) -> None:
    """Data count for what they have of private memory."""
    weight = fast.weight
    fast.weight = lambda key, value: max(0, weight(key, value) - records.arriving_bytes(value))


def _look_often(worker: Any, fast: Any) -> None:
    """Every 2 s: after a lost broker, and for memory that comes back. Where shared memory is short, the worker gives up first what it
    keeps idle, and if there is nothing idle it spills what its data have there.
    """
    keeper = weakref.ref(worker)

    async def look() -> None:
        found = keeper()
        node.established()
        idle_memory.settle()
        loop = asyncio.get_running_loop()
        gpu_objects.trim()
        if gpus.used():
            await loop.run_in_executor(names.pool(), gpus.collect)
        spills = hasattr(fast, "order") and memory.oldest_shared(fast) is not None
        if found is None or not (spills or blocks.made() or numpy_memory.used_bytes()):
            return
        said = _stores[found] = await loop.run_in_executor(None, memory.store)
        numpy_memory.allow(said.used <= memory.ALLOCATE_FRACTION * said.limit)
        excess_bytes = said.used - int(memory.SHARED_SPILL_FRACTION * said.limit)
        if said.limit and excess_bytes > 0 and not idle_memory.give_up() and spills:
            await _spill(fast, excess_bytes)

    callback = PeriodicCallback(look, memory.LOOK_SECONDS * 1000)
    worker.periodic_callbacks["cableway"] = callback
    callback.start()


async def _spill(fast: Any, excess_bytes: int) -> None:
    """The oldest shared ones, so many bytes. They are free when the node's other workers have done so, too."""
    while excess_bytes > 0 and (key := memory.oldest_shared(fast)) is not None:
        size = records.mapped_bytes(fast.d[key])
        logger.info(
            "shared memory is short by %d bytes; %r (%d) is spilled", excess_bytes, key, size
        )
        try:
            fast.evict(key)
        except (
            Exception
        ):  # of the disk, or of its pickle: as in Dask's own spilling it stays in memory
            logger.exception("%r cannot be spilled", key)
            return
        excess_bytes -= size
        await asyncio.sleep(0)


def attach_nanny(nanny: Any) -> None:
    """A nanny has started: its limit is on its worker's private memory, too."""
    callback = nanny.periodic_callbacks.get("memory_monitor")
    manager = nanny.memory_manager
    if callback is None:
        return
    original = callback.callback

    def monitor() -> Any:
        process = nanny.process.process if nanny.process is not None else None
        if process is None or process.pid is None:
            return None
        try:
            used = memory.private_bytes(process.pid)
        except OSError:
            return None
        if used <= manager.memory_limit * manager.memory_terminate_fraction:
            return None
        return original()

    callback.callback = monitor
