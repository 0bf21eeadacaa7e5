"""What an operation of a group is given on a GPU: arrays of cableway, and of other libraries by their interfaces.

An array of another library whose memory is ours is used where it is. Else a copy of it on its GPU is, and what is received is
copied into it at the end. What its library had begun on it comes first, and all is done when the operation returns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cableway import create
from cableway._core import leases
from cableway._core.layouts import Layout
from cableway._core.library import check_again, ffi, lib
from cableway._cuda import interop, stream_order
from cableway._group import elements
from cableway._group.elements import Elements
from cableway.array import Array

__all__ = ["apart", "finish", "host_room", "host_values", "like", "put_values", "receive", "send"]


class OnGpu(Elements):
    """Contiguous elements in memory of a GPU; as `Elements`, and:

    Attributes:
        mine: the array of cableway that they lie in; a thread may close it.
        lease: what keeps the memory.
        told: what another library says of its own memory, of which `mine` is a copy; None: it is none.
    """

    __slots__ = ("lease", "mine", "told")

    def __init__(self, mine: Array, told: interop.ExternalArray | None, owner: Any) -> None:
        lease, layout = mine._open_lease(), mine._layout_now()
        if isinstance(lease, leases.EvictableLease):
            lease.lend()  # its address is given out: it stays
        low, _ = lease.span()
        self.mine, self.lease, self.owner = mine, lease, owner
        self.size, self.dtype, self.text = layout.size, layout.dtype, elements.text_of(layout.dtype)
        self.address = low + mine._offset if layout.size else 0
        self.array = int(ffi.cast("uintptr_t", leases.usable(lease)))
        self.told = None if told is None or told.address == self.address else told


def _check(layout: Layout, name: str) -> None:
    if not layout.is_contiguous("C"):
        raise ValueError(
            f"{name}: the elements of an operation are contiguous, and these have strides {layout.strides} for shape "
            f"{layout.shape}: pass a contiguous copy of them"
        )


def _found(what: Any, name: str, receives: bool) -> OnGpu | None:
    """None: it is no array on a GPU."""
    if isinstance(what, Array):
        if what.device == "cpu":
            return None
        lease = what._open_lease()
        if stream_order.begun(lease) is not None:
            raise ValueError(
                f"{name}: the operation would wait for the `with` of reading() or writing() that is open on this array: call it "
                "behind that"
            )
        _check(what._layout_now(), name)
        mine, told, readonly = what, None, lease.readonly
    elif isinstance(what, (np.ndarray, np.generic)) or not interop.lies_on_gpu(what):
        return None
    else:
        told = interop.external_array(what)
        assert told is not None
        _check(told.layout, name)
        mine, readonly = create.asarray(what), told.readonly
    if receives and readonly:
        raise ValueError(f"{name} is read-only: it cannot be received into")
    return OnGpu(mine, told, what)


def send(what: Any, name: str = "send") -> Elements:
    """The elements of what is sent, wherever they lie: as `elements.send`.

    Raises:
        ValueError: a `with` of its own is open on it.
    """
    return _found(what, name, False) or elements.send(what, name)


def receive(what: Any, name: str = "out") -> Elements:
    """The same of what is received into: as `elements.receive`."""
    return _found(what, name, True) or elements.receive(what, name)


def finish(got: Elements | None) -> None:
    """What was received comes to where it was asked for."""
    if not isinstance(got, OnGpu) or got.told is None or not got.size:
        return
    lease = got.mine._open_lease()
    check_again(
        lib.cw_array_copy_out,
        leases.usable(lease),
        got.mine._offset,
        ffi.cast("void *", got.told.address),
        got.told.gpu,
        got.size * got.dtype.itemsize,
        ffi.NULL,
    )


def apart(sent: Elements) -> Elements:
    """The same elements in memory of their own."""
    if not isinstance(sent, OnGpu):
        return elements.apart(sent)
    copy = sent.mine.copy()
    return OnGpu(copy, None, copy)


def like(sent: Elements, shape: tuple[int, ...]) -> Any:
    """A new array to receive into, where what is sent lies."""
    if not isinstance(sent, OnGpu):
        return elements.like(sent, shape)
    return create.empty(shape, sent.dtype, device=sent.mine.device)


def host_values(sent: Elements) -> Elements:
    """The same elements in host memory."""
    if not isinstance(sent, OnGpu):
        return sent
    return elements.send(sent.mine.to("cpu"))


def host_room(got: Elements) -> Elements:
    """Host memory for as many elements; the same if they lie there."""
    if not isinstance(got, OnGpu):
        return got
    return elements.receive(create.empty(got.mine.shape, got.dtype))


def put_values(got: Elements, room: Elements) -> None:
    """What came to `host_room` comes to where it was asked for."""
    assert isinstance(got, OnGpu)
    got.mine.copy_from(room.owner[0])
    finish(got)
