"""Blocks by name, between nodes: a large frame goes from one node to another by their bridges, once a node.

A block that is to be read on another node gets a name here, `dask/` and a random number, tied to this process: so it ends with the last
of the process's objects that stand on the block, or with the process, however that ends. A process of another node fetches
`//NODE/dask/NUMBER` by the bridge, and gives what has come the same name on its own node. So each node looks at home first, and whoever
has a block serves it on under the one name; of processes of a node that want it at once, one fetches and the others wait for it (a
claim, see `cw_claim`).

When the object goes, a thread of this process removes the name at once, not at some later look: until then the block stays on this node,
and its replica on each other one, so that the next array would find no free memory there, and need new pages.

Invariants: a number means the same bytes on every node, for a block is never written again. A name is tied to a process that holds the
block. Who fetches holds the claim of the name; who waited 10 s for it fetches as well, so that a process that stands holds nobody up.

Who may fetch: the peers whose `--read` patterns allow `dask/*`, no others. A process tells its node's name and a probe, `dask/at-NUMBER`
with the run of its broker in it; a reader that can fetch the probe knows that it reaches this very broker, in the same namespace, and
says so. Only then it is sent names. If a fetch fails it says otherwise for 30 s, and gets bytes.

Deaths: the maker killed: its names go, and who comes too late asks elsewhere. The one who fetches killed: its claim ends, the next one
fetches; what had come stays with the bridge. A bridge killed: the next one goes on. A broker killed: other runs, other numbers.
"""

from __future__ import annotations

import concurrent.futures
import errno
import logging
import os
import queue
import threading
import time
import uuid
from typing import NamedTuple

import distributed

from cableway import client, name
from cableway._core.arguments import name_bytes
from cableway._core.leases import Lease, lease_again
from cableway._core.library import check, exported, failure, ffi, lib
from cableway._dask import blocks
from cableway._dask.blocks import Block
from cableway.errors import Error, NameNotFound, NameTaken

__all__ = [
    "FETCHES",
    "Own",
    "distrust",
    "fetched",
    "known_reach",
    "named",
    "own",
    "pool",
    "prepare",
    "reaches",
]

logger = logging.getLogger("cableway.dask")

FETCHES = 8  # threads in which a process fetches
BYTES_SECONDS = 30.0  # for which a node sends bytes after a fetch from it failed
_CLAIM_SECONDS = 10.0  # for which another process of this node is waited for that fetches the same
_RETRY_SECONDS = 5.0  # until it is asked again whether a bridge runs here


class Own(NamedTuple):
    """How other nodes reach this process's blocks."""

    node: str
    probe: str


_lock = threading.Lock()
_own: tuple[int, Own, Block] | None = None  # of the run of the broker
_asked = -_RETRY_SECONDS  # when there was no bridge, last
_asking = threading.Lock()
_naming = threading.Lock()  # of two replies at once one names a block
_starting = threading.Lock()  # the thread that removes names
_remover: threading.Thread | None = None
_reach: dict[tuple[str, int], tuple[bool, float]] = {}  # by node and run: until when it holds
_probing = threading.Lock()
_pool: concurrent.futures.ThreadPoolExecutor | None = None


def _after_fork_in_child() -> None:
    global _lock, _asking, _naming, _starting, _probing, _pool, _own, _remover
    _lock, _asking, _naming, _starting, _probing = (threading.Lock() for _ in range(5))
    _pool = _own = _remover = None
    blocks.unwanted_names = queue.SimpleQueue()  # what is in the other one are the parent's names


os.register_at_fork(after_in_child=_after_fork_in_child)


