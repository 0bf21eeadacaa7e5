"""Handles as bytes: an array, or a tree, for other processes of this node, by any transport.

A pickle is for Python alone, and loading one runs code. A handle is some 200 bytes of a fixed form with a version and a check, which
any program may carry: as a message, in a file, in base64 in a text. Reading one checks every field, and the block in the end.

The broker holds the array from `to_handle` until it was opened as often as was said, whoever dies meanwhile. After
`transit_seconds` (300) it does so no longer: a handle is for a message under way, not for a store. What should stay gets a name.

>>> import cableway as cw
>>> message = cw.to_handle(cw.asarray([1.0, 2.0]))  # here nobody has the array any more
>>> cw.from_handle(message).numpy()                 # in any other process
array([1., 2.])
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable
from typing import Any

from cableway import array as arrays
from cableway import client, create, tree
from cableway._array import pickles
from cableway._core.leases import Lease, lease_again, usable
from cableway._core.library import check, check_again, ffi, lib
from cableway._tree.swapping import new_cell
from cableway.array import Array
from cableway.errors import BrokerLost, Error, LimitExceeded, Stale

__all__ = ["from_handle", "to_handle"]


def to_handle(a: Any, openers: int = 1) -> bytes:
    """Bytes by which other processes of this user on this node open the array, or the tree: they see the same memory.

    The broker holds the array for them, so you may let go of it at once. It does so until the handle was opened `openers` times, by
    whomever: a process that opens it twice counts twice. An opener that dies before it opens is waited for until `transit_seconds`
    (300) after this call, and so is one that never comes; set it where the broker is started (`CABLEWAY_TRANSIT_SECONDS`). Later, or
    by one more, it can be opened only as long as some process holds the array.

    Args:
        a: an `Array`, on any device, or a view of one; of a part, only that part is named. If it is read-only, it is opened
            read-only. Or a `Tree`: the version that it is.
        openers: how often it will be opened, 1 to 65,536.

    Returns:
        bytes: 104 to 8,192.

    Raises:
        ValueError: not 1 to 65,536 openers.
        TypeError: a has no memory of cableway: nothing would hold the copy if nobody opened it, so copy it with `asarray`.
        LimitExceeded: more handles under way than `max_client_transits` (65,536).
        BrokerLost: the broker is gone.

    >>> import cableway as cw
    >>> w = cw.zeros(3)
    >>> message = cw.to_handle(w, openers=2)
    >>> cw.from_handle(message)[0] = 5
    >>> float(cw.from_handle(message)[0]), float(w[0])
    (5.0, 5.0)
    """
    if not isinstance(openers, int) or isinstance(openers, bool):
        raise TypeError(f"openers is a number, not {type(openers).__name__}")
    if not 1 <= openers <= lib.CW_OPENERS_MAX:
        raise ValueError(
            f"a handle for {openers} openers was asked for; it can be for 1 to {lib.CW_OPENERS_MAX}"
        )
    out, size = ffi.new("uint8_t[]", lib.CW_HANDLE_BYTES_MAX), ffi.new("uint64_t *")
    make = lib.cw_tree_to_handle
    place: tuple[Any, ...] = openers, out, size
    if isinstance(a, tree.Tree):
        pointer: Callable[[], Any] = a._pointer
    else:
        found = _shared(a)
        layout, lease = found._layout_now(), found._open_lease()
        flags = lib.CW_READONLY if lease.readonly else 0
        make, pointer = lib.cw_to_handle, functools.partial(usable, lease)
        place = openers, flags, layout.c, found._offset, out, size
    while True:
        try:
            check_again(make, pointer(), *place)
            return bytes(ffi.buffer(out, size[0]))
        except LimitExceeded:
            if not pickles.make_room():
                raise
        except BaseException:  # of a signal's handler, when it was made
            info = ffi.new("cw_handle_info *")
            if size[0] and lib.cw_handle_describe(out, size[0], info) == 0:
                connection = client.known()
                if connection is not None and not connection.closed:
                    lib.cw_handle_discard(connection.pointer, ffi.addressof(info, "handle"))
            raise


def _shared(a: Any) -> Array:
    if isinstance(a, Array):
        return a
    try:
        return create.asarray(a, copy=False)
    except (ValueError, TypeError) as error:
        raise TypeError(
            f"to_handle() takes a cableway.Array or a view of one, not {type(a).__name__}: "
            "copy it first, cw.asarray(x)"
        ) from error


def from_handle(handle: bytes | bytearray | memoryview) -> Any:
    """Opens a handle that `to_handle` made in any process of this user on this node.

    Returns:
        Array: of the maker's dtype, shape and strides, on the memory of the maker: what one writes the other sees. Or a Tree.

    Raises:
        Stale: the array or tree is gone: it was opened by as many as it was made for, or `transit_seconds` ran out, or the broker
            was started again since.
        BrokerLost: no broker runs where the handle says.
        Error: the bytes are no handle, or were damaged; the handle is of another node, or of a broker in a folder that is not
            this user's own.

    >>> import cableway as cw
    >>> cw.from_handle(b"something else")
    Traceback (most recent call last):
        ...
    cableway.errors.Error: these 14 bytes are no handle of cableway, which has 104 to 8192
    """
    data = bytes(memoryview(handle))  # a number is no handle
    info = ffi.new("cw_handle_info *")
    check(lib.cw_handle_describe(data, len(data), info))
    connection = _connection(info)
    if info.tree_version:
        cell = new_cell()
        check_again(lib.cw_tree_from_handle, connection.pointer, data, len(data), cell)
        return tree.make(cell, None)
    lease = lease_again(Lease, lib.cw_from_handle, connection.pointer, data, len(data), 0)
    return arrays.make(lease, None)


def _connection(info: Any) -> client.Connection:
    """To the broker that the handle is of. cw_connect() refuses a folder that is not this user's own."""
    node, address = _text(info.node), _text(info.address)
    if node and node != socket.gethostname():
        raise Error(
            f"this handle is of node {node!r} (namespace {_text(info.name_space)!r}), this process runs on "
            f"{socket.gethostname()!r}: a handle does not leave its node; give the array a name and get it as //{node}/NAME"
        )
    try:
        return client.for_instance(info.handle.instance, address)
    except BrokerLost as error:
        raise Stale(
            f"no broker runs at {address} any more, whose handle this is (namespace {_text(info.name_space)!r}): its arrays went with it; "
            "make a new handle"
        ) from error


def _text(raw: Any) -> str:
    return os.fsdecode(ffi.string(raw))
