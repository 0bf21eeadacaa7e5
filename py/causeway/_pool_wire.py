"""Messages of a Pool: what parent and workers say to each other, and how objects become bytes and come back.

A message is a header, descriptors of the blocks that go with it, a *lead* (the function of a task, the traceback
of a failure) and a body, which is a pickle. Large buffers lie in blocks: those of NumPy arrays by a reduction
of our own (any order of axes in one copy, and writable at the other end, as the standard library has it),
those of all else by pickle protocol 5. What is too long for the ring goes into one more block as a whole.

Small and plain tasks and answers go without one: their pickle is all there is (py/csrc/dispatch.h).

What standard pickle refuses in a task, and in a notebook all, is pickled by cloudpickle (_pool_by_value). A result that
it refuses is tried once more with the classes of `__main__` by their names, and else is a MaybeEncodingError, as in the
standard library. What causeway.Array needs travels as a handle. Arrays that several
tasks of a call have in common go into one block for all of them, see `_pool_shared`.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from causeway import _dispatch, _pool_own_gpu
from causeway._lib import ffi, lib
from causeway._pool_buffers import (
    HANDLE_BYTES,
    THRESHOLD_BYTES,
    Block,
    BlockStore,
    open_block,
    open_private,
)
from causeway._pool_main import Main
from causeway._pool_shared import Shared
from causeway.array import Array
from causeway.client import current
from causeway.constant import Constant

__all__ = [
    "ANSWER_MESSAGE", "ANSWER_NONE", "ANSWER_VALUE", "APPLY", "MAP", "MESSAGE", "STARMAP",
    "Encoder", "Message", "Parcel", "has_blocks", "loads", "plain_loads", "read",
]  # fmt: skip

# How a task calls its function, and what it is: a plain pickle, or a message that says how. As in csrc/dispatch.h.
APPLY, MAP, STARMAP, MESSAGE = range(1, 5)
# What an answer is.
ANSWER_NONE, ANSWER_VALUE, ANSWER_MESSAGE = range(1, 4)
plain_loads = pickle.loads

_SCALARS = (
    np.float64, np.int64, np.bool_, np.float32, np.int32, np.uint8, np.uint32, np.uint64, np.int8, np.int16,
    np.uint16, np.float16, np.complex64, np.complex128, np.str_, np.bytes_,
)  # fmt: skip
_dispatch.set_numpy(np.ndarray, _SCALARS)

_HEADER = struct.Struct(
    "<QBBHIIQ"
)  # task, call or success, flags, 0, blocks, lead bytes, body bytes
_BLOCK = struct.Struct(f"<{HANDLE_BYTES}sQII")  # handle, bytes, flags, 0
_IN_BLOCK = 1  # header: the rest of the message lies in the one block that follows
_BY_PICKLE = 1  # block: a buffer of pickle protocol 5, in the order of the stream
_PRIVATE = 2  # block: others get it too, so it is opened copy-on-write
_REFUSALS = (pickle.PicklingError, AttributeError, TypeError)


class Parcel:
    """An encoded message and what must be held until the other side has opened it."""

    __slots__ = ("blocks", "data", "held")

    def __init__(self, data: bytes, blocks: list[Block], held: list[Any]) -> None:
        self.data = data
        self.blocks = blocks
        self.held = held


class _Pickler(pickle.Pickler):
    pass


class Encoder:
    """Turns objects into messages. One thread at a time uses it, and not from within itself.

    Args:
        store: where blocks come from.
        max_bytes: the longest message that the ring takes.
        main: the notebook's `__main__`, of the parent; None where there is none.
        transit: False: what the parcel holds keeps its arrays until they are opened; True: the broker does.
        to_own_gpu: arrays on a GPU are on the worker's own one when its task gets them.
    """

    def __init__(
        self,
        store: BlockStore,
        max_bytes: int,
        transit: bool,
        main: Main | None = None,
        to_own_gpu: bool = False,
    ) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._transit = transit
        self._main = main
        self._to_own_gpu = to_own_gpu
        self._pickler: Any = _Pickler
        self._table: dict[Any, Callable[[Any], Any]] = {}
        self._table_of = (-1, -1)
        self._shared: Shared | None = None
        self._begin()

    def encode(
        self,
        task: int,
        call: int,
        lead: bytes,
        body: Any,
        *,
        cloud: bool = False,
        shared: Shared | None = None,
    ) -> Parcel:
        """A message with body pickled.

        Args:
            task: its number.
            call: how to call its function.
            lead: what goes before the body.
            body: any object.
            cloud: by cloudpickle where standard pickle refuses.
            shared: what body has in common with other messages. It is closed when all of them were opened.

        Raises:
            Whatever pickling raises. Nothing is held then.
        """
        self._shared = shared
        try:
            if cloud and self._main is not None:
                pickled = self._dump_by_value(body)
            else:
                pickled = self._dump_by_name(body, cloud)
            return self._finish(task, call, lead, pickled)
        except BaseException:
            self._undo()
            raise
        finally:
            self._shared = None

    # ---- pickling

    def _begin(self) -> None:
        self._blocks: list[Block] = []
        self._entries: list[bytes] = []
        self._arrays: list[tuple[Any, bytes]] = []  # or constants, and their handles

    def _undo(self) -> None:
        """Takes back what an attempt that failed has put into blocks or begun at the broker."""
        blocks, arrays = self._blocks, self._arrays
        self._begin()
        self._store.untake(blocks)
        if self._transit:
            for _array, handle in arrays:
                carried = ffi.new("cw_handle *")
                ffi.buffer(carried)[:] = handle
                lib.cw_handle_discard(current().pointer, carried)

    def _reductions(self) -> dict[Any, Callable[[Any], Any]]:
        known: dict[Any, Any] = copyreg.dispatch_table
        extra: dict[Any, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
        if self._table_of != (len(known), len(extra)):
            own: dict[Any, Any] = {
                np.ndarray: self._reduce_ndarray,
                Array: self._reduce_array,
                Constant: self._reduce_constant,
            }
            self._table = {**known, **extra, **own}
            self._table_of = (len(known), len(extra))
        return self._table

    def _dump(self, body: Any, kind: Any) -> bytes:
        out = io.BytesIO()
        pickler = kind(out, protocol=5, buffer_callback=self._put_buffer)
        pickler.dispatch_table = self._reductions()
        pickler.dump(body)
        return out.getvalue()

    def _dump_by_name(self, body: Any, cloud: bool) -> bytes:
        """By standard pickle; what that refuses by another one, and its refusal is what is told."""
        try:
            return self._dump(body, self._pickler)
        except _REFUSALS as refusal:
            self._undo()
            try:
                return self._dump_by_value(body) if cloud else self._dump_return(body)
            except _REFUSALS:
                raise refusal from None

    def _dump_by_value(self, body: Any) -> bytes:
        from causeway import _pool_by_value

        out = io.BytesIO()
        _pool_by_value.Pickler(out, self._reductions(), self._main, self._put_buffer).dump(body)
        return out.getvalue()

    def _dump_return(self, body: Any) -> bytes:
        from causeway import _pool_by_value

        pickled = self._dump(body, _pool_by_value.ReturnPickler)
        self._pickler = _pool_by_value.ReturnPickler  # there will be more
        return pickled

    def _put(self, values: np.ndarray[Any, Any], flags: int) -> int:
        """Brings values into a block: its number in the message."""
        block = None if self._shared is None else self._shared.block_of(values, _fill)
        if block is not None:
            flags |= _PRIVATE
        else:
            block = self._store.take(values.nbytes)
            self._blocks.append(block)
            _fill(block, values)
        self._entries.append(_BLOCK.pack(block.handle, values.nbytes, flags, 0))
        return len(self._entries) - 1

    def _put_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:
            return True
        if raw.nbytes < THRESHOLD_BYTES:
            return True
        self._put(np.frombuffer(raw, "u1"), _BY_PICKLE)
        return False

    def _reduce_ndarray(self, values: np.ndarray[Any, Any]) -> Any:
        if values.nbytes < THRESHOLD_BYTES or values.dtype.hasobject:
            return values.__reduce__()
        in_fortran_order = values.flags.f_contiguous and not values.flags.c_contiguous
        number = self._put(values, 0)
        return _array_from_block, (
            number,
            values.shape,
            values.dtype,
            "F" if in_fortran_order else "C",
        )

    def _reduce_array(self, array: Array) -> Any:
        reduced = array.reduce(self._transit)
        self._arrays.append((array, reduced[1][0]))
        if self._to_own_gpu and array._on_gpu():
            return _pool_own_gpu.arrived, reduced[1]
        return reduced

    def _reduce_constant(self, constant: Constant[Any]) -> Any:
        reduced = constant.reduce(self._transit)
        self._arrays.append((constant, reduced[1][1][0]))
        return reduced

    # ---- the message

    def _finish(self, task: int, call: int, lead: bytes, pickled: bytes) -> Parcel:
        count, rest = len(self._entries), b"".join(self._entries)
        length = _HEADER.size + len(rest) + len(lead) + len(pickled)
        if length <= self._max_bytes:
            header = _HEADER.pack(task, call, 0, 0, count, len(lead), len(pickled))
            data = b"".join((header, rest, lead, pickled))
        else:
            nbytes = length - _HEADER.size
            block = self._store.take(nbytes)
            self._blocks.append(block)
            memory, at = memoryview(block.memory(nbytes)), 0
            for part in (rest, lead, pickled):
                memory[at : at + len(part)] = part
                at += len(part)
            header = _HEADER.pack(task, call, _IN_BLOCK, 0, count, len(lead), len(pickled))
            data = header + _BLOCK.pack(block.handle, nbytes, 0, 0)
        parcel = Parcel(
            data, self._blocks, [] if self._transit else [array for array, _ in self._arrays]
        )
        for block in parcel.blocks:
            block.lend()
        self._begin()
        return parcel


def _fill(block: Block, values: np.ndarray[Any, Any]) -> None:
    """Copies values into a block, in Fortran order if they lie so, else in C order."""
    memory = block.memory(values.nbytes)
    if values.flags.c_contiguous:
        source = values.reshape(-1)
    elif values.flags.f_contiguous:
        source = values.T.reshape(-1)
    else:
        np.copyto(np.ndarray(values.shape, values.dtype, memory), values)
        return
    np.copyto(np.frombuffer(memory, "u1"), source.view("u1"))


class Message:
    """A message as it was received. Its blocks are open; its lead and body are valid until the next one comes."""

    __slots__ = ("block_bytes", "body", "buffers", "by_pickle", "call", "lead", "task")

    def __init__(self, task: int, call: int, lead: Any, body: Any) -> None:
        self.task = task
        self.call = call
        self.lead = lead
        self.body = body
        self.buffers: list[Any] = []
        self.by_pickle: list[Any] = []
        self.block_bytes = 0


def read(data: Any) -> Message:
    """Takes a message apart and opens its blocks.

    Raises:
        Stale: its sender died, and blocks went with it.
        ValueError: the message cannot be.
    """
    task, call, flags, _, count, lead_bytes, body_bytes = _HEADER.unpack_from(data)
    rest = data[_HEADER.size :]
    if flags & _IN_BLOCK:
        handle, nbytes, _, _ = _BLOCK.unpack_from(rest)
        rest = memoryview(open_block(handle, nbytes))
    begin = count * _BLOCK.size
    if begin + lead_bytes + body_bytes != len(rest):
        raise ValueError(
            f"a message of {len(rest)} bytes says that it has {begin + lead_bytes + body_bytes}"
        )
    body = rest[begin + lead_bytes :]
    message = Message(task, call, rest[begin : begin + lead_bytes], body)
    for i in range(count):
        handle, nbytes, block_flags, _ = _BLOCK.unpack_from(rest, i * _BLOCK.size)
        buffer = (open_private if block_flags & _PRIVATE else open_block)(handle, nbytes)
        message.buffers.append(buffer)
        message.block_bytes += nbytes
        if block_flags & _BY_PICKLE:
            message.by_pickle.append(memoryview(buffer))
    return message


def has_blocks(data: Any) -> bool:
    """Whether memory beside it goes with a message."""
    _, _, flags, _, count, *_ = _HEADER.unpack_from(data)
    return bool(count or flags & _IN_BLOCK)


class _Incoming(threading.local):
    buffers: list[Any] | None = None


_incoming = _Incoming()


def loads(message: Message) -> Any:
    """The object in a message's body. May raise whatever unpickling raises."""
    if not message.buffers:
        return pickle.loads(message.body)
    before, _incoming.buffers = _incoming.buffers, message.buffers
    try:
        return pickle.loads(message.body, buffers=message.by_pickle)
    finally:
        _incoming.buffers = before


def _array_from_block(
    number: int, shape: tuple[int, ...], dtype: np.dtype[Any], order: Any
) -> np.ndarray[Any, Any]:
    buffers = _incoming.buffers
    if buffers is None:
        raise pickle.UnpicklingError("a part of a Pool's message was taken out of it")
    made: np.ndarray[Any, Any] = np.ndarray(shape, dtype, buffers[number], order=order)
    return made
