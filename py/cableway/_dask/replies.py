"""Messages that name keys: a worker's reply to get_data, and what a client scatters.

Promise: from the first time on that a worker sends an object of at least the threshold under a key, by handle or as bytes, whoever asks
for the key gets the bytes of that first time. So the first sending copies the object's large frames into blocks, the worker's data
become private views of these, and each further sending is made of the blocks. Exception: without a broker, or where shared memory is
full, the object goes as bytes as it is now, as in Dask.

Owner: a connection's coroutine; packing runs in the thread in which Dask serializes, of which there is one: so no object is packed twice
at once. If the process dies in the midst, its leases end, and the peer's connection is cut.
"""

from __future__ import annotations

from typing import Any

from distributed.protocol.serialize import Serialize, Serialized
from distributed.utils import offload

from cableway._dask import family, node, records
from cableway._dask.records import Record

__all__ = ["opened", "with_keys"]


async def with_keys(comm: Any, msg: Any, handles: bool, serializers: Any) -> Any:
    """The message with its large objects packed, if it is one that names their keys; else as it is.

    Args:
        comm: the connection (`comm`).
        handles: the peer takes them; else it gets bytes.
        serializers: those that the caller asks for; None: Dask's.
    """
    if not isinstance(msg, dict) or type(msg.get("data")) is not dict:
        return msg
    serves = comm.worker is not None and msg.get("status") == "OK"
    if not serves and not (handles and msg.get("op") == "update_data"):
        return msg
    data = msg["data"]
    large = {
        key: value.data
        for key, value in data.items()
        if type(value) is Serialize
        and (
            records.recall(value.data, key) is not None
            or family.is_large(value.data, comm.worker.size(key) if serves else None)
        )
    }
    if not large:
        return msg
    found = {key: _known(key, obj, handles) for key, obj in large.items()}
    new = [key for key, record in found.items() if record is None]
    if new:
        found = await offload(_packed, comm, large, serves, handles)
    if new and serves:
        made = {key: (large[key], found[key]) for key in new}
        comm.worker.took({key: pair for key, pair in made.items() if isinstance(pair[1], Record)})
    packed: dict[Any, Any] = {}
    for key, sent in found.items():
        if isinstance(sent, Record) and handles:
            comm.unanswered.append(sent)
            packed[key] = Serialized(sent.header(), sent.frames)
        elif sent is None or (serializers is not None and not handles):
            if isinstance(sent, Record):
                packed[key] = Serialize(family.copy_of(family.as_bytes(sent)))
        else:
            packed[key] = Serialize(family.as_bytes(sent) if isinstance(sent, Record) else sent)
    return {**msg, "data": {**data, **packed}}


async def opened(msg: Any) -> Any:
    """The message with those objects that take long to open.

    Raises:
        HandleFailed: a view of a block cannot be made.
        Exception: what the object's own family raises.
    """
    data = msg.get("data") if type(msg) is dict else None
    if type(data) is not dict:
        return msg
    later = {key: value for key, value in data.items() if type(value) is family.Later}
    if not later:
        return msg
    found = await offload(lambda: {key: value.open() for key, value in later.items()})
    return {**msg, "data": {**data, **found}}


def _known(key: object, obj: object, handles: bool) -> Record | None:
    """The record of an object under its key, if it will do."""
    record = records.recall(obj, key)
    if record is None or not handles:
        return record
    found = node.established()
    return record if found is not None and record.instance == found.instance else None


def _packed(
    comm: Any, large: dict[Any, object], serves: bool, handles: bool
) -> dict[Any, Record | Serialized | None]:
    """A record of each; its frames where it has no large ones or there is no room; None: Dask's own family cannot do it."""
    context = {"sender": comm.local_info, "recipient": comm.remote_info, **comm.handshake_options}
    found: dict[Any, Record | Serialized | None] = {}
    for key, obj in large.items():
        found[key] = _known(key, obj, handles)
        if found[key] is not None:
            continue
        earlier = records.recall(obj, key)
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
    return found
