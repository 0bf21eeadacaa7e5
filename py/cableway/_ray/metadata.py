"""What Ray carries beside a reference to an object: where the object's arrays lie.

Who holds the memory. The actor that made the object, until Ray says that the last reference is gone (`transport`). The owner of the
reference, which is the process that called the actor, as long as it has these metadata, which is as long as Ray has the reference: so the
arrays outlive their actor. Each reader by its view, as long as that is there.

The maker hands over to the owner by a handle with a transit: the broker holds the block until the owner has opened it, or
`transit_seconds` ran out, whoever dies meanwhile. Readers get handles without one, since the owner has the reference as long as a task
with it is under way.

Invariant: only the owner takes a lease when metadata arrive. Processes that borrow a reference do not: Ray keeps metadata there for good
(its issue 57962).

Metadata arrive in a thread of Ray's that must not wait, and where an exception would end the process. So a thread of this module's own opens
the handles; it ends with the process. If the owner dies, its leases end, as Ray's references do. If no handle can be opened (another
node, another run of the broker) the owner holds nothing, and the arrays last as long as their actor, as with Ray's own transports.
"""

from __future__ import annotations

import functools
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from ray.experimental import TensorTransportMetadata

from cableway import client
from cableway._core.leases import Lease
from cableway._ray import blocks, names
from cableway._ray.libraries import Form
from cableway.errors import Error

__all__ = ["Metadata", "Place", "connection", "reason"]

logger = logging.getLogger("cableway.ray")


class Place(NamedTuple):
    """Where an array lies.

    Attributes:
        block: its number among the object's.
        offset: of its first byte there.
        nbytes: that it has.
    """

    block: int
    offset: int
    nbytes: int


class Metadata(TensorTransportMetadata):
    """Of one object.

    Attributes:
        tensor_meta: shape and dtype of each array; for Ray.
        tensor_device: where they lay when they were sent, "cpu" or "cuda"; for Ray.
        object_id: Ray's.
        forms: what makes bytes arrays again.
        places: of each array; empty: see `values`.
        instance: of the broker that the handles are of.
        handles: of the blocks.
        names: of the blocks, for other nodes: the node's, and one for each block; None: none.
        values: the arrays' bytes, where they are few, or nobody could be asked for them. None: they are to be had from blocks, or else
            from their actor.
        reason: why they are not in blocks, for errors of those that read; "": they are, or need none.
        server: where the program that put them answers readers that cannot open the blocks (`serving`); "": nowhere.
    """

    def __init__(
        self,
        object_id: str,
        forms: list[Form],
        device: str | None,
        places: list[Place],
        instance: int,
        handles: list[bytes],
        names: tuple[str, list[str]] | None,
        values: Any,
        reason: str = "",
        server: str = "",
    ) -> None:
        super().__init__([(form.shape, form.dtype) for form in forms], device)
        self.object_id = object_id
        self.forms = forms
        self.places = places
        self.instance = instance
        self.handles = handles
        self.names = names
        self.values = values
        self.reason = reason
        self.server = server
        self.transits: list[bytes] = []  # handles for the owner
        self.owned = False  # whether they came here with such handles, and the session goes on
        self.leases: list[Lease] = []  # the owner's, and its names for the blocks
        self.owner_names: list[str] = []
        self.put_here: Callable[[], Any] | None = None  # the arrays' bytes, if a program put them

    def __del__(self) -> None:
        if getattr(self, "owner_names", None):  # perhaps amid anything: the names go later
            _keeper.do(functools.partial(_forget_names, self.instance, self.owner_names))

    def _values(self) -> Any:
        """For a reader, perhaps on another machine, which cannot ask the program for what it has put: once the broker of the blocks is
        known to be gone, the arrays go along. Ray holds its lock meanwhile.
        """
        if self.values is not None or self.put_here is None:
            return self.values
        known = client.known()
        if known is None or known.closed or known.lost or known.instance != self.instance:
            return self.put_here()
        return None

    def __reduce__(self) -> Any:
        state = (
            self.object_id,
            self.forms,
            self.tensor_device,
            self.places,
            self.instance,
            self.handles,
            self.names,
            self._values(),
            self.reason,
            self.server,
        )
        return _arrived, (state, self.transits if self._goes_to_owner() else [])

    def _goes_to_owner(self) -> bool:
        """Whether this process has made the object for another one's reference. What has come has no transits to pass on; what this
        process has put itself is pickled for others than the owner. Ray holds its lock meanwhile, so it is not asked for it.
        """
        if not self.transits:
            return False
        from ray._private.worker import global_worker

        known = getattr(global_worker.rdt_manager, "_managed_rdt_metadata", {}).get(self.object_id)
        return known is None or known.tensor_transport_meta is not self


def _arrived(state: tuple[Any, ...], transits: list[bytes]) -> Metadata:
    """Never waits, and never fails: see above."""
    found = Metadata(*state)
    found.owned = bool(transits)
    if transits:
        _keeper.do(functools.partial(_hold, weakref.ref(found), transits))
        try:
            _keeper.start()
        except RuntimeError as error:  # no thread more, or the interpreter ends
            logger.warning("the arrays of objects last as long as their actors: %s", error)
    return found


class _Keeper:
    """The thread that opens what arrives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, job: Callable[[], None]) -> None:
        """Later, in the thread, if that runs."""
        self._jobs.put(job)

    def start(self) -> None:
        """The thread, if it does not run."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="cableway.ray keeper", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            try:
                self._jobs.get()()
            except Exception:  # the next ones are to be done
                logger.exception("the arrays of an object last as long as their actor")


def _hold(reference: weakref.ref[Metadata], transits: list[bytes]) -> None:
    """Takes leases on an object's blocks, as long as its metadata are there; and names, where a bridge runs: so other nodes find it, too."""
    found, known = reference(), connection()
    if found is None or known is None or known.instance != found.instance:
        return
    try:
        found.leases = [blocks.held(known, handle) for handle in transits]
        if found.names is not None:
            names.put_again(found.leases, found.names[1], found.owner_names)
    except Error as error:
        object_id, owned = found.object_id, found.owned
        del found
        if owned and reference() is not None:  # else the last reference has gone meanwhile
            logger.warning(
                "the arrays of object %s last as long as their actor: %s", object_id, error
            )


def _forget_names(instance: int, gone: list[str]) -> None:
    known = client.known()
    if known is not None and not known.closed and known.instance == instance:
        names.removed(known, gone)


_keeper = _Keeper()
_said = ""


def _after_fork_in_child() -> None:
    global _keeper
    _keeper = _Keeper()


os.register_at_fork(after_in_child=_after_fork_in_child)


def connection() -> client.Connection | None:
    """The connection through which this process shares memory; None if there is no broker. Starts one if none runs.

    Blocks for some milliseconds where it connects, for 10 s at most where the broker does not answer. Why there is none is said once.
    """
    global _said
    found = client.known()
    if found is not None and not found.closed and not found.lost:
        return found
    try:
        client.forget_lost()
        found = client.current()
    except (Error, ValueError) as error:
        if _said != str(error):
            _said = str(error)
            logger.warning("arrays go through Ray's object store: %s", error)
        return None
    _said = ""
    return found


def reason() -> str:
    """Why `connection` gave none, as it found last."""
    return _said
