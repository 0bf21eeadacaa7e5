"""Write-back: how the results of `Out` and `InOut` get into the caller's arrays.

A task's message has a block of the parent's for each such array. The worker writes into the block and answers when it is done. Then
the parent copies from the block into the caller's array, before the task counts as done.

Invariant: only the parent writes the caller's array, and only after an answer that says that the task has succeeded; each sending of
a task has blocks of its own. So an exception or the death of a worker, at any moment, leaves the array as it was, and a task that is
run again reads it unchanged. What a dead worker's GPU still writes goes into memory that nobody reads, and that the broker keeps
until the worker is dead.

Owner: the encoded message of the task, until the task has ended. If the parent dies, everything ends. If a Ctrl-C interrupts the
copy, the answer counts as not delivered and the copy is made again; the block is kept for that long.

No two write-backs under way have an element in common, whichever Pools of this process they belong to.
"""

from __future__ import annotations

import os
from bisect import insort
from typing import TYPE_CHECKING, Any

import numpy as np

from cableway._core import locks
from cableway._core.leases import bounds, copy_values
from cableway.array import Array
from cableway.transfers import overlap

if TYPE_CHECKING:
    from cableway._transport.blocks import Block

__all__ = ["WriteBack"]

# What is under way, by address. Finalisers may come to take the lock on a thread that has it.
_lock = locks.RLock()
_spans: list[tuple[int, int, int, np.ndarray[Any, Any]]] = []
_longest = 0  # of any so far


def _after_fork_in_child() -> None:
    """What is under way is the parent's, and so may the lock be."""
    global _lock, _longest
    _lock = locks.RLock()
    _spans.clear()
    _longest = 0


os.register_at_fork(after_in_child=_after_fork_in_child)


class WriteBack:
    """The place of one result.

    Args:
        target: the caller's array; held until end().
        block: where the worker leaves the result.
        order: of the elements there, "C" or "F".

    Raises:
        ValueError: an element of it is to come back from another task, or from this one a second time.
    """

    __slots__ = ("_block", "_order", "_span")

    def __init__(self, target: Any, block: Block, order: str) -> None:
        global _longest
        self._span: Any = None
        self._block = block
        self._order: Any = order
        values = target.numpy() if isinstance(target, Array) else target
        low, high = bounds(values)
        span = (low, high, id(self), values)
        with _lock:
            if overlap(_spans, _longest, low, high, values):
                raise ValueError(
                    "an array, or a part of it, is already the Out of a task that has not ended: wait for that task, "
                    "or use another array"
                )
            self._span = span
            insort(_spans, span)
            _longest = max(_longest, high - low)

    def __del__(self) -> None:
        self.end()  # its task was never sent: a Ctrl-C came between

    def land(self) -> ValueError | None:
        """Copies the result into the caller's array. May be repeated.

        Returns:
            Why it cannot be: the array has become read-only. What is raised is a signal's handler's.
        """
        values = self._span[3]
        if not values.flags.writeable:
            return ValueError(
                "a result cannot be copied into the array that was given for it: it has become read-only"
            )
        memory = self._block.memory(values.nbytes)
        copy_values(values, np.ndarray(values.shape, values.dtype, memory, order=self._order))
        return None

    def end(self) -> None:
        """The task has ended. May be repeated."""
        with _lock:
            span, self._span = self._span, None
            if span in _spans:  # a Ctrl-C may have come between
                _spans.remove(span)
