"""Decides to which group of a Pool's workers a task goes.

A task goes to the GPU that holds most bytes of its arrays, among the GPUs with workers. A task without such arrays goes to the group
with the fewest tasks under way per worker. Any free worker of the group takes it. If more tasks wait in a group than its bound,
idle workers of other groups take some after a moment (CW_DISPATCH_STEAL_BEYOND and _STEAL_AFTER_NS, shm/tasks/dispatch.h), and then
copy the arrays. Bytes are counted where a task is encoded, so that arrays at any depth of its arguments count.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from cableway.array import Array

if TYPE_CHECKING:
    from cableway._pool.workers import Workers

__all__ = ["Placement"]


class Placement:
    """Knows the groups. Any thread; where two ask at a time, they may get the same answer."""

    __slots__ = ("_devices", "_turn", "_workers")

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._devices = workers.devices
        self._turn = 0  # of groups that have as little to do, the next one

    def group_of(self, held: Iterable[Any]) -> int:
        """The group for a task with these arrays (what else goes with it does not count)."""
        devices = self._devices
        if devices is None or len(devices.groups) == 1:
            return 0
        nbytes: dict[int, int] = {}
        for array in held:
            if type(array) is not Array or array.closed:
                continue
            group = devices.by_gpu.get(array._open_lease().gpu)
            if group is not None:
                nbytes[group] = nbytes.get(group, 0) + array.nbytes
        if not nbytes:
            return self.idlest()
        return max(nbytes, key=lambda group: nbytes[group])

    def idlest(self) -> int:
        """The group with the fewest tasks under way a worker."""
        wanted = self._workers.wanted
        count = len(wanted)
        if count == 1:
            return 0
        load = self._workers.dispatch.load
        first = self._turn
        order = [(first + i) % count for i in range(count)]
        found = min(order, key=lambda group: load(group) / wanted[group])
        self._turn = (found + 1) % count
        return found

    def spread(self, ranks: int) -> list[int | None]:
        """For each of so many ranks its group, no more in a group than it has workers; as evenly as that goes. None: any.

        Raises:
            ValueError: there are not so many workers.
        """
        wanted = list(self._workers.wanted)
        if ranks > sum(wanted):
            raise ValueError(
                f"spmd() runs on distinct workers: {ranks} were asked for, and the Pool has {sum(wanted)}; "
                "resize() gives it more"
            )
        if len(wanted) == 1:
            return [None] * ranks
        turns = (
            group
            for turn in range(max(wanted))
            for group in range(len(wanted))
            if turn < wanted[group]
        )
        return list(islice(turns, ranks))

    def has_room(self, groups: list[int | None]) -> bool:
        """Whether there are still as many workers as `spread` has found."""
        wanted = self._workers.wanted
        if len(wanted) == 1:
            return len(groups) <= wanted[0]
        return all(groups.count(group) <= wanted[group] for group in range(len(wanted)))
