"""Messages of a Pool between parent and workers, and how objects become bytes and come back.

A message is a header, a table of the memory that goes with it (`_transport.table`), a *lead* (a task's function, or a failure's
traceback) and a body, which is a pickle. Large buffers lie in blocks: those of NumPy arrays by a reduction of our own (one copy for
any order of axes, and writable at the other end, as in the standard library), all others by pickle protocol 5. A message that is too
long for the ring goes into one more block as a whole. Small and plain tasks and answers need no message: only their pickle is sent
(py/csrc/dispatch.h).

If standard pickle refuses a task, and always in a notebook, cloudpickle is used (_transport.by_value). If it refuses a result, it is
tried once more with the classes of `__main__` by their names; if that fails, the result is a MaybeEncodingError, as in the standard
library. A cableway.Array travels as a handle. Arrays that several tasks of a call have in common go into one block for all of them, see
`_transport.shared_arguments`. `_pool.task_arrays` puts arrays for the worker's GPU into a message, and `_pool.worker.task_arrays`
takes them out.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np

from cableway import _dispatch
from cableway._core.leases import opened
from cableway._core.library import ffi, lib
from cableway._dispatch import Answer, LeaseCell
from cableway._transport import external_arrays, table
from cableway._transport.blocks import (
    HEADER_BYTES,
    THRESHOLD_BYTES,
    Block,
    BlockStore,
    buffer_of,
    open_into,
)
from cableway._transport.main_module import Main
from cableway._transport.shared_arguments import Shared
from cableway._transport.table import (
    ARRAY,
    ARRAY_ARGUMENT,
    HEADER,
    IN,
    IN_BLOCK,
    OUT,
    PRIVATE,
    Entry,
    entries_in,
)
from cableway._transport.table import BY_PICKLE as _BY_PICKLE
from cableway.array import Array
from cableway.client import current
from cableway.constant import Constant

__all__ = [
    "ANSWER_MESSAGE", "ANSWER_NONE", "ANSWER_VALUE", "APPLY", "MAP", "MESSAGE", "STARMAP",
    "EncodedMessage", "Encoder", "Message", "fill", "loads", "part", "plain_loads", "read",
]  # fmt: skip

if TYPE_CHECKING:
    from cableway._pool.write_back import WriteBack

# How a task calls its function, and what it is: a plain pickle, or a message that says how. As in csrc/dispatch.h.
APPLY, MAP, STARMAP, MESSAGE = range(1, 5)
# What an answer is.
ANSWER_NONE, ANSWER_VALUE, ANSWER_MESSAGE = range(1, 4)
plain_loads = _dispatch.plain_loads

_SCALARS = (
    np.float64, np.int64, np.bool_, np.float32, np.int32, np.uint8, np.uint32, np.uint64, np.int8, np.int16,
    np.uint16, np.float16, np.complex64, np.complex128, np.str_, np.bytes_,
)  # fmt: skip
_dispatch.set_numpy(np.ndarray, _SCALARS)

_REFUSALS = (pickle.PicklingError, AttributeError, TypeError)


class EncodedMessage:
    """An encoded message and what must be held until the other side has opened it.

    Attributes:
        write_backs: where results go that come back in its blocks; of a task's message.
    """

    __slots__ = ("blocks", "data", "held", "write_backs")

    def __init__(
        self, data: bytes, blocks: list[Block], held: list[Any], write_backs: list[WriteBack]
    ) -> None:
        self.data = data
        self.blocks = blocks
        self.held = held
        self.write_backs = write_backs


class _Pickler(pickle.Pickler):
    pass


class Encoder:
    """Turns objects into messages. One thread at a time uses it, and not from within itself.

    Args:
        store: where blocks come from.
        max_bytes: the longest message that the ring takes.
        main: the notebook's `__main__`, of the parent; None where there is none.
        transit: False: what the encoded message holds keeps its arrays until they are opened; True: the broker does.
        lender: of GPU arrays of other libraries, which go as ours do; None: they do not.
    """

    _threshold = THRESHOLD_BYTES  # larger buffers go in blocks

    def __init__(
        self,
        store: BlockStore,
        max_bytes: int,
        transit: bool,
        main: Main | None = None,
        lender: external_arrays.Lender | None = None,
    ) -> None:
        self._lender = lender
        self._store = store
        self._max_bytes = max_bytes
        self._transit = transit
        self._main = main
        self._pickler: Any = _Pickler
        self._table: dict[Any, Callable[[Any], Any]] = {}
        self._table_of: Any = None
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
    ) -> EncodedMessage:
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
        self._write_backs: list[WriteBack] = []
        self._flags = 0  # of the header

    def _undo(self) -> None:
        """Takes back what an attempt that failed has put into blocks or begun at the broker."""
        blocks, arrays, write_backs = self._blocks, self._arrays, self._write_backs
        self._begin()
        for write_back in write_backs:
            write_back.end()
        self._store.untake(blocks)
        if self._transit:
            for _array, handle in arrays:
                carried = ffi.new("cw_handle *")
                ffi.buffer(carried)[:] = handle
                lib.cw_handle_discard(current().pointer, carried)

    def _reductions(self) -> dict[Any, Callable[[Any], Any]]:
        known: dict[Any, Any] = copyreg.dispatch_table
        extra: dict[Any, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
        external = external_arrays.kinds() if self._lender is not None else []
        now = (len(known), len(extra), external, external_arrays.changes())
        if self._table_of != now:
            others = {**known, **extra}
            if external:
                others.update(self._foreign_reductions(others))
            self._table = {**others, **self._own_reductions()}
            self._table_of = now
        return self._table

    def _foreign_reductions(self, known: dict[Any, Any]) -> dict[type, Any]:
        assert self._lender is not None
        return external_arrays.reductions(known, self._lender)

    def _own_reductions(self) -> dict[Any, Any]:
        return {
            np.ndarray: self._reduce_ndarray,
            Array: self._reduce_array,
            Constant: self._reduce_constant,
        }

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
        from cableway._transport import by_value

        out = io.BytesIO()
        by_value.Pickler(out, self._reductions(), self._main, self._put_buffer).dump(body)
        return out.getvalue()

    def _dump_return(self, body: Any) -> bytes:
        from cableway._transport import by_value

        pickled = self._dump(body, by_value.ReturnPickler)
        self._pickler = by_value.ReturnPickler  # there will be more
        return pickled

    def _put(self, values: np.ndarray[Any, Any], flags: int) -> int:
        """Brings values into a block: its number in the message."""
        block = None if self._shared is None else self._shared.block_of(values, fill)
        if block is not None:
            flags |= PRIVATE
        else:
            block = self._take(values.nbytes)
            fill(block, values)
        return self._enter(block, values.nbytes, flags)

    def _take(self, nbytes: int) -> Block:
        """A block that goes with this message alone."""
        block = self._store.take(nbytes)
        self._blocks.append(block)
        return block

    def _enter(self, block: Block, nbytes: int, flags: int) -> int:
        """Puts a block into the table: its number there."""
        self._entries.append(table.pack(block.handle, HEADER_BYTES, nbytes, flags))
        return len(self._entries) - 1

    def _put_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:
            return True
        if raw.nbytes < self._threshold:
            return True
        self._put(np.frombuffer(raw, "u1"), _BY_PICKLE)
        return False

    def _reduce_ndarray(self, values: np.ndarray[Any, Any]) -> Any:
        if values.nbytes < self._threshold or values.dtype.hasobject:
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
        return reduced

    def _reduce_constant(self, constant: Constant[Any]) -> Any:
        reduced = constant.reduce(self._transit)
        self._arrays.append((constant, reduced[1][1][0]))
        return reduced

    # ---- the message

    def _finish(self, task: int, call: int, lead: bytes, pickled: bytes) -> EncodedMessage:
        count, rest = len(self._entries), b"".join(self._entries)
        length = HEADER.size + len(rest) + len(lead) + len(pickled)
        lengths = (count, len(lead), len(pickled))
        if length <= self._max_bytes:
            data = b"".join(
                (HEADER.pack(task, call, self._flags, 0, *lengths), rest, lead, pickled)
            )
        else:
            nbytes = length - HEADER.size
            block = self._take(nbytes)
            memory, at = memoryview(block.memory(nbytes)), 0
            for part in (rest, lead, pickled):
                memory[at : at + len(part)] = part
                at += len(part)
            header = HEADER.pack(task, call, self._flags | IN_BLOCK, 0, *lengths)
            data = header + table.pack(block.handle, HEADER_BYTES, nbytes, 0)
        held = [] if self._transit else [array for array, _ in self._arrays]
        encoded = EncodedMessage(data, self._blocks, held, self._write_backs)
        for block in encoded.blocks:
            block.lend()
        self._begin()
        return encoded


def fill(block: Block, values: np.ndarray[Any, Any]) -> None:
    """Copies values into a block, in Fortran order if they lie so, else in C order."""
    if values.flags.c_contiguous:
        block.write(values.reshape(-1))
    elif values.flags.f_contiguous:
        block.write(values.T.reshape(-1))
    else:
        memory = block.memory(values.nbytes)
        np.copyto(np.ndarray(values.shape, values.dtype, memory), values)


class Message:
    """A message as it was received. Once it is open, its lead and body are valid until the next one comes.

    Its blocks are opened into cells that C fills, so that `open` may be called again, also by another thread, when a
    signal's handler has interrupted it: nothing is opened twice, nothing let go of.

    Args:
        data: bytes, or an Answer, whose worker stays until the message is open or closed.
    """

    __slots__ = (
        "_answer", "_cells", "_count", "_flags", "_lengths", "_rest", "_whole",
        "back_bytes", "block_bytes", "body", "buffers", "by_pickle", "call", "is_open", "lead", "opened", "task",
    )  # fmt: skip

    def __init__(self, data: Any) -> None:
        self._answer = data if type(data) is Answer else None
        raw = data if self._answer is None else data.data
        self.task, self.call, self._flags, _, self._count, *self._lengths = HEADER.unpack_from(raw)
        self._rest = raw[HEADER.size :]
        self._whole: Any = None
        self._cells: list[Any] | None = None
        self.lead: Any = b""
        self.body: Any = b""
        self.buffers: list[Any] = []
        self.by_pickle: list[Any] = []
        self.block_bytes = 0
        self.back_bytes = 0
        self.is_open = False
        self.opened: list[tuple[bytes, Any]] | None = []  # what its handles are opened into

    def open(self, given: Callable[[int, Entry], Any] | None = None) -> Exception | None:
        """Opens what is not open yet.

        Args:
            given: opens what becomes an array on the worker's device; only tasks have such.

        Returns:
            Why it cannot be opened; what is raised is a handler's, or comes of `given`.
        """
        rest: Any = self._rest
        if self._flags & IN_BLOCK:
            (whole,) = entries_in(rest, 1)
            if self._whole is None:
                self._whole = LeaseCell()
            why_not = open_into(self._whole, whole.handle, whole.nbytes)
            if why_not is not None:
                return why_not
            rest = memoryview(buffer_of(self._whole, whole.nbytes))
        lead, body = table.split(rest, self._count, *self._lengths)
        buffers: list[Any] = []
        by_pickle: list[Any] = []
        block_bytes = back_bytes = 0
        if self._count:
            entries = entries_in(rest, self._count)
            if self._cells is None:
                self._cells = [LeaseCell() for _ in entries]
            for number, (cell, entry) in enumerate(zip(self._cells, entries, strict=True)):
                if (
                    entry.flags & (ARRAY_ARGUMENT | IN | OUT) != ARRAY_ARGUMENT | OUT
                ):  # else nothing is in it yet
                    block_bytes += entry.nbytes
                if entry.flags & (OUT | ARRAY) == OUT:
                    back_bytes += entry.nbytes
                if entry.flags & ARRAY_ARGUMENT:
                    if given is None:
                        return ValueError("a message has an entry that only a task can have")
                    buffers.append(given(number, entry))
                    continue
                why_not = open_into(
                    cell, entry.handle, entry.nbytes, private=bool(entry.flags & PRIVATE)
                )
                if why_not is not None:
                    return why_not
                buffers.append(buffer_of(cell, entry.nbytes))
                if entry.flags & _BY_PICKLE:
                    by_pickle.append(memoryview(buffers[-1]))
        self.lead, self.body = lead, body
        self.block_bytes, self.back_bytes = block_bytes, back_bytes
        self.buffers, self.by_pickle = buffers, by_pickle
        self.is_open = True
        if self._answer is not None:
            self._answer.release()
        return None

    def close(self) -> None:
        """Lets go of all that is open: who decodes it no more. What stands on it stays. May be repeated."""
        self._cells = self._whole = self.opened = None
        self.buffers, self.by_pickle = [], []
        if self._answer is not None:
            self._answer.release()


def read(data: Any, given: Callable[[int, Entry], Any] | None = None) -> Message:
    """Takes a task's message apart and opens its blocks; see `Message.open`.

    Raises:
        Stale: its sender died, and blocks went with it.
        ValueError: the message cannot be.
    """
    message = Message(data)
    why_not = message.open(given)
    if why_not is not None:
        raise why_not
    message._cells = message.opened = (
        None  # its buffers keep what they need, and a task's go before it ends
    )
    return message


class _Unpickling(threading.local):
    buffers: list[Any] | None = None


_unpickling = _Unpickling()


def loads(message: Message) -> Any:
    """The object in a message's body. May raise whatever unpickling raises. Of an answer it may be called again as long as
    the message is not closed: what its handles name stays open.
    """
    if message.opened is None:
        return _loads(message)
    before = opened.by, opened.count
    opened.by, opened.count = message, 0
    try:
        return _loads(message)
    finally:
        opened.by, opened.count = before


def _loads(message: Message) -> Any:
    if not message.buffers:
        return pickle.loads(message.body)
    before, _unpickling.buffers = _unpickling.buffers, message.buffers
    try:
        return pickle.loads(message.body, buffers=message.by_pickle)
    finally:
        _unpickling.buffers = before


def part(number: int) -> Any:
    """What is open of the message that is being unpickled in this thread.

    Raises:
        UnpicklingError: none is.
    """
    buffers = _unpickling.buffers
    if buffers is None:
        raise pickle.UnpicklingError("a part of a Pool's message was taken out of it")
    return buffers[number]


def _array_from_block(
    number: int, shape: tuple[int, ...], dtype: np.dtype[Any], order: Any
) -> np.ndarray[Any, Any]:
    made: np.ndarray[Any, Any] = np.ndarray(shape, dtype, part(number), order=order)
    return made
