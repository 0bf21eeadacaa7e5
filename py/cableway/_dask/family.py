"""The serialization family "cableway": objects whose large frames are handles, and not bytes.

It wraps the families "dask" and "pickle": they make a header and frames of an object, as always, and each frame of at least the
threshold is put into a block. So NumPy, pandas, Arrow and sparse matrices work alike. The receiver gives the same families views of
the blocks.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection
from typing import Any

import msgpack
import numpy as np
from distributed.comm.utils import OFFLOAD_THRESHOLD
from distributed.protocol.serialize import (
    Serialized,
    deserialize,
    msgpack_decode_default,
    msgpack_encode_default,
    serialize,
)
from distributed.protocol.utils import msgpack_opts
from distributed.sizeof import safe_sizeof
from distributed.utils import nbytes

from cableway._dask import blocks, names, node, records, settings
from cableway._dask.records import Record
from cableway.errors import BrokerLost, Error, LimitExceeded

__all__ = [
    "INNER",
    "Elsewhere",
    "HandleFailed",
    "Later",
    "NotFetched",
    "OtherBroker",
    "as_bytes",
    "copy_of",
    "dumps",
    "framed",
    "is_large",
    "loads",
    "moved",
    "pack",
    "unpack",
]

logger = logging.getLogger("cableway.dask")

INNER = ("dask", "pickle")


class HandleFailed(Exception):
    """A handle in a message could not be opened: its block went with its last holder."""


class OtherBroker(HandleFailed):
    """It is of another run of the broker than this process's."""


class NotFetched(HandleFailed):
    """It lies on another node, from which it could not be fetched; that node sends bytes for a while."""


def is_large(obj: object, size: int | None = None) -> bool:
    """Whether Dask's estimate of its size says that a look at its frames is worth it. It may be given, since it takes a while."""
    if size is None:
        size = obj.nbytes if type(obj) is np.ndarray else safe_sizeof(obj, default_size=0)
    return bool(size >= settings.threshold_bytes())


def framed(obj: object, context: dict[str, Any] | None, whole: bool) -> Serialized:
    """What the families "dask" and "pickle" make of an object, as in a message of Dask.

    Args:
        whole: it stands in a message as such, and is not a part of something.

    Raises:
        Exception: what the object's own family raises.
    """
    return Serialized(*serialize(obj, INNER, "raise", context, iterate_collection=whole))


def pack(
    found: Serialized,
    key: str | None,
    writeable: Collection[int] | None = None,
    lies_in: blocks.Block | None = None,
) -> Record | None:
    """Copies the large frames of an object into blocks. None: it has none, or there is no memory for them.

    Args:
        writeable: the places of those frames that the object may write to; None: as the frames say.
        lies_in: the block in which its one large frame lies; else it is copied.
    """
    connection = node.established()
    if connection is None:
        return None
    header, frames, least = found.header, found.frames, settings.threshold_bytes()
    if any(header.get("compression") or ()) or not any(nbytes(frame) >= least for frame in frames):
        return None
    small: list[bytes] = [msgpack.dumps(header, default=msgpack_encode_default, use_bin_type=True)]
    large: list[tuple[int, blocks.Block, bool]] = []
    try:
        for place, frame in enumerate(frames):
            if nbytes(frame) < least:
                small.append(bytes(frame))
            else:
                block = lies_in or blocks.copied(connection, frame)
                may = not memoryview(frame).readonly if writeable is None else place in writeable
                large.append((place, block, may))
    except LimitExceeded as error:
        _warn_once(sum(nbytes(frame) for frame in frames if nbytes(frame) >= least), error)
        return None  # bytes
    except BrokerLost:
        return None
    return Record(key, small, large, connection.instance)


_warned = False


def _warn_once(size: int, error: LimitExceeded) -> None:
    """Once a process: transfers become slower, and nothing else would say why."""
    global _warned
    if not _warned:
        _warned = True
        logger.warning(
            "an object with %d bytes is sent as bytes, since shared memory has no room for it: %s. The limit of the node is "
            "CABLEWAY_MAX_BYTES, where the broker is started. Further ones are not told.",
            size,
            error,
        )


def moved(record: Record) -> Record | None:
    """The record in blocks of the broker of now, where its own was another run. None: there is no memory for it."""
    connection = node.established()
    if connection is None:
        return None
    try:
        large = [
            (place, blocks.copied(connection, block.view(connection, False)), writeable)
            for place, block, writeable in record.blocks
        ]
    except (LimitExceeded, BrokerLost):
        return None
    return Record(record.key, record.frames, large, connection.instance)


