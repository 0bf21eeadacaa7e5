"""Arrays through Ray's own object store, where shared memory cannot be had: no broker, a full one, another node without a bridge.

The reader asks the actor that made the object, by a task of a group that Ray keeps for such (`_ray_system_error`): the one in which
receiving runs may be waiting for arrays of ours itself. What came is read-only there, so the reader copies it. A program that is no actor
is asked by a socket of its own (`serving`).
"""

from __future__ import annotations

from typing import Any

import ray

from cableway._ray import serving
from cableway._ray.libraries import Form, host_bytes, made
from cableway._ray.metadata import Metadata
from cableway.errors import Error

__all__ = ["FETCH_SECONDS", "from_maker", "of_bytes", "packed", "stored"]

FETCH_SECONDS = 60.0  # for which an actor is waited for


def packed(arrays: list[Any]) -> list[Any]:
    """The bytes of each."""
    return [host_bytes(array) for array in arrays]


def of_bytes(parts: list[Any], forms: list[Form]) -> list[Any]:
    """The arrays, each in memory of its own."""
    import numpy as np

    return [
        made(np.array(np.frombuffer(part, "u1") if isinstance(part, bytes) else part), form)
        for part, form in zip(parts, forms, strict=True)
    ]


def _bytes_there(_: Any, object_id: str) -> list[Any] | None:
    """Runs at the actor that made the object. None: it has it no more."""
    return stored(object_id)


def stored(object_id: str) -> list[Any] | None:
    """The bytes of each array of an object that this process has made. None: it has it no more."""
    from ray._private.worker import global_worker

    store = global_worker.rdt_manager.rdt_store
    return packed(store.get_object(object_id)) if store.has_object(object_id) else None


def from_maker(metadata: Metadata, actor: Any, why: str) -> list[Any]:
    """The arrays, in memory of this process. Waits for who made them, for an actor FETCH_SECONDS at most.

    Args:
        actor: which made them; None: it was no actor, but a program.
        why: they cannot be had otherwise.

    Raises:
        Error: it does not have them any more, or cannot be reached.
    """
    what = f"the arrays of object {metadata.object_id} cannot be opened here ({why})"
    if actor is None:
        return _from_program(metadata, what)
    try:
        asked = actor.__ray_call__.options(concurrency_group="_ray_system_error")
        parts = ray.get(asked.remote(_bytes_there, metadata.object_id), timeout=FETCH_SECONDS)
    except ray.exceptions.RayError as error:
        raise Error(f"{what}, and the actor that made them did not send them: {error}") from error
    if parts is None:
        raise Error(f"{what}, and the actor that made them has them no more")
    return of_bytes(parts, metadata.forms)


def _from_program(metadata: Metadata, what: str) -> list[Any]:
    try:
        if not metadata.server:
            raise ConnectionError("it listens nowhere")
        parts = serving.ask(metadata.server, metadata.object_id)
    except OSError as error:
        raise Error(
            f"{what}, and the program that put them cannot be asked from here: {error}; return them from an actor's method, or connect "
            "the nodes by bridges"
        ) from error
    if parts is None:
        raise Error(f"{what}, and the program that put them has them no more")
    return [made(part, form) for part, form in zip(parts, metadata.forms, strict=True)]
