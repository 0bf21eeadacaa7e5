"""Messages that name keys: a worker's reply to get_data, and what a client scatters.

Promise: from the first time on that a worker sends an object of at least the threshold under a key, by handle or as bytes, whoever asks
for the key gets the bytes of that first time. So the first sending copies the object's large frames into blocks, the worker's data
become private views of these, and each further sending is made of the blocks. Exception: without a broker, or where shared memory is
full, the object goes as bytes as it is now, as in Dask.

Owner: a connection's coroutine; packing runs in the thread in which Dask serializes, of which there is one: so no object is packed twice
at once. Until the worker's data are told, `_first` has what was packed. If the process dies in the midst, its leases end, and the peer's
connection is cut.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeAlias

from distributed.protocol.serialize import Serialize, Serialized
from distributed.utils import offload

from cableway._dask import family, gpu_objects, names, node, records, settings
from cableway._dask.gpu_objects import GpuRecord
from cableway._dask.records import Record
from cableway.errors import Error

__all__ = ["UNOPENED", "large_objects", "opened", "with_packed"]

logger = logging.getLogger("cableway.dask")

# Of an object; None: Dask's own family cannot do it.
_Found: TypeAlias = "Record | GpuRecord | Serialized | None"


# Stand for objects until `opened`.
UNOPENED = frozenset([family.Later, family.Elsewhere, gpu_objects.Later])

# Objects that take no weak reference, with their first records, by id and key: for replies that were asked for before the worker's data
# were told of these. The thread that packs changes it: an entry goes after all such replies (`_told`).
_first: dict[tuple[int, str], tuple[object, Record]] = {}


def large_objects(data: dict[Any, Any], worker: Any) -> dict[Any, object]:
    """The objects of a message's data that are to be packed, by their keys. Asked with each message, so it is quick.

    Args:
        worker: whose data they are (`Served`); None: they are scattered.
    """
    return {
        key: value.data
        for key, value in data.items()
        if type(value) is Serialize
        and (
            records.recall(value.data, key) is not None
            or family.is_large(value.data, None if worker is None else worker.size(key))
        )
    }


async def with_packed(
    comm: Any,
    msg: Any,
    large: dict[Any, object],
    handles: bool,
    node_name: str | None,
    serializers: Any,
) -> Any:
    """The message with its large objects packed.

    Args:
        comm: the connection (`comm`).
        large: the objects (`large_objects`), which are a worker's if the message says that all is "OK".
        handles: the peer takes them; else it gets bytes.
        node_name: the peer is on another node, and fetches blocks by name from this one, which it knows by that; None: it does not.
        serializers: those that the caller asks for; None: Dask's.
    """
    data, serves = msg["data"], msg.get("status") == "OK"
    by_name = serves and node_name is not None
    reader = comm.gpus() if handles else []
    found = {key: _known(key, obj, handles or by_name, reader) for key, obj in large.items()}
    new = [key for key, record in found.items() if record is None]
    fetchable = {*_for_bridge(found)} if by_name else set()
    try:
        if new or (by_name and not _have_names(found)):
            prepared = offload(_prepared, comm, large, serves, handles, by_name, reader)
            found, fetchable = await prepared
        if new and serves:
            made = {key: (large[key], found[key]) for key in new}
            taken = Record, GpuRecord
            comm.worker.took({k: pair for k, pair in made.items() if isinstance(pair[1], taken)})
    finally:
        alone = [(large[key], key) for key in new if not type(large[key]).__weakrefoffset__]
        if alone and serves:
            asyncio.ensure_future(offload(_told, alone))
    packed: dict[Any, Any] = {}
    for key, sent in found.items():
        if isinstance(sent, GpuRecord):
            comm.unanswered.append(sent)
            packed[key] = Serialized(sent.header(), sent.frames)
        elif isinstance(sent, Record) and (handles or key in fetchable):
            comm.unanswered.append(sent)
            header = sent.header() if handles else sent.header_by_name(str(node_name))
            packed[key] = Serialized(header, sent.frames)
        elif sent is None or (serializers is not None and not handles):
            if isinstance(sent, Record):
                packed[key] = Serialize(family.copy_of(family.as_bytes(sent)))
        else:
            packed[key] = Serialize(family.as_bytes(sent) if isinstance(sent, Record) else sent)
    return {**msg, "data": {**data, **packed}}


def _for_bridge(found: dict[Any, _Found]) -> dict[Any, Record]:
    """Those that are large enough to go to another node by the bridge."""
    least = settings.bridge_threshold_bytes()
    return {
        key: record
        for key, record in found.items()
        if isinstance(record, Record) and sum(b.nbytes for _, b, _ in record.blocks) >= least
    }


def _have_names(found: dict[Any, _Found]) -> bool:
    """Whether all that goes by the bridge has names."""
    return all(block.has_name for r in _for_bridge(found).values() for _, block, _ in r.blocks)


def _named(found: dict[Any, _Found]) -> set[Any]:
    """Gives blocks names for other nodes: the keys of which all have one. Where there is no room for names, bytes go."""
    done = set()
    for key, record in _for_bridge(found).items():
        try:
            for _, block, _ in record.blocks:
                names.named(block)
            done.add(key)
        except Error as error:
            logger.info("%r goes to another node as bytes: %s", key, error)
    return done


async def opened(msg: Any) -> Any:
    """The message, whose "data" are a dict, with those objects that take long to open, or come from another node.

    Raises:
        HandleFailed: a view of a block cannot be made, or it cannot be fetched.
        Exception: what the object's own family raises.
    """
    data = msg["data"]
    later = {key: value for key, value in data.items() if type(value) is family.Later}
    found = {}
    if later:
        found = await offload(lambda: {key: value.open() for key, value in later.items()})
    apart = family.Elsewhere, gpu_objects.Later
    elsewhere = {key: value for key, value in data.items() if type(value) in apart}
    if elsewhere:
        loop = asyncio.get_running_loop()
        fetches = [loop.run_in_executor(names.pool(), value.open) for value in elsewhere.values()]
        come = await asyncio.gather(*fetches, return_exceptions=True)  # all end before it is said
        try:
            for error in come:
                if isinstance(error, BaseException):
                    raise error
        finally:
            error = None  # its traceback has this frame
        found.update(zip(elsewhere, come, strict=True))
    return {**msg, "data": {**data, **found}} if found else msg


def _known(key: object, obj: object, shared: bool, reader: list[str]) -> Record | GpuRecord | None:
    """The record of an object under its key, if it will do.

    Args:
        shared: its blocks are of the broker of now.
        reader: the GPUs on which the reader opens blocks.
    """
    if reader and gpu_objects.lies_on_gpu(obj):
        return gpu_objects.known(obj, records.name_of(key), reader)
    record = _earlier(key, obj)
    if record is None or not shared:
        return record
    found = node.established()
    return record if found is not None and record.instance == found.instance else None


def _earlier(key: object, obj: object) -> Record | None:
    """The record of an object under its key, of whatever broker."""
    found = records.recall(obj, key)
    if found is None and _first:
        found = _first.get((id(obj), records.name_of(key)), (None, None))[1]
    return found


def _prepared(
    comm: Any,
    large: dict[Any, object],
    serves: bool,
    handles: bool,
    by_name: bool,
    reader: list[str],
) -> tuple[dict[Any, _Found], set[Any]]:
    """What `_packed` makes of the objects, and the keys of those whose blocks have names."""
    found = _packed(comm, large, serves, handles or by_name, reader)
    return found, _named(found) if by_name else set()


def _told(packed: list[tuple[object, Any]]) -> None:
    """The worker's data know these objects' records, or the reply is given up."""
    for obj, key in packed:
        _first.pop((id(obj), records.name_of(key)), None)


def _packed(
    comm: Any, large: dict[Any, object], serves: bool, shared: bool, reader: list[str]
) -> dict[Any, _Found]:
    """A record of each; its frames where it has no large ones or there is no room; None: Dask's own family cannot do it."""
    context = {"sender": comm.local_info, "recipient": comm.remote_info, **comm.handshake_options}
    found: dict[Any, _Found] = {}
    for key, obj in large.items():
        found[key] = (
            _known(key, obj, shared, reader)
            or _on_gpu(key, obj, context, reader)
            or _known(key, obj, shared, [])
        )
        if found[key] is not None:
            continue
        earlier = _earlier(key, obj)
        if earlier is not None:  # of a broker that is gone
            record = family.moved(earlier)
            found[key] = family.as_bytes(earlier) if record is None else record
        else:
            try:
                frames = family.framed(obj, context, whole=True)
            except Exception:  # Dask's own family says what is wrong with it
                continue
            record = family.pack(frames, records.name_of(key))
            found[key] = frames if record is None else record
        if record is not None and serves:
            records.remember(obj, record)
            if not type(obj).__weakrefoffset__ and records.recall(obj, key) is None:
                _first[id(obj), records.name_of(key)] = obj, record
    return found


def _on_gpu(key: Any, obj: object, context: dict[str, Any], reader: list[str]) -> GpuRecord | None:
    """A record of an object in GPU memory, for a reader that opens blocks there."""
    if not reader or not gpu_objects.lies_on_gpu(obj):
        return None
    try:
        return gpu_objects.pack(obj, records.name_of(key), context, reader)
    except Exception as error:  # of the object's own family: Dask's other one says it, or can do it
        logger.info("%r is not sent within GPU memory: %s", key, error)
        return None
