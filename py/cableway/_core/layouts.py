"""Layouts: what the bytes of an array mean. Shape, strides in bytes, dtype.

>>> import numpy as np
>>> Layout((2, 3), np.dtype("f4")).strides
(12, 4)
>>> Layout((2, 3), np.dtype("f4"), order="F").strides
(4, 8)
"""

from __future__ import annotations

import math
import struct
import sys
from operator import index
from typing import Any

import numpy as np

from cableway._core import dtypes, words
from cableway._core.library import ffi, lib
from cableway.errors import Error

__all__ = ["Layout", "of", "seen"]

_cache: dict[bytes, Layout] = {}
_gapless: dict[Any, Layout] = {}
_CACHE_MAX = 4096
_BUFFER_BYTES = 16 + 16 * 64 + 2048


class Layout:
    """Shape, strides in bytes and dtype. Never changes.

    A dtype that another library told (`of_row`) is made when somebody asks for it: one of machine learning imports `ml_dtypes`, which
    takes 10 ms, and who only passes an array on does not need it.

    Attributes:
        row: that dtype's row of the table; None: `dtype` is what there is.
        itemsize: bytes of an element.
    """

    __slots__ = (
        "_c",
        "_c_bytes",
        "_gapless",
        "_meaning",
        "_origin",
        "_repeats",
        "_span",
        "dtype",
        "encoded",
        "itemsize",
        "ndim",
        "row",
        "shape",
        "size",
        "strides",
    )

    dtype: np.dtype[Any]
    encoded: tuple[Any, bytes] | None  # as an item of a queue has it (`_queue.items`)

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        strides: tuple[int, ...] | None = None,
        order: str = "C",
    ) -> None:
        self.dtype = dtype
        self.row: words.Row | None = None
        self._begin(shape, dtype.itemsize, strides, order)

    @classmethod
    def of_row(
        cls, shape: tuple[int, ...], row: words.Row, strides: tuple[int, ...] | None = None
    ) -> Layout:
        """The same of a row of the table of dtypes; strides in bytes, None: C order."""
        self = cls.__new__(cls)
        self.row = row
        self._begin(shape, row.size_bytes, strides, "C")
        return self

    def _begin(
        self, shape: tuple[int, ...], itemsize: int, strides: tuple[int, ...] | None, order: str
    ) -> None:
        self.shape = shape
        self.itemsize = itemsize
        self.ndim = len(shape)
        self.size = math.prod(shape)
        self.strides = contiguous(shape, itemsize, order) if strides is None else strides
        self._c: tuple[Any, ...] | None = None  # and what it points to
        self._c_bytes = b""
        self._gapless: bool | None = None
        self._meaning: tuple[Any, ...] = ()
        self._origin: int | None = None
        self._repeats: bool | None = None
        self._span: int | None = None
        self.encoded = None

    def __getattr__(self, name: str) -> Any:
        """A dtype that is not made yet."""
        if name != "dtype":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        row = self.row
        assert row is not None
        self.dtype = words.of_row(row)
        return self.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    def with_shape(self, shape: tuple[int, ...]) -> Layout:
        """The same dtype in another shape, in C order."""
        return Layout(shape, self.dtype) if self.row is None else Layout.of_row(shape, self.row)

    @property
    def text(self) -> str:
        """The dtype as cableway.h has it.

        Raises:
            TypeError: it cannot be shared.
        """
        return dtypes.encode(self.dtype) if self.row is None else self.row.dtype

    @property
    def origin(self) -> int:
        """Bytes from the lowest byte to element 0: more than 0 where strides are negative."""
        if self._origin is None:
            steps = zip(self.shape, self.strides, strict=True)
            self._origin = sum((n - 1) * -step for n, step in steps if step < 0) if self.size else 0
        return self._origin

    @property
    def span(self) -> int:
        """Bytes from the lowest one to behind the highest one."""
        if self._span is None:
            steps = zip(self.shape, self.strides, strict=True)
            reach = sum((n - 1) * abs(step) for n, step in steps) if self.size else 0
            self._span = reach + self.itemsize if self.size else 0
        return self._span

    @property
    def repeats(self) -> bool:
        """Whether elements along an axis are one and the same, as `numpy.broadcast_to` makes them: nobody writes by that."""
        if self._repeats is None:
            steps = zip(self.shape, self.strides, strict=True)
            self._repeats = any(n > 1 and not step for n, step in steps) and self.nbytes > 0
        return self._repeats

    @property
    def c(self) -> Any:
        """The `cw_layout *`, which lives as long as this object."""
        found = self._c
        if found is None:
            if self.ndim > lib.CW_NDIM_MAX:
                raise ValueError(
                    f"an array has at most {lib.CW_NDIM_MAX} dimensions, not {self.ndim}"
                )
            shape = ffi.new("int64_t[]", self.shape or (1,))
            strides = ffi.new("int64_t[]", self.strides or (1,))
            text = ffi.new("char[]", self.text.encode())
            c = ffi.new("cw_layout *")
            c.ndim, c.itemsize = self.ndim, self.itemsize
            c.shape, c.strides, c.dtype = shape, strides, text
            self._c = found = (c, shape, strides, text)  # threads may be here at once
        return found[0]

    @property
    def c_bytes(self) -> bytes:
        """The bytes of that `cw_layout`, for whoever makes an array of structures that hold it; good as long as this object lives."""
        if not self._c_bytes:
            self._c_bytes = bytes(ffi.buffer(self.c))
        return self._c_bytes

    @property
    def meaning(self) -> tuple[Any, ...]:
        """Equal for layouts that mean the same: `same` as a key.

        Raises:
            TypeError: the dtype cannot be shared.
        """
        if not self._meaning:
            self._meaning = self.shape, self.strides, self.text
        return self._meaning

    def same(self, other: Layout) -> bool:
        """Whether the two mean the same."""
        return (
            self.shape == other.shape
            and self.strides == other.strides
            and (
                self.row is other.row
                if self.row is not None and other.row is not None
                else words.same(self.dtype, other.dtype)
            )
        )

    def is_contiguous(self, order: str) -> bool:
        """Whether the elements lie without gaps in C order ("C") or Fortran order ("F")."""
        wanted = contiguous(self.shape, self.itemsize, order)
        return self.size == 0 or all(
            n == 1 or have == want
            for n, have, want in zip(self.shape, self.strides, wanted, strict=True)
        )


