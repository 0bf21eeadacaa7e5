"""Records: which object of this process lies in which blocks.

A record is the message by which an object was sent or came, with its large frames as blocks. It lives as long as the object, and while
a message with its handles is under way. Who serves an object that has one sends the same blocks again: nothing is copied, and what
others get are the bytes of the first time, though a task wrote to the object here (its view is private).

Invariant: a record of an object is for one key. A task that returns its argument makes a second key of one object, which it may have
written to: that one is copied, and has a record of its own beside the first.

Lists, dicts and other objects that take no weak reference have a record only while a worker holds them as data (`hold`, `let_go`).

Owner: the table of this process; any thread may use it. A process that dies ends its leases alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from cableway._dask.blocks import Block

__all__ = [
    "Record",
    "arrived",
    "arriving_bytes",
    "hold",
    "let_go",
    "mapped_bytes",
    "name_of",
    "recall",
    "remember",
]


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

    def header_by_name(self, node: str) -> dict[str, Any]:
        """The same for a reader on another node, of blocks that have names here.

        Args:
            node: this one.
        """
        return {
            "serializer": "cableway",
            "instance": self.instance,
            "key": self.key,
            "node": node,
            "names": [
                (place, block.name, block.nbytes, writeable)
                for place, block, writeable in self.blocks
            ],
        }

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
    """What is known of one object: how to get at it, its records by key, and how much of it is a view of blocks."""

    __slots__ = ("bytes", "of", "records")

    def __init__(self, of: Callable[[], object | None], record: Record, mapped: int):
        self.of = of
        self.records = {record.key: record}
        self.bytes = mapped


_table: dict[int, _Entry] = {}  # by the object's id
# Objects without weak references that came, until a worker holds them: by id, with the first view that they stand on. While that
# is there, mostly the object is; who asks for one must know that the object was there since it came.
_arrived: dict[int, tuple[weakref.ref[Any], Record, int]] = {}


def name_of(key: object) -> str:
    """A key of Dask (str, bytes, int, float, or a tuple of such) as text that no other key has."""
    return repr(key)


def _entry(obj: object) -> _Entry | None:
    entry = _table.get(id(obj))
    return entry if entry is not None and entry.of() is obj else None


def remember(obj: object, record: Record, views: Iterable[weakref.ref[Any]] = ()) -> None:
    """The object lies in the record's blocks.

    Args:
        views: weak references to its views of the blocks: those that are gone by now were copied by its own library.
    """
    known = _entry(obj)
    if known is not None:
        known.records[record.key] = record
        return
    number = id(obj)
    alive = [(place, view()) for place, view in enumerate(views)]
    mapped = sum(record.blocks[place][1].nbytes for place, view in alive if view is not None)

    def forget(gone: weakref.ref[Any]) -> None:
        entry = _table.get(number)
        if entry is not None and entry.of is gone:
            del _table[number]

    def forget_arrived(gone: weakref.ref[Any]) -> None:
        if number in _arrived and _arrived[number][0] is gone:
            del _arrived[number]

    try:
        _table[number] = _Entry(weakref.ref(obj, forget), record, mapped)
    except TypeError:
        first = next((view for _, view in alive if view is not None), None)
        if first is not None:
            _arrived[number] = weakref.ref(first, forget_arrived), record, mapped


def arrived(obj: object, key: object) -> tuple[Record, int] | None:
    """The record of an object that came under this key of Dask and takes no weak reference, and the bytes that are views of blocks.
    Once; the object was there since it came.
    """
    found = _arrived.get(id(obj))
    if found is None or found[1].key != name_of(key):
        return None
    del _arrived[id(obj)]
    return found[1:]


def hold(obj: object, record: Record, mapped: int) -> None:
    """Remembers it, and keeps the object until `let_go`. For objects that take no weak reference."""
    known = _entry(obj)
    if known is not None:
        known.records[record.key] = record
    else:
        _table[id(obj)] = _Entry(lambda: obj, record, mapped)


def let_go(obj: object, key: str) -> None:
    """The worker no longer holds the object under this key. Only for what is held."""
    known = _entry(obj)
    if known is not None and not isinstance(known.of, weakref.ref):
        known.records.pop(key, None)
        if not known.records:
            del _table[id(obj)]


def recall(obj: object, key: object) -> Record | None:
    """The record of an object under a key of Dask."""
    entry = _entry(obj)
    return entry.records.get(name_of(key)) if entry is not None else None


def mapped_bytes(obj: object) -> int:
    """How many bytes of an object are a view of blocks, and no memory of this process's own."""
    entry = _entry(obj)
    return entry.bytes if entry is not None else 0


def arriving_bytes(obj: object) -> int:
    """The same of an object that has just arrived, though nobody holds it yet."""
    found = _arrived.get(id(obj))
    return mapped_bytes(obj) if found is None else found[2]
