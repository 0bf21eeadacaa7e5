"""Staging: copies memory that a message names to the worker's GPU, and results back.

Three threads use it: the one that runs tasks, for memory that was not prefetched; the one that prefetches
(`_pool.worker.prefetch`); and the one that writes results back (`_pool.worker.write_back`). Each call blocks its own thread until its
copy is complete. Copies to and from the GPU run in streams of the library, beside the user's streams.

Invariant: a lease holds the source of a copy while it is copied. Nothing here writes to the source.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cableway import array as arrays
from cableway._core.layouts import Layout
from cableway._core.leases import Lease
from cableway._core.library import check, check_again, ffi, lib
from cableway._transport import table
from cableway._transport.blocks import BlockLease, open_silently
from cableway._transport.table import Entry

__all__ = ["Device", "Result"]

_BYTE = np.dtype("u1")
_NO_STREAM = ffi.NULL


class Device:
    """The worker's GPU.

    Args:
        name: "cuda:N", by the worker's own numbers.
        group: the group of workers to which this one belongs.
    """

    def __init__(self, name: str, group: int) -> None:
        self.name = name
        self.group = group
        self.number = int(name.partition(":")[2])

    @property
    def memory_bytes(self) -> int:
        """How much memory it has."""
        info = ffi.new("cw_device_info *")
        check(lib.cw_device_stat(self.name.encode(), info))
        return int(info.memory_bytes)

    def needs(self, entry: Entry) -> bool:
        """Whether there is something to copy, as far as the entry tells."""
        flags = entry.flags
        if not flags & table.ARRAY_ARGUMENT or not flags & table.IN:
            return False
        return not flags & table.ARRAY or entry.where != self.group

    def here(self, entry: Entry) -> Lease | None:
        """An array of the caller's that lies on this GPU, as it is; None for all else."""
        if not entry.flags & table.ARRAY:
            return None
        found = _source(entry)
        return found if found.gpu == self.number else None

    def bring(self, entry: Entry, block: BlockLease | None = None) -> Lease:
        """New memory on this GPU with what the entry holds, or with anything if that is not wanted. Blocks.

        Args:
            entry: of a task's message.
            block: its block, if that is open already.

        Raises:
            LimitExceeded: no memory left there.
            Stale: the source is gone.
            DeviceError: the GPU cannot be used.
        """
        made = arrays.new(Layout((entry.nbytes,), _BYTE), device=self.name)._open_lease()
        if entry.flags & table.IN and entry.nbytes:
            source = _source(entry) if block is None else block
            _copy(made, 0, source, entry.offset, entry.nbytes)
        return made


def _source(entry: Entry) -> Lease:
    flags = lib.CW_READONLY if entry.flags & table.READONLY else 0
    return open_silently(entry.handle, entry.offset + entry.nbytes, flags)


class Result:
    """One array of a task's that goes back to the parent.

    Args:
        entry: of the task's message.
        block: its block; open until this goes.
        lease: where the array lies on the GPU.
    """

    __slots__ = ("_block", "_entry", "_lease")

    def __init__(self, entry: Entry, block: BlockLease, lease: Lease) -> None:
        self._entry = entry
        self._block = block
        self._lease = lease

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self._entry.nbytes

    def copy(self) -> None:
        """Copies it into the parent's block. Blocks.

        Raises:
            DeviceError: the GPU cannot be used.
        """
        if self._entry.nbytes:
            _copy(self._block, self._entry.offset, self._lease, 0, self._entry.nbytes)


def _copy(target: Lease, to: int, source: Lease, of: int, nbytes: int) -> None:
    into, out_of = _pointer(target), _pointer(source)
    check_again(lib.cw_array_copy, into, to, out_of, of, nbytes, _NO_STREAM)


def _pointer(lease: Lease) -> Any:
    return lease.own if isinstance(lease, BlockLease) else lease.pointer