def contiguous(shape: tuple[int, ...], itemsize: int, order: str) -> tuple[int, ...]:
    """Strides of a contiguous array in C or Fortran order.

    >>> contiguous((2, 3), 8, "F")
    (8, 16)
    """
    strides = []
    step = itemsize
    for n in shape if order == "F" else reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(strides if order == "F" else reversed(strides))


def check_fits(layout: Layout, offset: int, nbytes: int) -> None:
    """Whether all elements lie within nbytes bytes, element 0 at offset.

    Raises:
        Error: they do not: another process told what cannot be.
    """
    low = offset - layout.origin
    if low < 0 or low + layout.span > nbytes:
        raise Error(
            f"another process described an array of shape {layout.shape} at byte {offset} of a memory of {nbytes} bytes, "
            "which does not hold it"
        )


def received(shape: Any, dtype: Any, strides: Any, offset: Any, nbytes: int) -> Layout:
    """The layout that another process told of an array in nbytes bytes.

    Raises:
        Error: what it told cannot be.
    """
    try:
        dims, steps = tuple(map(index, shape)), tuple(map(index, strides))
        fits = struct.pack(f"={2 * len(dims) + 1}q", *dims, *steps, index(offset))
    except (TypeError, struct.error):
        fits = b""
    if (
        not fits
        or len(dims) > lib.CW_NDIM_MAX
        or min(dims, default=0) < 0
        or not isinstance(dtype, str)
    ):
        raise Error(
            f"another process described an array with a layout that cannot be: shape {shape!r:.100}, "
            f"strides {strides!r:.100}, offset {offset!r:.30}, dtype {dtype!r:.100}"
        )
    made = Layout(dims, dtypes.decode(dtype), steps)
    check_fits(made, offset, nbytes)
    return made