def _header(record: Record) -> Any:
    return msgpack.loads(
        record.frames[0], object_hook=msgpack_decode_default, use_list=False, **msgpack_opts
    )


def as_bytes(record: Record) -> Serialized:
    """The object as it was packed, for a receiver that takes no handles, or for the disk. The frames are the blocks' memory."""
    frames: list[Any] = list(record.frames[1:])
    for place, block, _ in record.blocks:
        frames.insert(place, block.memory())
    return Serialized(_header(record), frames)


def copy_of(found: Serialized) -> Any:
    """The object of a message, in private memory."""
    frames = [bytearray(f) if isinstance(f, memoryview) else f for f in found.frames]
    return deserialize(found.header, frames)


def unpack(record: Record) -> Any:
    """The object of a record, on views of its blocks, which is noted.

    Raises:
        HandleFailed: a view cannot be made.
        Exception: what the object's own family raises.
    """
    connection = node.established()
    if connection is None or connection.instance != record.instance:
        raise OtherBroker("the broker that holds the blocks of a message is gone")
    frames: list[Any] = list(record.frames[1:])
    views: list[weakref.ref[Any]] = []
    try:
        for place, block, writeable in record.blocks:
            view = block.view(connection, writeable)
            views.append(weakref.ref(view))
            frames.insert(place, view.data)
            del view
    except BrokerLost as error:
        raise OtherBroker(str(error)) from error
    except Error as error:
        raise HandleFailed(str(error)) from error
    obj = deserialize(_header(record), frames)
    del frames
    records.remember(obj, record, views)
    return obj


class Later:
    """Stands for an object with a key that is large, and not made of views alone: who reads the message opens it in Dask's thread for
    that, so that the event loop does not wait. Its blocks are open.
    """

    def __init__(self, record: Record) -> None:
        self._record = record

    def open(self) -> Any:
        """The object. Raises as `unpack`."""
        return unpack(self._record)


class Elsewhere:
    """Stands for an object whose blocks lie on another node, and have names there: a thread of `names` fetches them."""

    def __init__(self, header: dict[str, Any], small: list[bytes]) -> None:
        self._header = header
        self._small = small

    def open(self) -> Any:
        """The object. Waits until its bytes are here.

        Raises:
            NotFetched: they cannot be fetched.
            HandleFailed: as `unpack`.
        """
        header, connection = self._header, node.established()
        if connection is None:
            raise OtherBroker("the broker for the blocks of a message is gone")
        try:
            large = [
                (place, names.fetched(connection, header["node"], name, size), writeable)
                for place, name, size, writeable in header["names"]
            ]
        except BrokerLost as error:
            raise OtherBroker(str(error)) from error
        except (Error, ValueError) as error:
            names.distrust(header["node"], header["instance"], error)
            raise NotFetched(str(error)) from error
        return unpack(Record(header["key"], self._small, large, connection.instance))


def _takes_long(record: Record) -> bool:
    if not OFFLOAD_THRESHOLD or record.key is None:
        return False
    size = sum(block.nbytes for _, block, _ in record.blocks)
    return size > OFFLOAD_THRESHOLD and _header(record).get("serializer") != "dask"


def dumps(obj: object, context: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[bytes]]:
    """Of an object without a key (scattered, an argument of an actor, a part of a shuffle); see `comm` for those with one.

    Raises:
        NotImplementedError: it goes by the next family, as bytes.
    """
    held = None if context is None else context.get("cableway")
    if held is None or not is_large(obj):
        raise NotImplementedError
    try:
        record = pack(framed(obj, context, whole=False), None)
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
    small = [bytes(frame) for frame in frames]
    if "node" in header:
        return Elsewhere(header, small)
    connection = node.established()
    if connection is None or connection.instance != header["instance"]:
        raise OtherBroker("the broker that holds the blocks of a message is gone")
    try:
        large = [
            (place, blocks.opened(connection, handle, size), writeable)
            for place, handle, size, writeable in header["blocks"]
        ]
    except BrokerLost as error:
        raise OtherBroker(str(error)) from error
    except Error as error:
        raise HandleFailed(str(error)) from error
    record = Record(header["key"], small, large, header["instance"])
    return Later(record) if _takes_long(record) else unpack(record)
