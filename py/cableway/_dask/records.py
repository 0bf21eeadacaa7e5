"""Records: which object of this process lies in which blocks.

A record is the message by which an object was sent or came, with its large frames as blocks. It lives as long as the object, and while
a message with its handles is under way. Who serves an object that has one sends the same handles again: nothing is copied, and what
others get are the bytes of the first time, though a task wrote to the object here (its view is private).

Invariant: a record of an object is for one key. A task that returns its argument makes a second key of one object, which it may have
written to: that one is copied.

Owner: the table of this process; any thread may use it. A process that dies ends its leases alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from cableway._dask.blocks import Block

__all__ = ["Record", "mapped_bytes", "name_of", "recall", "remember"]


class Record:
    """An object as a message.

    Attributes:
        key: of the object on its worker, as `name_of` writes it; None: it had none.
        frames: the small ones; the first is the packed header of the family that wrote them.
        blocks: the large ones, each with its place among the frames and whether it was writeable.
        instance: of the broker that the handles are of.
    """

    __slots__ = ("__weakref__", "blocks", "frames", "instance", "key")

    def __init__(
        self,
        key: str | None,
        frames: list[bytes],
        blocks: list[tuple[int, Block, bool]],
        instance: int,
    ) -> None:
        self.key = key
        self.frames = frames
        self.blocks = blocks
        self.instance = instance

    def header(self) -> dict[str, Any]:
        """A new header for a message; `family.loads` reads it."""
        return {
            "serializer": "cableway",
            "instance": self.instance,
            "key": self.key,
            "blocks": [
                (place, block.handle, block.nbytes, writeable)
                for place, block, writeable in self.blocks
            ],
        }


class _Entry:
    """What is known of one object."""

    __slots__ = ("bytes", "gone", "record")

    def __init__(self, gone: weakref.ref[Any], record: Record, views: list[weakref.ref[Any]]):
        self.gone = gone
        self.record = record
        self.bytes = sum(
            block.nbytes
            for (_, block, _), view in zip(record.blocks, views, strict=False)
            if view() is not None
        )


_table: dict[int, _Entry] = {}  # by the object's id


def name_of(key: object) -> str:
    """A key of Dask (str, bytes, int, float, or a tuple of such) as text that no other key has."""
    return repr(key)


def remember(obj: object, record: Record, views: Iterable[weakref.ref[Any]] = ()) -> None:
    """The object lies in the record's blocks. Of an object that takes no weak reference nothing is noted.

    Args:
        views: weak references to its views of the blocks: those that are gone by now were copied by its own library.
    """
    number = id(obj)

    def forget(gone: weakref.ref[Any]) -> None:
        entry = _table.get(number)
        if entry is not None and entry.gone is gone:
            del _table[number]

    try:
        gone = weakref.ref(obj, forget)
    except TypeError:
        return
    _table[number] = _Entry(gone, record, list(views))


def recall(obj: object) -> Record | None:
    """The record of an object."""
    entry = _table.get(id(obj))
    return entry.record if entry is not None and entry.gone() is obj else None


def mapped_bytes(obj: object) -> int:
    """How many bytes of an object are a view of blocks, and no memory of this process's own."""
    entry = _table.get(id(obj))
    return entry.bytes if entry is not None and entry.gone() is obj else 0