def pool() -> concurrent.futures.ThreadPoolExecutor:
    """The threads that fetch."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = concurrent.futures.ThreadPoolExecutor(FETCHES, "cableway.dask fetch")
        return _pool


# ---- what others fetch from here


def own(connection: client.Connection) -> Own | None:
    """What this process tells others. None: no bridge runs, as far as is known. Never blocks: a thread asks, every 5 s."""
    found = _own
    if found is not None and found[0] == connection.instance:
        return found[1]
    if time.monotonic() >= _asked + _RETRY_SECONDS and _asking.acquire(blocking=False):
        threading.Thread(
            target=_ask, args=(connection,), name="cableway.dask node", daemon=True
        ).start()
    return None


def _ask(connection: client.Connection) -> None:
    try:
        prepare(connection)
    finally:
        _asking.release()


def prepare(connection: client.Connection) -> Own | None:
    """The same; asks the bridge, if one runs, and waits for its answer."""
    global _own, _asked
    with _lock:
        found = _own
        if found is not None and found[0] == connection.instance:
            return found[1]
        _asked = time.monotonic()
        try:
            node = connection.node
            if node is None:
                return None
            block = blocks.copied(connection, connection.instance.to_bytes(8, "little"))
            block.name = f"dask/at-{uuid.uuid4().hex}"
            _put(block)
        except (Error, ValueError) as error:
            logger.warning("other nodes get bytes: %s", error)
            return None
        _own = connection.instance, Own(node, block.name), block
        return _own[1]


def named(block: Block) -> str:
    """The name of a block, for other nodes. Waits for the broker.

    Raises:
        LimitExceeded: the broker has no room for a name more.
        BrokerLost: the broker is gone.
    """
    with _naming:
        if block.name is None:
            block.name = f"dask/{uuid.uuid4().hex}"
        if not block.has_name:
            _put(block)
        return block.name


def _put(block: Block) -> None:
    _start_remover()
    try:
        encoded = name_bytes(str(block.name))
        check(
            lib.cw_array_put(block.lease.pointer, encoded, lib.CW_TIED | lib.CW_SEAL, ffi.NULL, 0)
        )
        block.has_name = True
    except NameTaken:
        pass  # by another process of this node, which has the same bytes


def _start_remover() -> None:
    global _remover
    with _starting:
        if _remover is None or not _remover.is_alive():
            thread = threading.Thread(
                target=_remove_unwanted, name="cableway.dask names", daemon=True
            )
            thread.start()  # first: a signal's handler may raise here, and two of them do no harm
            _remover = thread


def _remove_unwanted() -> None:
    """Removes the names of blocks that this process holds no more, as soon as they are told. Waits for the broker, so nobody else does."""
    while True:
        instance, gone = blocks.unwanted_names.get()
        connection = client.known()
        if connection is None or connection.closed or connection.instance != instance:
            continue  # it went with its broker
        try:
            check(lib.cw_remove(connection.pointer, name_bytes(gone)))
        except (Error, ValueError):
            pass  # it is gone already, or its broker is


# ---- what is fetched from others


def known_reach(node: str, instance: int) -> bool | None:
    """Whether this process can fetch from there; None: not known."""
    found = _reach.get((node, instance))
    return None if found is None or time.monotonic() >= found[1] else found[0]


def reaches(node: str, probe: str, instance: int) -> bool:
    """The same; tries it, if it is not known, and waits for that: some milliseconds, 5 s where a node does not answer."""
    with _probing:
        known = known_reach(node, instance)
        if known is not None:
            return known
        try:
            with name.get(f"//{node}/{probe}", readonly=True) as found:
                told = bytes(found.numpy().tobytes())
            if told != instance.to_bytes(8, "little"):
                raise Error(f"the node {node} that is reached has another broker")
        except (Error, ValueError) as error:
            logger.info("node %s sends bytes: %s", node, error)
            _reach[node, instance] = False, time.monotonic() + BYTES_SECONDS
            return False
        _reach[node, instance] = True, float("inf")
        return True


def distrust(node: str, instance: int, error: Exception) -> None:
    """A fetch from there failed: it is to send bytes for 30 s."""
    logger.warning("node %s sends bytes for %d s: %s", node, BYTES_SECONDS, error)
    _reach[node, instance] = False, time.monotonic() + BYTES_SECONDS


def fetched(connection: client.Connection, node: str, wanted: str, nbytes: int) -> Block:
    """The block of that name, from this node if it is here, else from the other one. Waits for its bytes.

    Raises:
        NameNotFound: it is not there any more.
        RemoteError: the node cannot be reached, or refuses.
        LimitExceeded: no memory is left here.
        BrokerLost: the broker is gone.
        Error: it is not what the message says.
    """
    here = name_bytes(wanted)
    end = time.monotonic() + _CLAIM_SECONDS
    token = ffi.new("uint64_t *")
    while True:
        found = _here(connection, here)
        if found is not None:
            return _block(connection, found, wanted, nbytes)
        left = int(max(0.0, end - time.monotonic()) * 1e9)
        status = lib.cw_claim(connection.pointer, here, left, token)
        if status in (0, -errno.ETIMEDOUT):
            break
        if status not in (-errno.EAGAIN, -errno.EINTR):
            raise failure(status)
    try:
        there = name_bytes(f"//{node}/{wanted}")
        lease = lease_again(Lease, lib.cw_get, connection.pointer, there, lib.CW_READONLY)
        block = _block(connection, lease, wanted, nbytes)
        if distributed.Worker._instances:  # a client serves nobody
            _put(block)
        return block
    finally:
        if status == 0:
            lib.cw_claim_end(connection.pointer, here, token[0])


def _here(connection: client.Connection, wanted: bytes) -> Lease | None:
    try:
        return lease_again(Lease, lib.cw_get, connection.pointer, wanted, lib.CW_READONLY)
    except NameNotFound:
        return None


def _block(connection: client.Connection, lease: Lease, wanted: str, nbytes: int) -> Block:
    handle = bytes(ffi.buffer(exported(lease.pointer, 0)))
    block = blocks.opened(connection, handle, nbytes)
    block.name = wanted
    return block
