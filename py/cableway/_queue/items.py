"""Items of a queue: how an object becomes bytes and handles, and an object again at the other end.

An item is a pickle of at most 288 KiB (`cw_queue_max()`), and arrays, which go with it as handles:

    no arrays       the data is the pickle
    with arrays     the data is a header, a descriptor for each array, and the pickle
    one array       (only a `cableway.Array` or a tensor that is sent as a handle) the same, but the pickle has only the layout; both
                    ends remember it, so that such an item costs no pickling

An array of an item is one of three: a *block* with the bytes of a buffer of 256 KiB and more (see `_transport.blocks`: one copy, and
the block comes back to its writer when the reader's last view is gone), a block with a pickle that is too long, or the memory of a
`cableway.Array`, which is not copied. For tensors and arrays of CuPy see `_transport.tensors`. The queue keeps the arrays until the
item is taken, whichever process dies meanwhile; the library opens them at the moment at which the item is taken.
"""

from __future__ import annotations

import os
import pickle
import struct
from typing import Any

import numpy as np

from cableway import array as arrays
from cableway._core import dtypes
from cableway._core.byte_blocks import bytes_layout
from cableway._core.layouts import Layout, check_fits, received
from cableway._core.leases import Lease, usable
from cableway._core.library import check, export_again, exported, ffi, keeping, lib
from cableway._dispatch import QueueItem
from cableway._transport.blocks import HEADER_BYTES as BLOCK_HEADER_BYTES
from cableway._transport.blocks import Block, BlockStore
from cableway._transport.external_arrays import is_external
from cableway._transport.message import Encoder
from cableway._transport.message import _unpickling as unpickling
from cableway._transport.rebuilt_tensors import Maker, Rebuild, maker, rebuild
from cableway._transport.table import BY_PICKLE
from cableway._transport.tensors import Tensors
from cableway.array import Array

__all__ = ["EncodedItem", "decode", "encode", "encode_alone"]

THRESHOLD_BYTES = (
    256 << 10
)  # of a buffer that goes in a block; two copies of fewer bytes cost less than a block does
KEPT_BYTES = (
    256 << 20
)  # how much a writer keeps of the blocks that wait, or that its readers still have, to use them again

_HEADER = struct.Struct("<II")  # descriptors, 1: the last one is a block with the pickle
_DESCRIPTOR = struct.Struct("<QII")  # bytes, kind, 0
_BUFFER, _BUFFER_BY_PICKLE, _ARRAY, _ARRAY_READONLY, _ONE_ARRAY, _ONE_ARRAY_READONLY = range(6)
_ONE_ARRAY_BYTES = _HEADER.size + _DESCRIPTOR.size  # before the layout of one array
_LAYOUTS_MAX = 1024
# Of arrays alone, as they came: the layout, where it begins, the name; of a tensor how it is one again, and by whom on each GPU.
_layouts: dict[bytes, tuple[Layout, int, str | None, Rebuild | None, dict[int, Maker | None]]] = {}
_tensors = Tensors(shares=False)


class EncodedItem:
    """An encoded item, until the queue has it or refuses it.

    Dropped without either, as by what a signal's handler raises, it lets go of its memory, and its handles end at the broker.
    """

    __slots__ = ("_blocks", "copies", "data", "extra_bytes", "handles")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.handles: Any = (
            ffi.NULL
        )  # of what goes with it, under way; empty as soon as the queue has them
        self.extra_bytes = 0
        self._blocks: list[Block] = []
        self.copies: tuple[
            Array, ...
        ] = ()  # that go on; what is copied stays until they are complete

    def attach(self, blocks: list[Block], handles: Any) -> None:
        """What goes with it; the handles are in transit already."""
        self._blocks = blocks
        self.handles = handles

    def sent(self) -> None:
        """The queue has it."""
        if self._blocks:
            _store.lent(self._blocks, None)
            self._blocks = []
        _finish(self.copies)

    def refused(self) -> None:
        """The queue did not take it: nothing stays at the broker."""
        blocks, self._blocks = self._blocks, []
        self.handles = ffi.NULL
        _store.untake(blocks)
        _finish(self.copies)


