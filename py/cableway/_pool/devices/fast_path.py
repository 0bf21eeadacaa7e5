"""The GPU fast path: tasks whose arguments are only a few arrays of cableway, or arrays of PyTorch and CuPy that are lent as such
(`_transport.external_arrays`).

Such a task is a message as any other (`_transport.message`), with the flag ARRAYS_ONLY, and nothing is pickled for it. Its table names
the arrays, one entry for each argument, in their order. Its body has shape, dtype, strides, name and library of each, one pickle after
the other. Both ends remember: the parent what a message says of each array, the worker what a message means. Leases are not
remembered: a worker takes one for each task, and it ends with the task.

Invariant: what is remembered of an array is what a new encoding would say. An array's memory, layout and name never change as long as it
is open, and close() forgets them; a handle is valid as long as the connection over which it was made.
"""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cableway import client
from cableway._core import words
from cableway._core.byte_blocks import bytes_layout
from cableway._core.layouts import Layout
from cableway._core.leases import EvictableLease, FixedLease, Lease, lease_again, usable
from cableway._core.library import ffi, lib
from cableway._transport import external_arrays, table
from cableway._transport.message import APPLY, MAP
from cableway._transport.rebuilt_tensors import Maker, Rebuild, maker, rebuild
from cableway.array import Array, make

if TYPE_CHECKING:
    from cableway._pool.devices.devices import Devices
    from cableway._pool.worker.staging import Device

__all__ = ["ARRAYS_MAX", "FastPath", "Opener", "described_dtype", "read"]

ARRAYS_MAX = 8  # of one task; more go the other way
_KNOWN_MAX = 1024  # messages that a worker remembers
_FLAGS = table.HAS_ARRAY_ARGUMENTS | table.ARRAYS_ONLY

_open = lib.cw_array_open


class Described(NamedTuple):
    """What a message says of an array.

    Attributes:
        connection: over which it is held.
        gpu: where it lies, by this process's number.
        entry: its entry in the table, but for the group.
        look: how to see it, pickled.
    """

    connection: client.Connection
    gpu: int
    entry: bytes
    look: bytes


class Look(NamedTuple):
    """How to see an array.

    Attributes:
        rebuild: of which library it becomes one; None: of ours.
    """

    layout: Layout
    name: str | None
    rebuild: Rebuild | None

    def array(self, lease: Lease, offset: int) -> Any:
        """What the task gets."""
        made = make(lease, self.layout, offset, self.name)
        return made if self.rebuild is None else rebuild(made, self.rebuild)


def described_dtype(dtype: np.dtype[Any]) -> Any:
    """A dtype, or the text of one that needs no more: it is pickled and found again in a fraction of the time."""
    return dtype.str if dtype.isbuiltin == 1 else words.word(dtype) or dtype


def _describe(array: Array, how: Rebuild | None) -> Described | None:
    """What a message says of an array; None if it goes another way. It is remembered.

    Args:
        how: of which library the task is to get an array; None: of ours.
    """
    lease = array._lease
    if lease is None or isinstance(lease, (EvictableLease, FixedLease)) or lease.gpu < 0:
        return None
    connection = client.current()
    if lib.cw_array_client(usable(lease)) != connection.pointer:
        return None  # of another broker than the workers'
    layout = array._layout_now()
    flags = (
        table.ARRAY_ARGUMENT | table.ARRAY | table.IN | (table.READONLY if lease.readonly else 0)
    )
    entry = table.pack(array.handle(False), array._offset - layout.origin, layout.span, flags)
    look = (layout.shape, described_dtype(layout.dtype), layout.strides, array._name, how)
    described = Described(connection, lease.gpu, entry[: -table.WHERE_BYTES], pickle.dumps(look, 5))
    array._described = described
    return described


