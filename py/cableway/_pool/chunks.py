"""How many items a worker takes at a time if the caller does not say it.

As in the standard library, a quarter of a worker's even share. But a chunk that is a little too long for a cell
(`_dispatch.DATA_MAX`) costs a block and a message each way, some 0.2 ms, as much as a few thousand tiny tasks. So if a few smaller
chunks fit into cells, smaller chunks are used. For a chunk that is much longer the block is worth its cost, and items that are
not plain are sent as a message anyway.
"""

from __future__ import annotations

from typing import Any

from cableway import _dispatch

__all__ = ["default"]

_SAMPLE = 64  # items that are pickled to see how long they are
_FILL = 7 / 8  # of a cell: not all items are as long as those of the sample
_PIECES_MAX = 8  # of one quarter of a share


def default(items: tuple[Any, ...], processes: int) -> int:
    """Items a task. Runs no code of the user's.

    >>> default(tuple(range(80)), 2), default(tuple(range(16_000)), 2), default(tuple(range(1_000_000)), 2)
    (10, 1000, 125000)
    """
    even = max(1, -(-len(items) // (processes * 4)))
    if even <= _SAMPLE:
        return even
    pickled = _dispatch.plain_dumps(items[:: len(items) // _SAMPLE][:_SAMPLE])
    if pickled is None:
        return even
    fitting = int(_dispatch.DATA_MAX * _FILL * _SAMPLE / len(pickled))
    pieces = -(-even // fitting) if fitting else _PIECES_MAX + 1
    return even if pieces > _PIECES_MAX else -(-even // pieces)