def _no_handles(room: int) -> Any:
    """A place for so many handles, which end with it unless a queue has taken them."""
    cell = ffi.gc(ffi.new("cwpy_handles *"), lib.cwpy_handles_end)
    if lib.cwpy_handles_room(cell, room):
        raise MemoryError(f"no memory for the {room} handles of an item")
    return cell


def _finish(copies: tuple[Array, ...]) -> None:
    for array in copies:
        array.wait()


class _ItemEncoder(Encoder):
    """Encodes items; one thread at a time."""

    _threshold = THRESHOLD_BYTES

    def __init__(self, store: BlockStore) -> None:
        super().__init__(store, 0, transit=True, lender=_tensors.lender)

    def _foreign_reductions(self, known: dict[Any, Any]) -> dict[type, Any]:
        return _tensors.reductions(known)

    def item(self, obj: Any, max_bytes: int) -> EncodedItem:
        try:
            pickled = self._dump(obj, _Pickler)
            return self._close(pickled, max_bytes)
        except BaseException:
            self._undo()
            raise

    def _begin(self) -> None:
        super()._begin()
        self._order: list[tuple[int, int, Any]] = []  # bytes, kind, Block or Array
        self._handles: Any = ffi.NULL

    def _undo(self) -> None:
        self._handles = ffi.NULL
        self._arrays = []
        super()._undo()

    def _put(self, values: np.ndarray[Any, Any], flags: int) -> int:
        super()._put(values, flags)
        kind = _BUFFER_BY_PICKLE if flags & BY_PICKLE else _BUFFER
        return self._note(values.nbytes, kind, self._blocks[-1])

    def _enter(self, block: Block, nbytes: int, flags: int) -> int:
        return 0  # an item has a table of its own, and no use for another handle

    def _note(self, nbytes: int, kind: int, what: Any) -> int:
        self._order.append((nbytes, kind, what))
        return len(self._order) - 1

    def _reduce_array(self, array: Array) -> Any:
        layout = array._layout_now()
        kind = _ARRAY_READONLY if array._open_lease().readonly else _ARRAY
        number = self._note(layout.nbytes, kind, array)
        dtype = dtypes.encode(layout.dtype)
        return _array_of_item, (
            number,
            dtype,
            layout.shape,
            layout.strides,
            array._offset,
            array._name,
        )

    def _close(self, pickled: bytes, max_bytes: int) -> EncodedItem:
        order = self._order
        if not order and len(pickled) <= max_bytes:
            return EncodedItem(pickled)
        head = _HEADER.size + len(order) * _DESCRIPTOR.size
        spilled = head + len(pickled) > max_bytes
        if spilled:
            self._put(np.frombuffer(pickled, "u1"), 0)
            pickled = b""
        parts = [_HEADER.pack(len(order), spilled)]
        parts += [_DESCRIPTOR.pack(nbytes, kind, 0) for nbytes, kind, _ in order]
        made = EncodedItem(b"".join((*parts, pickled)))
        if len(made.data) > max_bytes:
            raise ValueError(
                f"an object with {len(order)} large parts needs {len(made.data)} bytes of description, an item of "
                f"a queue holds {max_bytes}: put it in several items, or in one array"
            )
        self._handles = _no_handles(len(order))
        for _, _, what in order:
            lease = None if isinstance(what, Block) else what._open_lease()  # kept, as in handle()
            pointer = what.array if lease is None else usable(lease)
            export_again(lib.cwpy_handles_add, self._handles, pointer)
        for block in self._blocks:
            block.lend()
        made.extra_bytes = sum(nbytes for nbytes, _, _ in order)
        made.attach(self._blocks, self._handles)
        self._begin()
        return made