def is_gapless(layout: Layout) -> bool:
    """Whether the elements fill the bytes that they span, each byte belonging to one of them, upwards on each axis.

    >>> is_gapless(Layout((2, 3), np.dtype("f4"), (4, 8))), is_gapless(Layout((2,), np.dtype("f4"), (8,)))
    (True, False)
    """
    if layout._gapless is None:
        step, gapless = layout.itemsize, True
        steps = zip(layout.strides, layout.shape, strict=True)
        for stride, n in sorted((stride, n) for stride, n in steps if n != 1):
            gapless = gapless and (stride == step or not layout.size)
            step *= n
        layout._gapless = gapless
    return layout._gapless


def gapless(shape: tuple[int, ...], dtype: np.dtype[Any], order: str = "C") -> Layout:
    """The layout of an array without gaps, "C" or "F". Of plain dtypes the one that was there before is returned.

    Raises:
        ValueError: it is larger than any memory.
    """
    plain = dtype.names is None and dtype.metadata is None  # those that are equal may differ still
    key = shape, dtype, order
    made = _gapless.get(key) if plain else None
    if made is None:
        if math.prod(n or 1 for n in shape) * dtype.itemsize > sys.maxsize:  # NumPy's rule
            raise ValueError(
                f"an array of shape {shape} and dtype {words.name(dtype)} is larger than any memory"
            )
        made = Layout(shape, dtype, None, order)
        if plain:
            if len(_gapless) >= _CACHE_MAX:
                _gapless.clear()
            _gapless[key] = made
    return made


def seen(array: np.ndarray[Any, Any]) -> Layout:
    """The layout of an array as it lies; of plain ones without gaps the same object each time.

    >>> x = np.zeros((2, 3))
    >>> seen(x[0]) is seen(x[1]), seen(x.T).strides
    (True, (8, 24))
    """
    if array.size and array.flags.c_contiguous:
        made = gapless(array.shape, array.dtype)
        if made.strides == array.strides:  # not so of axes of one element, as NumPy may have them
            return made
    return Layout(array.shape, array.dtype, array.strides)


def like(array: np.ndarray[Any, Any], order: str = "K") -> Layout:
    """The layout of a gapless copy of array. Order "K" keeps the order of the axes in memory."""
    shape, itemsize = array.shape, array.dtype.itemsize
    if order == "A":
        order = "F" if array.flags.fnc else "C"
    if order == "K" and not array.flags.c_contiguous:
        axes = sorted(range(array.ndim), key=lambda i: (-abs(array.strides[i]), i))
        steps = contiguous(tuple(shape[i] for i in axes), itemsize, "C")
        strides = [0] * array.ndim
        for axis, step in zip(axes, steps, strict=True):
            strides[axis] = step
        return Layout(shape, array.dtype, tuple(strides))
    return gapless(shape, array.dtype, "F" if order == "F" else "C")


def of(pointer: Any) -> Layout:
    """The layout of a `cw_array *`. Layouts seen before are shared.

    Raises:
        Error: what another process wrote about the array cannot be.
    """
    buffer = ffi.new("char[]", _BUFFER_BYTES)
    length = lib.cwpy_layout(pointer, buffer, _BUFFER_BYTES)
    if not 16 <= length <= _BUFFER_BYTES:
        raise Error("another process described an array with a layout that cannot be")
    key: bytes = ffi.buffer(buffer, length)[:]
    known = _cache.get(key)
    if known is not None:
        return known
    ndim, itemsize, _ = struct.unpack_from("=IIQ", key)
    dims = struct.unpack_from(f"={2 * ndim}q", key, 16)
    dtype = dtypes.decode(key[16 + 16 * ndim :].decode("utf-8", "replace"))
    if dtype.itemsize != itemsize or min(dims[:ndim], default=0) < 0:
        raise Error(
            f"another process described an array of {words.name(dtype)} with {itemsize} bytes an element"
        )
    made = Layout(dims[:ndim], dtype, dims[ndim:])
    if len(_cache) >= _CACHE_MAX:
        _cache.clear()
    _cache[key] = made
    return made
