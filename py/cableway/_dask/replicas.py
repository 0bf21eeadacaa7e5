"""The policy of one copy a node, for the scheduler's Active Memory Manager."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from distributed.active_memory_manager import ReduceReplicas, Suggestion

from cableway._dask.gpus import LIBRARIES
from cableway._dask.settings import threshold_bytes

__all__ = ["OneCopyANode"]


class OneCopyANode(ReduceReplicas):
    """In place of Dask's `ReduceReplicas`: replicas on workers of one node are one copy in shared memory, and stay.

    Nodes that hold a large key beyond those where tasks wait for it drop all of their replicas. Keys below the threshold, arrays on GPUs
    (of which each worker has its own), and workers without cableway are as with `ReduceReplicas`.
    """

    def run(self) -> Any:
        """Yields what to drop."""
        for ts in list(self.manager.scheduler.replicated_tasks):
            places: defaultdict[Any, set[Any]] = defaultdict(set)
            for ws in ts.who_has or ():
                places[_place(ws, ts)].add(ws)
            waiting = {
                _place(waiter.processing_on, ts) if waiter.processing_on else waiter
                for waiter in ts.waiters or ()
            }
            surplus = len(places) - max(1, len(waiting))
            if surplus <= 0 or ts in self.manager.pending:
                continue
            if all(len(workers) == 1 for workers in places.values()):
                for _ in range(surplus):
                    yield Suggestion("drop", ts)
                continue
            memory = self.manager.workers_memory
            unneeded = [place for place in places if place not in waiting]
            unneeded.sort(key=lambda place: -sum(memory[ws] for ws in places[place]))
            for place in unneeded[:surplus]:
                for ws in places[place]:
                    yield Suggestion("drop", ts, {ws})


def _place(ws: Any, ts: Any) -> Any:
    """Whose memory a replica on this worker is: its broker's, or its own."""
    own = ts.get_nbytes() < threshold_bytes() or (ts.type or "").partition(".")[0] in LIBRARIES
    said = None if own else (ws.metrics or {}).get("cableway")
    return said["instance"] if said else ws