class _Pickler(pickle.Pickler):
    pass


_store = BlockStore(KEPT_BYTES, in_transit=True)
_encoders: list[_ItemEncoder] = []  # those that nobody uses now


def _after_fork_in_child() -> None:
    global _store
    _store = BlockStore(KEPT_BYTES, in_transit=True)
    _encoders.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def encode(obj: Any, max_bytes: int) -> EncodedItem:
    """An object as an item whose data has at most max_bytes.

    Raises:
        LimitExceeded: no memory left, or a limit of the broker.
        Whatever pickling raises. Nothing is held then.
    """
    try:
        encoder = _encoders.pop()
    except IndexError:
        encoder = _ItemEncoder(_store)
    try:
        made = encoder.item(obj, max_bytes)
    except BaseException:
        _finish(_tensors.begun())
        raise
    made.copies = _tensors.begun()
    _encoders.append(encoder)
    return made


def encode_alone(obj: Any, max_bytes: int) -> EncodedItem | None:
    """An item of one array, or one tensor that goes by handle; None: it is none, or its layout is too long for that."""
    if type(obj) is Array:
        return _encode_array(obj, None, max_bytes)
    lent = _tensors.lend(obj) if is_external(type(obj)) else None
    if lent is None:
        return None
    copies = _tensors.begun()
    made = _encode_array(*lent, max_bytes)
    if made is None:
        _finish(copies)
    else:
        made.copies = copies
    return made


def _encode_array(array: Array, how: Rebuild | None, max_bytes: int) -> EncodedItem | None:
    lease, layout = array._open_lease(), array._layout_now()
    key = (array._offset, array._name, lease.readonly, how)
    told = layout.encoded  # another thread may tell of another array with this layout
    if told is None or told[0] != key:
        described = (dtypes.encode(layout.dtype), layout.shape, layout.strides, *key[:2], how)
        kind = _ONE_ARRAY_READONLY if lease.readonly else _ONE_ARRAY
        head = _HEADER.pack(1, 0) + _DESCRIPTOR.pack(layout.nbytes, kind, 0)
        told = layout.encoded = (key, head + pickle.dumps(described, 5))
    out = EncodedItem(told[1])
    if len(out.data) > max_bytes:
        return None
    out.handles = _no_handles(1)
    export_again(lib.cwpy_handles_add, out.handles, usable(lease))
    out.extra_bytes = layout.nbytes
    return out


def _decode_array(item: QueueItem, view: memoryview, kind: int) -> Any:
    lease = _taken(item, 0)
    readonly = kind == _ONE_ARRAY_READONLY
    if readonly:
        _make_readonly(item, 0, lease)
    told = bytes(view[_ONE_ARRAY_BYTES:])
    known = _layouts.get(told)
    nbytes = lib.cw_array_nbytes(lease.pointer)
    if known is None:
        dtype, shape, strides, offset, name, how = pickle.loads(told)
        layout = received(shape, dtype, strides, offset, nbytes)
        known = layout, offset, name, how, {}
        if len(_layouts) >= _LAYOUTS_MAX:
            _layouts.clear()
        _layouts[told] = known
    else:
        check_fits(known[0], known[1], nbytes)
    layout, offset, name, how, makers = known
    if how is not None and not readonly:
        made = _made(lease, layout, offset, how, makers)
        if made is not None:
            return made
    array = arrays.make(lease, layout, offset, name)
    return array if how is None else rebuild(array, how)


def _made(
    lease: Lease, layout: Layout, offset: int, how: Rebuild, makers: dict[int, Maker | None]
) -> Any | None:
    """A tensor on a GPU, the quick way; None: there is none now."""
    gpu = lease.gpu
    if gpu not in makers:
        makers[gpu] = maker(layout, how, gpu) if gpu >= 0 else None
    made_by = makers[gpu]
    return None if made_by is None else made_by.make(lease, offset)


