"""What Ray calls: an object's arrays to metadata, and metadata to arrays.

Promise: the reader gets arrays with the values that the object had when the method returned it, or that `ray.put` was given. They are its
own: it may write to them, and nobody else sees it. Exceptions, both as with Ray's own transports: an array that lay in memory of cableway is
shared as it is, and one for which there is no room in shared memory is sent as it is when it is read. So readers may see what its
owner writes there later, until Ray has let go of the object (`ray.experimental.wait_tensor_freed`).

Owner of what is held: `_held`, of the process that made the objects, by Ray's id of each. It goes when Ray says that no reference is left,
or with the process. Which process dies when: `metadata`.

Threads: Ray calls from the thread of a task, from one for transfers, and one for what is freed. So `_held` is changed by single operations of
a dict alone.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import ray
from ray.experimental import CommunicatorMetadata, TensorTransportManager

from cableway import client
from cableway._ray import blocks, fetching, libraries, metadata, names, serving, settling
from cableway._ray.blocks import Block
from cableway._ray.libraries import Form
from cableway._ray.metadata import Metadata, Place
from cableway.errors import Error, LimitExceeded

__all__ = ["INLINE_BYTES", "Source", "Transport", "session_ended"]

logger = logging.getLogger("cableway.ray")

INLINE_BYTES = 32 << 10  # an object of fewer goes within Ray's own messages


class Source(CommunicatorMetadata):
    """Who made an object: an actor, or None."""

    def __init__(self, actor: Any) -> None:
        super().__init__()
        self.actor = actor


class _Object:
    """An object's blocks at the process that made it, and what is under way to the owner."""

    __slots__ = ("blocks", "instance", "named", "transits")

    def __init__(self, instance: int) -> None:
        self.instance = instance
        self.blocks: list[Block] = []
        self.transits: list[bytes] = []
        self.named: list[str] = []


_held: dict[str, list[_Object]] = {}


