"""The serialization family "cableway": objects whose large frames are handles, and not bytes.

It wraps the families "dask" and "pickle": they make a header and frames of an object, as always, and each frame of at least the
threshold is put into a block. So NumPy, pandas, Arrow and sparse matrices work alike. The receiver gives the same families views of
the blocks.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import dask.config
import msgpack
import numpy as np
from dask.utils import parse_bytes
from distributed.protocol.serialize import (
    deserialize,
    msgpack_decode_default,
    msgpack_encode_default,
    serialize,
)
from distributed.protocol.utils import msgpack_opts
from distributed.sizeof import safe_sizeof
from distributed.utils import nbytes

from cableway._dask import blocks, node, records
from cableway._dask.records import Record
from cableway.errors import BrokerLost, Error, LimitExceeded, Stale

__all__ = [
    "INNER",
    "HandleFailed",
    "dumps",
    "is_large",
    "loads",
    "pack",
    "threshold_bytes",
    "unpack",
]

INNER = ("dask", "pickle")


class HandleFailed(Exception):
    """A handle in a message could not be opened: its block went with its last holder, or with the broker."""


def threshold_bytes() -> int:
    """Frames of at least so many bytes go by handle: `cableway.threshold` in Dask's configuration."""
    return _parsed(dask.config.get("cableway.threshold", default="1 MiB"))


@functools.lru_cache
def _parsed(size: str | int) -> int:
    return int(parse_bytes(size))


def is_large(obj: object) -> bool:
    """Whether Dask's estimate of its size says that a look at its frames is worth it."""
    size = obj.nbytes if type(obj) is np.ndarray else safe_sizeof(obj, default_size=0)
    return bool(size >= threshold_bytes())


def pack(obj: object, key: str | None, context: dict[str, Any] | None) -> Record | None:
    """Copies the object's large frames into blocks. None: it has none, or there is no memory for them.

    Raises:
        Exception: what the object's own family raises.
    """
    connection = node.connection()
    if connection is None:
        return None
    header, frames = serialize(obj, INNER, "raise", context, iterate_collection=key is not None)
    least = threshold_bytes()
    if any(header.get("compression") or ()) or not any(nbytes(frame) >= least for frame in frames):
        return None
    small: list[bytes] = [msgpack.dumps(header, default=msgpack_encode_default, use_bin_type=True)]
    large: list[tuple[int, blocks.Block, bool]] = []
    try:
        for place, frame in enumerate(frames):
            if nbytes(frame) < least:
                small.append(bytes(frame))
            else:
                writeable = not memoryview(frame).readonly
                large.append((place, blocks.copied(connection, frame), writeable))
    except (LimitExceeded, BrokerLost):
        return None  # a full store, or none: bytes
    return Record(key, small, large, connection.instance)


def unpack(record: Record) -> Any:
    """The object of a record, on views of its blocks, which is noted.

    Raises:
        HandleFailed: a view cannot be made.
        Exception: what the object's own family raises.
    """
    connection = node.connection()
    if connection is None or connection.instance != record.instance:
        raise HandleFailed("the broker that holds the blocks of a message is gone")
    frames: list[Any] = list(record.frames[1:])
    views: list[weakref.ref[Any]] = []
    try:
        for place, block, writeable in record.blocks:
            view = block.view(connection, writeable)
            views.append(weakref.ref(view))
            frames.insert(place, view.data)
            del view
    except Error as error:
        raise HandleFailed(str(error)) from error
    header = msgpack.loads(
        record.frames[0], object_hook=msgpack_decode_default, use_list=False, **msgpack_opts
    )
    obj = deserialize(header, frames)
    del frames
    records.remember(obj, record, views)
    return obj


def dumps(obj: object, context: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[bytes]]:
    """Of an object without a key (scattered, an argument of an actor, a part of a shuffle); see `comm` for those with one.

    Raises:
        NotImplementedError: it goes by the next family, as bytes.
    """
    held = None if context is None else context.get("cableway")
    if held is None or not is_large(obj):
        raise NotImplementedError
    try:
        record = pack(obj, None, context)
    except Exception as error:  # the next family says it again, as Dask has it
        raise NotImplementedError from error
    if record is None:
        raise NotImplementedError
    held.append(record)
    return record.header(), record.frames


def loads(header: dict[str, Any], frames: list[Any]) -> Any:
    """The object of a message.

    Raises:
        HandleFailed: a handle could not be opened.
    """
    connection = node.connection()
    try:
        if connection is None or connection.instance != header["instance"]:
            raise Stale("the broker that holds the blocks of a message is gone")
        large = [
            (place, blocks.opened(connection, handle, size), writeable)
            for place, handle, size, writeable in header["blocks"]
        ]
    except Error as error:
        raise HandleFailed(str(error)) from error
    small = [bytes(frame) for frame in frames]
    return unpack(Record(header["key"], small, large, header["instance"]))