def decode(item: QueueItem) -> Any:
    """The object in an item. May be called again, also by another thread, when a signal's handler has interrupted it: the item
    keeps what is open of it.

    Raises:
        Whatever unpickling raises, or a handler meanwhile.
    """
    failed = item.error
    if failed is not None:
        raise failed
    view, cells = item.data, item.cells
    if not cells:
        return pickle.loads(view)
    count, spilled = _HEADER.unpack_from(view)
    if count != len(cells):
        raise ValueError(f"an item of {len(cells)} arrays says that it has {count}")
    kind = _DESCRIPTOR.unpack_from(view, _HEADER.size)[1]
    if kind in (_ONE_ARRAY, _ONE_ARRAY_READONLY) and count == 1:
        return _decode_array(item, view, kind)
    parts: list[Any] = []
    by_pickle: list[Any] = []
    for i in range(count):
        nbytes, kind, _ = _DESCRIPTOR.unpack_from(view, _HEADER.size + i * _DESCRIPTOR.size)
        lease = _taken(item, i)
        if kind in (_ARRAY, _ARRAY_READONLY):
            if kind == _ARRAY_READONLY:
                _make_readonly(item, i, lease)
            parts.append(lease)
            continue
        parts.append(_buffer(lease, nbytes))
        if kind == _BUFFER_BY_PICKLE:
            by_pickle.append(memoryview(parts[-1]))
    body = view[_HEADER.size + count * _DESCRIPTOR.size :]
    if spilled:
        body = memoryview(parts.pop())
    before, unpickling.buffers = unpickling.buffers, parts
    try:
        return pickle.loads(body, buffers=by_pickle)
    finally:
        unpickling.buffers = before


def _taken(item: QueueItem, number: int) -> Lease:
    """A lease on one of an item's arrays; the item's cell keeps it, too."""
    lease = Lease.__new__(Lease)
    lease.cell = item.cells[number]
    return lease


def _make_readonly(item: QueueItem, number: int, lease: Lease) -> None:
    """The same memory, read-only as its sender had it.

    A transit holds it for a moment: beside the writable array that the item held it would lie where that lies, writable by force.
    The item notes it, so that it is not made twice, and goes on if it was begun.
    """
    carried = item.opened.get(number)
    if carried is None:
        pointer = lease.pointer
        client = lib.cw_array_client(pointer)  # the queue's, which is there
        handle = exported(pointer, 1)
        carried = (int(ffi.cast("uintptr_t", client)), ffi.buffer(handle)[:], handle.size_bytes)
        item.opened[number] = carried
    number_of_client, data, nbytes = carried
    cell, layout = lease.cell, bytes_layout(nbytes)
    if cell.array() and not lease.readonly:
        cell.end()
    address = int(ffi.cast("uintptr_t", layout.c))
    check(cell.open(number_of_client, data, address, lib.CW_READONLY, False))
    lease.pointer = ffi.cast("cw_array *", cell.array())


def _buffer(lease: Lease, nbytes: int) -> Any:
    array = lease.pointer
    if nbytes + BLOCK_HEADER_BYTES > lib.cw_array_nbytes(array):
        raise ValueError(f"an item names {nbytes} bytes in a block of {lib.cw_array_nbytes(array)}")
    base = ffi.cast("char *", lib.cw_array_data(array)) + BLOCK_HEADER_BYTES
    lease.cell.returns()
    return ffi.buffer(keeping(base, lease.cell), nbytes)


def _array_of_item(
    number: int,
    dtype: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    name: str | None,
) -> Array:
    parts = unpickling.buffers
    if parts is None or not isinstance(parts[number], Lease):
        raise pickle.UnpicklingError("a part of a queue's item was taken out of it")
    nbytes = lib.cw_array_nbytes(parts[number].pointer)
    layout = received(shape, dtype, strides, offset, nbytes)
    return arrays.make(parts[number], layout, offset, name)