class Transport(TensorTransportManager):
    """Arrays of one object lie in shared memory of the node; readers map it."""

    @property
    def tensor_transport_backend(self) -> str:
        """The name under which Ray has it."""
        return "CABLEWAY"

    @staticmethod
    def is_one_sided() -> bool:
        """Readers alone do something."""
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        """Nobody has to die where a reader failed."""
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Each actor has it: Ray registers it there."""
        return True

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> Source:
        """Whom a reader may ask for the bytes."""
        _warn_of(dst_actor)
        return Source(src_actor)

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Metadata:
        """Puts the arrays into shared memory, by one copy in all. Waits for it.

        Raises:
            TypeError: something cannot be shared. Ray tells the caller of the method, and keeps nothing.
        """
        try:
            return _described(obj_id, rdt_object)
        except BaseException:
            # Ray has stored the arrays before, and would keep them: the owner never learns of the object.
            store = ray._private.worker.global_worker.rdt_manager.rdt_store
            if store.has_object(obj_id):
                store.pop_object(obj_id)
            raise

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Metadata,
        communicator_metadata: Source,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """The arrays, on private views of their block; within the node nothing is copied. Waits for their bytes from another node.

        Args:
            target_buffers: arrays of the same form into which they are copied instead.

        Raises:
            Error: they are gone: their actor has died, and nobody else holds them.
        """
        found = _opened(tensor_transport_metadata, communicator_metadata.actor)
        if not target_buffers:
            return found
        for target, array in zip(target_buffers, found, strict=True):
            libraries.copy_into(target, array)
        return target_buffers

    def send_multiple_tensors(
        self,
        tensors: list[Any],
        tensor_transport_metadata: Metadata,
        communicator_metadata: Source,
    ) -> None:
        """Never called, since readers alone do something."""
        raise NotImplementedError("cableway's transport is one-sided: nobody sends")

    def garbage_collect(
        self, obj_id: str, tensor_transport_meta: Metadata, tensors: list[Any]
    ) -> None:
        """No reference is left: the maker lets go of the blocks. Readers keep what they have."""
        for held in _held.pop(obj_id, []):
            _let_go(held)

    def abort_transport(self, obj_id: str, communicator_metadata: Source) -> None:
        """Nothing is under way that would have to be ended: a reader that failed has nothing."""


_warned: set[Any] = set()


def _warn_of(actor: Any) -> None:
    """Says once of a reader that Ray may make it wait for what only it itself could receive. No error: here one would end the process.

    Only of one that this process has made: the handle from `ray.get_actor` says of all actors that they have no tensor transport.
    """
    if actor is None or actor._ray_enable_tensor_transport or not actor._ray_original_handle:
        return
    if actor._actor_id not in _warned:
        _warned.add(actor._actor_id)
        logger.warning(
            "%r was made without tensor transport: it may wait for arrays for a minute, and fail; write @ray.remote(enable_tensor_transport=True)",
            actor,
        )


def _described(object_id: str, arrays: list[Any]) -> Metadata:
    """Metadata of arrays: in blocks, or within it where they are few, or else to be asked for."""
    forms = [libraries.form_of(array) for array in arrays]
    devices = sorted({libraries.device_of(array) for array in arrays})
    if len(devices) > 1:
        raise TypeError(
            f"the arrays of one object lie on {' and '.join(devices)}; return those of each in an object of its own"
        )
    device = devices[0] if devices else None
    parts = fetching.packed(arrays)
    if sum(part.nbytes for part in parts) < INLINE_BYTES:
        few = [part.tobytes() for part in parts]
        return Metadata(object_id, forms, device, [], 0, [], None, few)
    connection, reason = metadata.connection(), metadata.reason()
    try:
        if connection is not None:
            return _shared(connection, object_id, forms, device, parts)
    except Error as error:
        reason = str(error)
        logger.warning("object %s goes through Ray's object store: %s", object_id, error)
    # A program that is no actor cannot be asked from another machine: Ray sends its arrays as arguments. A reference to Ray's object store
    # would not do, since Ray holds a lock while it pickles metadata, for which pickling a reference asks.
    by_value = ray.get_runtime_context().get_actor_id() is None
    return Metadata(object_id, forms, device, [], 0, [], None, parts if by_value else None, reason)


def _shared(
    connection: client.Connection,
    object_id: str,
    forms: list[Form],
    device: str | None,
    parts: list[Any],
) -> Metadata:
    """Metadata of arrays that lie in blocks; this process holds those.

    Raises:
        Error: there is no room, or the broker is gone.
    """
    held = _Object(connection.instance)
    places: dict[int, Place] = {}
    for number, part in enumerate(parts):
        there = blocks.of_array(part)
        if there is not None:
            places[number] = Place(len(held.blocks), there[1], part.nbytes)
            held.blocks.append(there[0])
    others = [number for number in range(len(parts)) if number not in places]
    if others:
        block, offsets = blocks.copied(connection, [parts[number] for number in others])
        for number, offset in zip(others, offsets, strict=True):
            places[number] = Place(len(held.blocks), offset, parts[number].nbytes)
        held.blocks.append(block)
    named = names.named(connection, held.blocks)
    if named is not None:
        held.named = named[1]
    handles = [block.handle for block in held.blocks]
    found = Metadata(
        object_id,
        forms,
        device,
        [places[number] for number in range(len(parts))],
        connection.instance,
        handles,
        named,
        None,
    )
    if ray.get_runtime_context().get_actor_id() is not None:  # else the owner is this process
        try:
            held.transits = [blocks.in_transit(block) for block in held.blocks]
        except LimitExceeded as error:
            logger.warning("object %s lasts as long as its actor: %s", object_id, error)
        found.transits = held.transits
    else:
        found.put_here = functools.partial(fetching.stored, object_id)
        try:
            found.server = serving.address(fetching.stored)
        except (OSError, RuntimeError) as error:
            logger.warning("object %s cannot be had if its broker dies: %s", object_id, error)
    _held.setdefault(object_id, []).append(held)
    return found


def session_ended() -> None:
    """Nobody of Ray's asks for the objects of this process any more. Readers keep what they have."""
    for object_id in list(_held):
        for held in _held.pop(object_id, []):
            _let_go(held)


def _let_go(held: _Object) -> None:
    connection = client.known()
    if connection is None or connection.closed or connection.instance != held.instance:
        return  # all of it went with its broker
    for handle in held.transits:
        blocks.discard(connection, handle)
    names.removed(connection, held.named)
    held.blocks.clear()
    settling.soon()


def _opened(found: Metadata, actor: Any) -> list[Any]:
    """The arrays behind metadata."""
    if found.values is not None:
        return fetching.of_bytes(found.values, found.forms)
    if not found.handles:
        why = f"they are not in shared memory: {found.reason}"
        return fetching.from_maker(found, _maker(found, actor), why)
    connection = metadata.connection()
    try:
        if connection is None:
            raise Error(f"this process has no broker: {metadata.reason()}")
        if connection.instance == found.instance:
            views = [blocks.view(connection, handle) for handle in found.handles]
        else:
            views = names.fetched(connection, found.names)
    except Error as error:
        return fetching.from_maker(found, _maker(found, actor), str(error))
    return [
        libraries.made(views[place.block][place.offset : place.offset + place.nbytes], form)
        for place, form in zip(found.places, found.forms, strict=True)
    ]


def _maker(found: Metadata, actor: Any) -> Any:
    """The actor that made an object; where Ray does not tell it (`ray.get`), this process knows it."""
    if actor is not None:
        return actor
    known = ray._private.worker.global_worker.rdt_manager.get_rdt_metadata(found.object_id)
    source = None if known is None else known.src_actor
    return source if isinstance(source, ray.actor.ActorHandle) else None
