"""What Ray leaves undone for actors.

An actor's process learns of transports by a task that Ray sends once, after the actor was made. Its first methods may run before that, and
the process of an actor that Ray restarts never gets it. So the class of an actor that has tensor transport names a transport: who unpickles
the class imports `cableway.ray`, before anything of the actor runs.

Ray sends nothing to an actor that gets back what it made, since it has its own array. The new process of a restarted actor does not, and
would wait for a minute: it is told where the arrays lie, and maps them as any reader.

Ray fetches the arguments of methods alone. An actor that is made with such an argument would wait for a minute and die, so it is refused.

Where a transfer failed, since its reader died or after a minute, Ray's thread that watches transfers imports what needs PyTorch, to end a
group of collectives. Without PyTorch that thread would end, and actors in later transfers would never: what it no longer takes away has
handles to them. A transfer of ours has no such group, and nothing that would have to be ended, so it is only taken away.

At the end of a session Ray tells nobody that the program's references are gone. Actors that live on, detached ones or another program's,
would keep what they made for it: they are told.

Deaths: nothing here outlives a process. If a program is killed, nobody is told.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import ray
from ray._private.worker import Worker
from ray.actor import ActorClass, ActorHandle
from ray.experimental.rdt import rdt_store
from ray.experimental.rdt.rdt_manager import RDTManager

from cableway._ray.metadata import Metadata
from cableway._ray.sessions import TRANSPORTS
from cableway._ray.transport import Source

__all__ = ["TELL_SECONDS", "watch"]

logger = logging.getLogger("cableway.ray")

TELL_SECONDS = 1.0  # for which the end of a session waits for actors that are told of it

_NAMED = "__cableway_transport__"  # attribute of an actor's class
_watched = False


def watch(transport: type) -> None:
    """From now on. May be repeated.

    Args:
        transport: a class of the module that registers transports.
    """
    global _watched
    if _watched:
        return
    _watched = True
    make, transfer = ActorClass._remote, RDTManager.trigger_out_of_band_tensor_transfer
    abort, end = RDTManager._abort_transport, Worker.shutdown_rdt_manager

    @functools.wraps(make)
    def make_knowing_transports(
        self: Any, args: Any = None, kwargs: Any = None, **options: Any
    ) -> Any:
        _refuse([*(args or ()), *(kwargs or {}).values()])
        meta = self.__ray_metadata__
        if meta.enable_tensor_transport and meta.modified_class is not None:
            setattr(meta.modified_class, _NAMED, transport)
        return make(self, args, kwargs, **options)

    @functools.wraps(transfer)
    def transfer_also_back(self: Any, dst_actor: Any, obj_id: str) -> None:
        transfer(self, dst_actor, obj_id)
        _send_back(self, dst_actor, obj_id)

    @functools.wraps(abort)
    def abort_only_others(self: Any, failed: Any, watched: dict[str, Any], error: Any) -> None:
        found = watched.get(failed.hex())
        if found is None:
            return
        if found.backend not in TRANSPORTS:
            abort(self, failed, watched, error)
            return
        del watched[failed.hex()]  # one-sided: the call of the reader is all of it
        logger.info("%r does not get object %s: %s", found.dst_actor, found.obj_id, error)

    @functools.wraps(end)
    def tell_and_end(self: Any) -> None:
        if self.mode == ray.SCRIPT_MODE and self._rdt_manager is not None:
            try:
                _tell(self._rdt_manager)
            except Exception:  # the session is to end
                logger.exception("actors that live on may keep what they made for this program")
        end(self)

    ActorClass._remote = make_knowing_transports
    RDTManager.trigger_out_of_band_tensor_transfer = transfer_also_back
    RDTManager._abort_transport = abort_only_others
    Worker.shutdown_rdt_manager = tell_and_end


def _refuse(arguments: list[Any]) -> None:
    """A constructor's arguments may not be references to arrays of ours.

    Raises:
        TypeError: one of them is.
    """
    for each in arguments:
        if isinstance(each, ray.ObjectRef):
            found = ray._private.worker.global_worker.rdt_manager.get_rdt_metadata(each.hex())
            if found is not None and found.tensor_transport_backend in TRANSPORTS:
                raise TypeError(
                    f"cannot make an actor with {each}: Ray fetches what has tensor transport {found.tensor_transport_backend.lower()!r} "
                    "for methods, not for constructors; make the actor without it, and give it to a method"
                )


def _send_back(manager: Any, actor: Any, object_id: str) -> None:
    """Tells the actor that made an object where it lies. Never fails: it may run in a thread of Ray's that an exception would end."""
    try:
        found = manager.get_rdt_metadata(object_id)
        if (
            found is not None
            and found.tensor_transport_backend in TRANSPORTS
            and isinstance(found.src_actor, ActorHandle)
            and found.src_actor._actor_id == actor._actor_id
        ):
            task = actor.__ray_call__.options(concurrency_group="_ray_system")
            place, backend = found.tensor_transport_meta, found.tensor_transport_backend
            task.remote(_receive_back, object_id, place, Source(found.src_actor), backend)
    except Exception:
        logger.exception("%r may wait for object %s for a minute, and fail", actor, object_id)


def _receive_back(actor: Any, object_id: str, place: Any, source: Source, backend: str) -> None:
    """Runs at the actor that made an object, before the method that gets it: it has the object, or was restarted."""
    store = ray._private.worker.global_worker.rdt_manager.rdt_store
    if not store.is_primary_copy(object_id):
        rdt_store.__ray_recv__(actor, object_id, place, source, backend)


def _tell(manager: Any) -> None:
    """Tells actors that the references of this program to what they made are gone. Waits TELL_SECONDS at most."""
    with manager._lock:
        known = dict(manager._managed_rdt_metadata)
    made: dict[Any, tuple[Any, list[tuple[str, str]]]] = {}
    for object_id, found in known.items():
        place, maker = found.tensor_transport_meta, found.src_actor
        if isinstance(place, Metadata) and place.owned and isinstance(maker, ActorHandle):
            objects = made.setdefault(maker._actor_id, (maker, []))[1]
            objects.append((object_id, found.tensor_transport_backend))
            place.owned = False
    told = [
        maker.__ray_call__.options(concurrency_group="_ray_system").remote(_let_go, objects)
        for maker, objects in made.values()
    ]
    if told:
        ray.wait(told, num_returns=len(told), timeout=TELL_SECONDS)


def _let_go(actor: Any, objects: list[tuple[str, str]]) -> None:
    """Runs at the actor that made the objects."""
    for object_id, backend in objects:
        rdt_store.__ray_free__(actor, object_id, backend, None)
