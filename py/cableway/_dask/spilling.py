"""What a worker writes to disk of an object that it has sent before: its first bytes, so that others get these after it is read again.

Where it is read, it is packed into blocks at once, if there is room; else it is an ordinary object, of which the next sending is the
first one.
"""

from __future__ import annotations

import pickle
from typing import Any

from distributed.protocol.serialize import Serialized
from distributed.sizeof import safe_sizeof
from distributed.spill import Slow

from cableway._dask import family, records
from cableway._dask.records import Record

__all__ = ["attach"]


class _Sent:
    """Stands for the object on its way to disk."""

    def __init__(self, record: Record, nbytes: int) -> None:
        self._record = record
        self._nbytes = nbytes

    def __sizeof__(self) -> int:
        return self._nbytes  # as Dask estimated the object

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        found, record = family.as_bytes(self._record), self._record
        writeable = [place for place, _, may in record.blocks if may]
        frames = [pickle.PickleBuffer(frame) for frame in found.frames]
        return _read, (record.key, found.header, frames, writeable)


def _read(key: str | None, header: Any, frames: list[Any], writeable: list[int]) -> Any:
    found = Serialized(header, [memoryview(frame) for frame in frames])
    record = family.pack(found, key, writeable)
    if record is not None:
        try:
            return family.unpack(record)
        except family.HandleFailed:
            pass  # then from its own memory
    return family.copy_of(found)


class _Disk(Slow):
    """Dask's files, but for objects that have a record."""

    served: Any

    def __setitem__(self, key: Any, value: object) -> None:
        record = records.recall(value, key)
        if record is None:
            super().__setitem__(key, value)
        else:
            super().__setitem__(key, _Sent(record, safe_sizeof(value)))
            self.served.let_go(records.name_of(key))

    def __getitem__(self, key: Any) -> object:
        value = super().__getitem__(key)
        self.served.came(key, value)
        return value


def attach(data: Any, served: Any) -> None:
    """To the data of a worker, if they are Dask's.

    Args:
        served: is told with `let_go` and `came` what goes to disk and what comes from there.
    """
    slow: Any = getattr(data, "_slow_uncached", None)
    if type(slow) is Slow:
        slow.__class__ = _Disk
        slow.served = served
