"""The arrays that a task gets on its worker's device: `In`, `Out`, `InOut`, and arrays on GPUs.

They are in the message's table, so that a worker can copy them to its GPU without unpickling the task, also before it has taken it
(`_pool.worker.prefetch`). The pickle has their shape, dtype and order.

    In, InOut of host memory    a block with the values; a `cableway.Array` for a worker on a GPU: that array
    Out, InOut                  a block for the result, which is copied into the caller's array (`_pool.write_back`)
    an array on a GPU           itself: the worker uses it as it is, or copies it from another GPU

Invariant: the worker that gets the task finds everything that it needs beside the message. Until the task has ended, the encoded
message owns the blocks and holds the arrays. If the parent dies, blocks and arrays that no worker has opened go with it; its
workers end, too.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from cableway import array as arrays
from cableway._core import words
from cableway._core.layouts import Layout
from cableway._core.leases import usable
from cableway._core.library import lib
from cableway._pool.devices.fast_path import described_dtype
from cableway._pool.write_back import WriteBack
from cableway._transport import table
from cableway._transport.blocks import Block
from cableway._transport.message import Encoder, fill, part
from cableway.array import Array
from cableway.client import current
from cableway.transfers import In, InOut, Out

__all__ = ["TaskEncoder"]


class TaskEncoder(Encoder):
    """Encodes tasks.

    Args:
        args, kwargs: as for `Encoder`.
        groups: the group of workers of each GPU, by its number in this process; None: the Pool has no devices.
        peer: arrays on GPUs go as they are, to whichever worker.
    """

    def __init__(
        self, *args: Any, groups: dict[int, int] | None = None, peer: bool = False, **kwargs: Any
    ) -> None:
        self._groups = groups
        self._peer = peer
        super().__init__(*args, **kwargs)

    def _own_reductions(self) -> dict[Any, Any]:
        return {
            **super()._own_reductions(),
            In: self._reduce_in,
            Out: self._reduce_out,
            InOut: self._reduce_inout,
        }

    def _reduce_array(self, array: Array) -> Any:
        if self._groups is None or self._peer or array._open_lease().gpu < 0:
            return super()._reduce_array(array)
        return self._reduce_as_it_is(array)

    def _reduce_as_it_is(self, array: Array) -> Any:
        """An array of ours, of which the message has a handle."""
        lease, layout = array._open_lease(), array._layout_now()
        if lib.cw_array_client(usable(lease)) != current().pointer:
            return super()._reduce_array(array)  # of another broker than the workers'
        handle = array.handle(False)
        self._arrays.append((array, handle))
        flags = table.ARRAY | table.IN | (table.READONLY if lease.readonly else 0)
        where = (self._groups or {}).get(lease.gpu, table.ELSEWHERE)
        low = array._offset - layout.origin
        number = self._give(handle, low, layout.span, flags, where)
        return _seen, (
            number,
            layout.shape,
            described_dtype(layout.dtype),
            layout.strides,
            array._name,
        )

    def _reduce_in(self, one: In) -> Any:
        if isinstance(one.array, Array):
            if one.array.device != "cpu":
                return self._reduce_array(one.array)
            if self._groups is not None:
                return self._reduce_as_it_is(one.array)
        values = _values(one.array)
        block = None
        if self._shared is not None and self._groups is not None:
            block = self._shared.block_of(values, fill)
        flags = table.IN | (table.PRIVATE if block is not None else 0)
        if block is None:
            block = self._take(values.nbytes)
            fill(block, values)
        return self._reduce_block(values, block, flags)

    def _reduce_out(self, one: Out) -> Any:
        values = _values(one.array)
        block = self._take(values.nbytes)
        self._write_backs.append(WriteBack(values, block, _order(values)))
        return self._reduce_block(values, block, table.OUT)

    def _reduce_inout(self, one: InOut) -> Any:
        values = _values(one.array)
        block = self._take(values.nbytes)
        self._write_backs.append(WriteBack(values, block, _order(values)))
        fill(block, values)
        return self._reduce_block(values, block, table.IN | table.OUT)

    def _reduce_block(self, values: np.ndarray[Any, Any], block: Block, flags: int) -> Any:
        layout = Layout(values.shape, values.dtype, None, _order(values))
        number = self._give(block.handle, table.HEADER_BYTES, values.nbytes, flags)
        return _seen, (number, layout.shape, described_dtype(layout.dtype), layout.strides, None)

    def _give(
        self, handle: bytes, offset: int, nbytes: int, flags: int, where: int = table.ELSEWHERE
    ) -> int:
        self._flags |= table.HAS_ARRAY_ARGUMENTS
        self._entries.append(
            table.pack(handle, offset, nbytes, flags | table.ARRAY_ARGUMENT, where)
        )
        return len(self._entries) - 1


def _values(array: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = array._exact() if isinstance(array, Array) else array
    return found


def _order(values: np.ndarray[Any, Any]) -> str:
    """The order of the elements in a block; as `fill` has it."""
    return "F" if values.flags.f_contiguous and not values.flags.c_contiguous else "C"


@functools.lru_cache(maxsize=1024)
def _layout(shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]) -> Layout:
    return Layout(shape, words.dtype_of(dtype), strides)


def _seen(
    number: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...], name: str | None
) -> Array:
    """In the worker: an entry as the array that the function gets."""
    lease, low = part(number)
    layout = _layout(shape, dtype, strides)
    return arrays.make(lease, layout, low + layout.origin, name)