class FastPath:
    """Encodes such tasks, in the parent. Any thread.

    Args:
        devices: of the Pool.
        max_bytes: the longest message.
    """

    __slots__ = ("_groups", "_lender", "_max_bytes", "_wheres")

    def __init__(self, devices: Devices, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._groups = devices.by_gpu
        self._lender = devices.lender
        self._wheres = {gpu: table.pack_where(group) for gpu, group in self._groups.items()}

    def takes(self, argument: object) -> bool:
        """Whether a task that begins with it may be such a one."""
        kind = type(argument)
        return kind is Array or external_arrays.is_external(kind)

    def encode(
        self, number: int, kind: int, args: tuple[Any, ...]
    ) -> tuple[bytes, tuple[Array, ...], int] | None:
        """The message of a task, the arrays to hold until it has ended, and its group. None: it goes another way.

        Args:
            number: the task's.
            kind: how its function is called.
            args: what it is called with, as `Task` has it.

        Raises:
            BrokerLost: the broker is gone.
        """
        if kind == APPLY and len(args) == 1:
            args = args[0]
        elif kind != MAP:
            return None
        if not 0 < len(args) <= ARRAYS_MAX:
            return None
        for arg in args:  # before anything is lent: that may be a copy
            if not self.takes(arg):
                return None
        if len(args) > 1 and len({id(arg) for arg in args}) < len(args):
            return None  # one object twice is one object at the other end, too
        connection = client.current()
        parts, looks, held, nearest = [b""], [], [], -1
        for arg in args:
            array, how = arg, None
            if type(arg) is not Array:
                lent = self._lender.lend(arg)
                if lent is None:
                    return None
                array, how = lent
            if array._lease is None:
                return None
            held.append(array)
            described = array._described
            if described is None or described.connection is not connection:
                described = _describe(array, how)
            if described is None:
                return None
            group = self._groups.get(described.gpu, -1)
            if group < 0 or (group != nearest and nearest >= 0):
                return None  # where the task goes is to be found out
            nearest = group
            parts += (described.entry, self._wheres[described.gpu])
            looks.append(described.look)
        body = looks[0] if len(looks) == 1 else b"".join(looks)
        parts[0] = table.HEADER.pack(number, kind, _FLAGS, 0, len(args), 0, len(body))
        data = b"".join((*parts, body))
        return (data, tuple(held), nearest) if len(data) <= self._max_bytes else None


def read(data: Any) -> tuple[int, list[table.Entry], list[Look]]:
    """What such a message says: how to call the function, its entries, and how to see the array of each.

    Raises:
        ValueError, UnpicklingError: it cannot be.
    """
    call, entries, body = _apart(data)
    return call, entries, _looks(body, len(entries))


def _apart(data: Any) -> tuple[int, list[table.Entry], Any]:
    _, call, _, _, count, lead_bytes, body_bytes = table.HEADER.unpack_from(data)
    rest = data[table.HEADER.size :]
    _, body = table.split(rest, count, lead_bytes, body_bytes)
    return call, table.entries_in(rest, count), body


def _looks(body: Any, count: int) -> list[Look]:
    stream, looks = io.BytesIO(body), []
    for _ in range(count):
        shape, dtype, strides, name, how = pickle.load(stream)
        looks.append(Look(Layout(shape, words.dtype_of(dtype), strides), name, how))
    return looks


class _Known:
    """What a worker remembers of a message, whatever the task's number.

    Attributes:
        call: how to call the function.
        nbytes: bytes of its arrays.
        connection: over which to open them.
        here: of each, if all lie on the worker's GPU: handle, layout and flags for the library; and how to see it:
            its place there, the look, and who makes it quickly, if somebody does. None: one lies elsewhere.
    """

    __slots__ = ("call", "connection", "here", "nbytes")

    def __init__(self, call: int, nbytes: int, connection: client.Connection) -> None:
        self.call = call
        self.nbytes = nbytes
        self.connection = connection
        self.here: list[tuple[Any, Layout, int, int, Look, Maker | None]] | None = None


class Opener:
    """Opens the arrays of such tasks, in the worker's thread that runs tasks.

    Args:
        device: the worker's GPU.
    """

    __slots__ = ("_device", "_known", "_looks")

    def __init__(self, device: Device) -> None:
        self._device = device
        self._known: dict[bytes, _Known] = {}
        self._looks: dict[bytes, list[tuple[Look, Maker | None]]] = {}  # by messages' bodies

    def open(self, data: Any) -> tuple[int, list[Any], int] | None:
        """How to call a task's function, its arrays, and their bytes; None: one of them lies elsewhere.

        Raises:
            Stale: one of them is gone.
            ValueError, UnpicklingError: the message cannot be.
        """
        key = bytes(data[table.NUMBER_BYTES :])
        known = self._known.get(key)
        connection = client.current()
        if known is None or known.connection is not connection:
            known = self._learn(key, data, connection)
        if known.here is None:
            return None
        found, pointer = [], connection.pointer
        for handle, raw, flags, offset, look, quick in known.here:
            lease = lease_again(Lease, _open, pointer, handle, raw.c, flags)
            made = None if quick is None else quick.make(lease, offset)
            found.append(look.array(lease, offset) if made is None else made)
        return known.call, found, known.nbytes

    def _learn(self, key: bytes, data: Any, connection: client.Connection) -> _Known:
        """Reads a message. Where its arrays lie is found by opening them: a handle never comes to mean other memory."""
        call, entries, body = _apart(data)
        looks = self._looks_in(bytes(body), len(entries))
        known = _Known(call, sum(entry.nbytes for entry in entries), connection)
        here = []
        for entry, (look, quick) in zip(entries, looks, strict=True):
            if entry.where != self._device.group or self._device.here(entry) is None:
                break
            handle = ffi.new("cw_handle *")
            ffi.buffer(handle)[:] = entry.handle
            if handle.instance != connection.instance:
                break  # the broker was lost, and one side knows it already
            flags = lib.CW_READONLY if entry.flags & table.READONLY else 0
            raw = bytes_layout(handle.size_bytes)
            offset = entry.offset + look.layout.origin
            here.append((handle, raw, flags, offset, look, None if flags else quick))
        else:
            known.here = here
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[key] = known
        return known

    def _looks_in(self, body: bytes, count: int) -> list[tuple[Look, Maker | None]]:
        """How to see the arrays of a message, which arrays of the same form have in common; remembered."""
        found = self._looks.get(body)
        if found is None:
            gpu = self._device.number
            found = [(look, maker(look.layout, look.rebuild, gpu)) for look in _looks(body, count)]
            if len(self._looks) >= _KNOWN_MAX:
                self._looks.clear()
            self._looks[body] = found
        return found
