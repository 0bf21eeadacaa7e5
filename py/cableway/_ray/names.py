"""Blocks by name, between nodes: a block goes from one node to another by their bridges, once a node.

Where a bridge runs, each block gets a name at its maker, `ray/` and a random number, tied to that process: so it ends with the object, or with
the process, however that ends. The owner of the reference (`metadata`), if it is on that node, gives the block a second name, tied
to itself: so the object outlives its maker for other nodes as well. A reader on another node fetches `//NODE/ray/NUMBER`; its node's bridge has one replica for all
readers there. The peers that may read `ray/*` may read all of it.

Invariant: a number means the same bytes on every node: a block with a name is not written again, except where it is an array in
memory of cableway that its owner writes to.

Deaths: the maker killed: its names go, and those of the owner are there; the owner killed: the reference ends. A bridge or broker killed: the fetch fails, and the reader asks the actor (`fetching`).
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import numpy as np

from cableway import client, name
from cableway._core.arguments import name_bytes
from cableway._core.leases import Lease, lease_again, usable
from cableway._core.library import check, exported, ffi, lib
from cableway._ray import blocks
from cableway._ray.blocks import Block
from cableway.errors import Error, NameNotFound

__all__ = ["fetched", "named", "put_again", "removed"]

_OWNER = ".owner"  # behind the maker's name
_RETRY_SECONDS = 5.0  # until it is asked again whether a bridge runs here

_node: tuple[int, str | None, float] = 0, None, 0.0  # of the run of the broker; when it was asked


def _own(connection: client.Connection) -> str | None:
    """By what name other nodes know this one; None: no bridge runs. Asks the bridge, and waits for it, every 5 s while there is none."""
    global _node
    instance, found, asked = _node
    if instance != connection.instance or (
        found is None and time.monotonic() >= asked + _RETRY_SECONDS
    ):
        found = connection.node
        _node = connection.instance, found, time.monotonic()
    return found


def named(connection: client.Connection, given: list[Block]) -> tuple[str, list[str]] | None:
    """Names for the blocks: this node's, and one for each. None: no bridge runs, or there is no room for them. Waits for the broker."""
    found: list[str] = []
    try:
        node = _own(connection)
        if node is None:
            return None
        for block in given:
            chosen = f"ray/{uuid.uuid4().hex}"
            flags = lib.CW_TIED | (lib.CW_SEAL if block.written_once else 0)
            pointer = usable(block.lease)
            check(lib.cw_array_put(pointer, name_bytes(chosen), flags, ffi.NULL, 0))
            found.append(chosen)
        return node, found
    except (Error, ValueError):
        removed(connection, found)
        return None


def put_again(leases: list[Lease], of_maker: list[str], done: list[str]) -> None:
    """Names for the same blocks by which they are found when their maker has died. Waits for the broker.

    Args:
        leases: this process's.
        done: the names that were given are put there.

    Raises:
        LimitExceeded: the broker has no room for a name more.
        BrokerLost: the broker is gone.
    """
    for lease, wanted in zip(leases, of_maker, strict=True):
        chosen = wanted + _OWNER
        check(lib.cw_array_put(lease.pointer, name_bytes(chosen), lib.CW_TIED, ffi.NULL, 0))
        done.append(chosen)


def removed(connection: client.Connection, gone: list[str]) -> None:
    """Takes the names back. Waits for the broker."""
    for each in gone:
        try:
            name.remove(each)
        except (Error, ValueError):
            pass  # it is gone already, or its broker is


def fetched(
    connection: client.Connection, names: tuple[str, list[str]] | None
) -> list[np.ndarray[Any, Any]]:
    """Private views of another node's blocks. Waits for their bytes.

    Raises:
        Error: they cannot be fetched.
    """
    if names is None:
        raise Error(
            "they lie on another node, or are of another run of the broker; no bridge leads there"
        )
    node, wanted = names
    found = []
    for each in wanted:
        try:
            lease = _got(connection, node, each)
        except NameNotFound:
            lease = _got(connection, node, each + _OWNER)
        found.append(blocks.view(connection, bytes(ffi.buffer(exported(lease.pointer, 0)))))
    return found


def _got(connection: client.Connection, node: str, wanted: str) -> Lease:
    there = name_bytes(f"//{node}/{wanted}")
    return lease_again(Lease, lib.cw_get, connection.pointer, there, lib.CW_READONLY)
