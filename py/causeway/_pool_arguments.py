"""What a worker's task is given: the arrays of `In`, `Out` and `InOut`, and those on GPUs.

On a worker without a GPU of its own an array lies in the parent's block itself, and what the function writes there is the
result. Else it is a copy on the worker's GPU: made by the thread that looks ahead (`_pool_ahead`), or here if the task came
too soon; when the function has returned, results leave by a thread of their own (`_pool_leaving`) while the
next task runs.

Invariant: a task's arrays are its own. Their memory stays until all work that the process has given the GPU
while the task ran is complete: libraries launch kernels and return, and what such a kernel reads or writes must not
become another task's. An answer that says "done" comes after the last byte of each result.

Owner: the thread that runs tasks. If the process dies, its leases end: blocks are the parent's, who sees them
as lost with their task; GPU memory goes with its last lease.
"""

from __future__ import annotations

import contextlib
from typing import Any

from causeway import _pool_table as table
from causeway import _pool_wire as wire
from causeway._pool_buffers import open_lease
from causeway._pool_staging import Device, Result
from causeway._pool_table import Entry
from causeway.errors import Error
from causeway.views import Lease

__all__ = ["Arguments"]


class Arguments:
    """The arguments of one task after the other.

    Args:
        device: the worker's GPU; None if it has none.
    """

    def __init__(self, device: Device | None = None) -> None:
        self._device = device
        self._kept: dict[int, Lease] = {}
        self._results: list[Result] = []
        self._copied = False

    def read(self, data: Any) -> wire.Message:
        """Takes a task's message apart; what is not on the worker's GPU is copied there. Blocks.

        Raises:
            LimitExceeded: no memory left there.
            Stale, DeviceError, ValueError: it cannot be had.
        """
        return wire.read(data, self._given)

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
        self._copied = True
        lease = self._kept.pop(number, None) or device.bring(entry, block)
        if flags & table.OUT and block is not None:
            self._results.append(Result(entry, block, lease))
        return lease, 0

    def returned(self) -> list[Result]:
        """The function has returned: waits for its GPU work. What is to go back.

        Raises:
            DeviceError: some of that work has failed.
        """
        results, self._results = self._results, []
        copied, self._copied = self._copied, False
        self._kept.clear()
        if copied and self._device is not None:
            self._device.finish()
        return results

    def raised(self) -> None:
        """The function has raised, or the task could not be read. Nothing goes back."""
        with contextlib.suppress(Error):  # of the two, what the task itself says is told
            self.returned()
