"""The arrays that a worker's task gets: those of `In`, `Out` and `InOut`, and those on GPUs.

In a worker without a GPU of its own, such an array lies in the parent's block itself, and what the function writes there is the result.
Otherwise it is a copy on the worker's GPU, made by the thread that prefetches (`_pool.worker.prefetch`), or here if that was too late.
When the function has returned, a thread writes the results back (`_pool.worker.write_back`) while the next task runs. An array that is
on the worker's GPU already is used as it is.

Invariant: a task's copies are its own. A function counts as returned only when all work that the process has given the GPU is complete
(`_pool.worker.own_gpu`); the thread that runs tasks waits for that. Libraries launch kernels and return, and memory that such a kernel
reads or writes must not be used for another task. Only then are arguments dropped and results written back.

Owner: the thread that runs tasks. If the process dies, its leases end. Blocks belong to the parent, who treats them as lost with their
task; GPU memory goes with its last lease.
"""

from __future__ import annotations

from typing import Any

from cableway._core.leases import Lease
from cableway._pool.devices import fast_path
from cableway._pool.worker.prefetch import Prefetch
from cableway._pool.worker.staging import Device, Result
from cableway._transport import message as wire
from cableway._transport import table
from cableway._transport.blocks import BlockLease, open_lease
from cableway._transport.table import Entry
from cableway.errors import LimitExceeded

__all__ = ["Arguments"]


_LOOKS_ON = 16  # tasks that need no copy, after one that did, until nobody prefetches


class Arguments:
    """The arguments of one task after the other.

    Args:
        device: the worker's GPU; None if it has none.
        prefetch: what was brought there before; None: nothing is.
    """

    def __init__(self, device: Device | None = None, prefetch: Prefetch | None = None) -> None:
        self._device = device
        self._opener = None if device is None else fast_path.Opener(device)
        self._prefetch = prefetch
        self._brought: dict[int, Lease | None] = {}
        self._results: list[Result] = []
        self._looks = 0
        self._begun = False  # the one who prefetches was told of this task

    def read(self, data: Any, place: int) -> wire.Message:
        """Takes a task's message apart; what is not on the worker's GPU is copied there. Blocks.

        Args:
            data: the message.
            place: the task's.

        Raises:
            LimitExceeded: no memory left there.
            Stale, DeviceError, ValueError: it cannot be had.
        """
        if self._prefetch is None:
            return wire.read(data, self._given)
        self._begun = True
        self._brought = self._prefetch.begin(place)
        self._looks = max(0, self._looks - 1)
        message = wire.read(data, self._given)
        if self._looks:
            self._prefetch.look()
        return message

    def read_arrays(self, data: Any, place: int) -> tuple[int, list[Any], int]:
        """As `read`, of a task of arrays alone: how to call its function, the arrays, and their bytes."""
        if self._opener is not None and not self._looks:  # nobody prefetches
            found = self._opener.open(data)
            if found is not None:
                return found
        message = self.read(data, place)
        call, _, looks = fast_path.read(data)
        made = zip(message.buffers, looks, strict=True)
        args = [look.array(lease, low + look.layout.origin) for (lease, low), look in made]
        return call, args, message.block_bytes

    def _given(self, number: int, entry: Entry) -> tuple[Lease, int]:
        """The memory of an entry, and where it begins there."""
        flags = entry.flags
        device = self._device
        if device is None:
            if flags & (table.ARRAY | table.PRIVATE):
                raise ValueError("a task for a GPU came to a worker that has none")
            return open_lease(entry.handle, entry.nbytes), entry.offset
        own = device.here(entry)
        if own is not None:
            return own, entry.offset
        block = None
        if not flags & (table.ARRAY | table.PRIVATE):
            block = open_lease(entry.handle, entry.nbytes)
        self._looks = _LOOKS_ON
        lease = self._brought.pop(number, None) or self._bring(device, entry, block)
        if flags & table.OUT and block is not None:
            self._results.append(Result(entry, block, lease))
        return lease, 0

    def _bring(self, device: Device, entry: Entry, block: BlockLease | None) -> Lease:
        try:
            return device.bring(entry, block)
        except LimitExceeded:
            if self._prefetch is None:
                raise
            self._prefetch.give_way()
            return device.bring(entry, block)

    def returned(self) -> list[Result]:
        """The function has returned or raised, and its GPU work is complete: what is to go back if it has returned."""
        if self._prefetch is not None and self._begun:
            self._begun = False
            self._prefetch.rest()
        self._brought = {}
        results, self._results = self._results, []
        return results
