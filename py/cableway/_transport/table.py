"""The table of a Pool's message: the memory that goes with the message.

A message is a header, a table of *entries*, a lead and a body (see `_transport.message`). Each entry names memory beside the message: a
block (`_transport.blocks`) or an array of the caller. The table can be read without unpickling anything, so that a worker may look at
tasks that it has not taken (`_pool.worker.prefetch`).
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from cableway._core.byte_blocks import HANDLE_BYTES
from cableway._transport.blocks import HEADER_BYTES, open_silently

__all__ = [
    "ELSEWHERE", "HEADER", "HEADER_BYTES", "NUMBER_BYTES", "WHERE_BYTES", "Entry", "entries_in", "is_arrays_only",
    "pack", "pack_where", "peek", "split",
]  # fmt: skip

HEADER = struct.Struct(
    "<QBBHIIQ"
)  # task, call or success, flags, 0, entries, lead bytes, body bytes
_ENTRY = struct.Struct(f"<{HANDLE_BYTES}sQQII")
_WHERE = struct.Struct("<I")  # the end of an entry
WHERE_BYTES = _WHERE.size

NUMBER_BYTES = 8  # the task's number, with which the header begins
_FLAGS_AT = 9  # in the header
# Flags of the header.
IN_BLOCK = 1  # the rest of the message lies in the one block that follows
HAS_ARRAY_ARGUMENTS = 2  # some entries are ARRAY_ARGUMENT
ARRAYS_ONLY = 4  # all entries are the caller's arrays, the arguments (`_pool.devices.fast_path`)
# Flags of an entry.
BY_PICKLE = 1  # a buffer of pickle protocol 5, in the order of the stream
PRIVATE = 2  # others get it too, so it is opened copy-on-write
ARRAY_ARGUMENT = 4  # becomes a cableway.Array, on the worker's GPU if it has one
ARRAY = 8  # an array of the caller's, by its handle, and no block
IN = 16  # what it holds is wanted
OUT = 32  # what it will hold is wanted
READONLY = 64  # the caller has it read-only

ELSEWHERE = 0xFFFFFFFF


class Entry(NamedTuple):
    """One piece of memory.

    Attributes:
        handle: names the array in which it lies.
        offset: where it begins there.
        nbytes: how long it is.
        flags: what it is.
        where: the group of workers on whose GPU it lies; ELSEWHERE.
    """

    handle: bytes
    offset: int
    nbytes: int
    flags: int
    where: int


def pack(handle: bytes, offset: int, nbytes: int, flags: int, where: int = ELSEWHERE) -> bytes:
    """An entry as bytes."""
    return _ENTRY.pack(handle, offset, nbytes, flags, where)


def pack_where(where: int) -> bytes:
    """The last bytes of an entry: the group of workers on whose GPU it lies."""
    return _WHERE.pack(where)


def is_arrays_only(data: Any) -> bool:
    """Whether a task has arrays of the caller's as arguments, and nothing else."""
    return bool(data[_FLAGS_AT] & ARRAYS_ONLY)


def entries_in(data: Any, count: int) -> list[Entry]:
    """The first count entries of what follows a header.

    Raises:
        ValueError: so many are not there.
    """
    if count * _ENTRY.size > len(data):
        raise ValueError(f"a message of {len(data)} bytes cannot have {count} entries")
    return [Entry._make(_ENTRY.unpack_from(data, i * _ENTRY.size)) for i in range(count)]


def peek(data: bytes) -> list[Entry]:
    """The table of a task that somebody else may take; none if it has nothing for a GPU. A table that lies in a block is
    read there, and the block's sender is not told.

    Raises:
        Stale: it is gone.
        ValueError: the message cannot be.
    """
    if len(data) < HEADER.size:
        return []  # a plain task
    _, _, flags, _, count, _, _ = HEADER.unpack_from(data)
    if not flags & HAS_ARRAY_ARGUMENTS:
        return []
    rest: Any = memoryview(data)[HEADER.size :]
    if not flags & IN_BLOCK:
        return entries_in(rest, count)
    (whole,) = entries_in(rest, 1)
    lease = open_silently(whole.handle, whole.offset + whole.nbytes)
    return entries_in(lease.memory().data[whole.offset :], count)


def split(rest: Any, count: int, lead_bytes: int, body_bytes: int) -> tuple[Any, Any]:
    """Lead and body of what follows a header.

    Raises:
        ValueError: the lengths do not add up.
    """
    begin = count * _ENTRY.size
    if begin + lead_bytes + body_bytes != len(rest):
        raise ValueError(
            f"a message of {len(rest)} bytes says that it has {begin + lead_bytes + body_bytes}"
        )
    return rest[begin : begin + lead_bytes], rest[begin + lead_bytes :]
