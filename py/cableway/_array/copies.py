"""Copies of arrays, within and between devices.

Bytes go as they lie: a copy between devices has the layout of its source where that has no gaps. Numbers are
converted on the host alone.

The class of arrays stands above this module, and does its copies by it. So a new array is one of its source's class; where
the source is none of ours, the caller says of which class (`kind`).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from cableway import _dispatch
from cableway._core import capsules, layouts, words
from cableway._core.arrays import is_array
from cableway._core.layouts import Layout
from cableway._core.leases import Lease, Pin, clear_of, copy_values, has_masked, usable
from cableway._core.library import check_again, ffi, lib
from cableway._cuda import interop, stream_order

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cableway.array import Array

__all__ = [
    "arrived",
    "as_values",
    "assign",
    "copy",
    "duplicate",
    "fill",
    "fill_new",
    "from_external",
    "from_host",
    "lies_on_gpu",
    "of_values",
    "onto",
    "prefetch",
]

_NO_STREAM = ffi.NULL
_QUICK = (np.ndarray, np.generic, int, float, complex, str, bytes, list, tuple)  # what NumPy takes
_IN_ONE_PIECE = 1 << 16  # bytes; below, NumPy's own way is as quick


def _low(array: Array) -> int:
    """Where an array's lowest byte lies, counted from its lease's."""
    return array._offset - array._layout_now().origin


def from_host(
    kind: type[Array], values: np.ndarray[Any, Any], device: str, order: str = "K"
) -> Array:
    """A new array on a device with the values of a host array."""
    layout = layouts.like(values, order)
    if device == "cpu":
        return of_values(kind, values, layout)
    made = kind._new(layout, filled=True, device=device)
    _write(made, values)
    return made


def of_values(kind: type[Array], values: np.ndarray[Any, Any], layout: Layout) -> Array:
    """A new host array of that layout with the values of another of its shape, converted by force where that must be."""
    alike = _lie_alike(values, layout)
    made = kind._new(layout, filled=not alike)
    if alike:
        _write_bytes(made, values)
    else:
        copy_values(made._exact(), values, casting="unsafe")
    return made


def _lie_alike(values: np.ndarray[Any, Any], layout: Layout) -> bool:
    """Whether the bytes of values are those of a gapless array of that layout, in their order."""
    if values.shape != layout.shape or not words.same(values.dtype, layout.dtype):
        return False
    return values.strides == layout.strides and layouts.is_gapless(layout)


def _write(target: Array, values: np.ndarray[Any, Any]) -> None:
    """Copies host values of the same shape and dtype into a gapless GPU array."""
    layout = target._layout_now()
    told = Layout(values.shape, values.dtype, values.strides)
    if not layout.same(told):
        packed: np.ndarray[Any, Any] = np.ndarray(
            layout.shape, layout.dtype, bytearray(layout.nbytes), layout.origin, layout.strides
        )
        copy_values(packed, values, casting="unsafe")
        values = packed
    _write_bytes(target, values)


def fill_new(target: Array, values: Any) -> bool:
    """Copies host values into a large host array that nobody has looked at here, if they lie as it does; else nothing."""
    layout = target._layout_now()
    if (
        layout.nbytes < _IN_ONE_PIECE
        or target._memory is not None
        or type(values) is not np.ndarray
    ):
        return False
    if not _lie_alike(values, layout) or target._open_lease().readonly:
        return False
    _write_bytes(target, values)
    return True


def as_values(target: Array, seen: np.ndarray[Any, Any], value: Any) -> Any:
    """What NumPy is to assign to a part of target, which lies in host memory and is seen as that."""
    dtype = target._layout_now().dtype
    if dtype.metadata is None and isinstance(value, _QUICK):
        return clear_of(seen, value)
    if is_array(value):
        value = value._exact()
    else:
        of_library = capsules.host_values(value)
        value = clear_of(seen, value if of_library is None else of_library)
    of = value.dtype if isinstance(value, np.ndarray) else None
    if dtype.metadata is None and (of is None or of.metadata is None):
        return value
    found = np.asarray(value)
    words.check_assigned(found.dtype, dtype)
    return found.view(words.raw(found.dtype))


def _write_bytes(target: Array, values: np.ndarray[Any, Any]) -> None:
    """Copies host values that lie as the target does. In host memory that is new it is the quickest way."""
    lease, layout = (
        target._open_lease(),
        target._layout_now(),
    )  # kept: a thread may close the target
    pointer, source = usable(lease), values.__array_interface__["data"][0] - layout.origin
    host = ffi.cast("void *", source)
    check_again(lib.cw_array_copy_in, pointer, _low(target), host, -1, layout.span, _NO_STREAM)


def from_external(
    kind: type[Array],
    source: interop.ExternalArray,
    device: str | None = None,
    stream: int | None = None,
) -> Array:
    """A new array with the contents of another library's GPU memory, on that GPU or on the device named.

    Args:
        stream: its number: the copy is given to it and goes on, and who uses the array comes after it. The caller sees to it that
            the source stays until the array's `wait` returns.
    """
    source.check_gapless()
    made = kind._new(
        source.layout, device=device or ("cpu" if source.gpu < 0 else f"cuda:{source.gpu}")
    )
    _take(made, source, stream)
    return made


def _take(target: Array, source: interop.ExternalArray, stream: int | None = None) -> None:
    if stream is None:
        source.ready()
    layout = source.layout
    lease = target._open_lease()  # kept, as in _write_bytes
    check_again(
        lib.cw_array_copy_in,
        usable(lease),
        _low(target),
        ffi.cast("void *", source.low),
        source.gpu,
        layout.span,
        _NO_STREAM if stream is None else ffi.cast("void *", stream),
    )


def duplicate(source: Array, device: str | None = None, stream: Any = None) -> Array:
    """A new array with the contents of one of ours, on its own device or another."""
    layout = source._layout_now()
    place = source.device if device is None else device
    if place == "cpu" and source.device == "cpu":
        values = source._exact()
        return of_values(type(source), values, layouts.like(values))
    if not layouts.is_gapless(layout):
        return _duplicate_with_gaps(source, place)
    made = source._new(layout, filled=True, device=place)
    _move(made, source, stream)
    return made


def _move(target: Array, source: Array, stream: Any = None) -> None:
    """By a stream only between GPUs: who would keep host memory until it is done?"""
    leases = target._open_lease(), source._open_lease()  # kept, as in _write_bytes
    to, of = map(usable, leases)
    layout = source._layout_now()
    span, origin = layout.span, layout.origin
    number = _NO_STREAM
    if stream is not None and target._on_gpu() and source._on_gpu():
        number = ffi.cast("void *", stream_order.stream_number(stream) or 1)
    at, begin = target._offset - origin, source._offset - origin
    check_again(lib.cw_array_copy, to, at, of, begin, span, number)


def _duplicate_with_gaps(source: Array, place: str) -> Array:
    """By way of the host, where the gaps go."""
    if source.device == "cpu":
        return from_host(type(source), source._exact(), place)
    layout = source._layout_now()
    raw = np.empty(layout.span, np.uint8)
    lease = source._open_lease()  # kept, as in _write_bytes
    check_again(
        lib.cw_array_copy_out,
        usable(lease),
        _low(source),
        ffi.from_buffer(raw),
        -1,
        layout.span,
        _NO_STREAM,
    )
    values: np.ndarray[Any, Any] = np.ndarray(
        layout.shape, layout.dtype, raw, layout.origin, layout.strides
    )
    return from_host(type(source), values, place)


def onto(source: Array, device: str, stream: Any = None) -> Array:
    """This array on a device: itself when it lies there already, else a copy."""
    return source if source.device == device else duplicate(source, device, stream)


def fill(target: Array, value: Any) -> None:
    """Sets every element of a new array to a value, which is converted as by `numpy.full`."""
    layout = target._layout_now()
    on_gpu = target._open_lease().gpu >= 0
    values = np.empty(layout.shape, words.raw(layout.dtype)) if on_gpu else target.numpy()
    words.check_assigned(np.asarray(value).dtype, layout.dtype)
    np.copyto(values, value, casting="unsafe")
    if on_gpu:
        _write(target, values)


# What a copy that goes on reads on the host, by the lease of its target.
_sources: weakref.WeakKeyDictionary[Lease, Lease] = weakref.WeakKeyDictionary()


def prefetch(source: Array, device: str) -> Array:
    """This array on a device, copied by a stream of ours that nobody waits for."""
    if source.device == device:
        if source.evictable:
            lease = source._open_lease()
            usable(lease)
            Pin(lease)  # it comes back, and may leave again
        return source
    layout = source._layout_now()
    if device == "cpu" or not layouts.is_gapless(layout):
        return duplicate(source, device)
    made = source._new(layout, device=device)
    to, of = made._open_lease(), source._open_lease()
    stream = ffi.cast("void *", -1)
    check_again(
        lib.cw_array_copy,
        usable(to),
        _low(made),
        usable(of),
        _low(source),
        layout.span,
        stream,
    )
    if of.gpu < 0:
        # Should the target go first, the copy reads what is there: nobody sees it any more.
        _sources[to] = of
    return made


def arrived(lease: Lease) -> None:
    """What was copied here is complete: its source may go."""
    _sources.pop(lease, None)


def lies_on_gpu(value: Any) -> bool:
    """Whether value is an array in GPU memory, of ours or of another library."""
    if isinstance(value, (np.ndarray, np.generic, int, float)):
        return False
    if is_array(value):
        return value._on_gpu()
    return interop.lies_on_gpu(value)


def _usable(lease: Lease) -> bool:
    usable(lease)
    return True


def _usable_on_gpu(lease: Lease) -> bool:
    return lease.gpu >= 0 and _usable(lease)


def _span_and_origin(to: Layout, of: Layout) -> tuple[int, int] | None:
    """Of what is copied in one piece; None: it is not."""
    return (of.span, of.origin) if to.same(of) and layouts.is_gapless(of) else None


def _fill_pair(pair: Any, i: int, target: Any, source: Any, stream: Any, kept: list[Lease]) -> None:
    if not is_array(target) or not is_array(source):
        wrong = source if is_array(target) else target
        raise TypeError(
            f"pair {i}: a cableway.Array is needed, not {type(wrong).__name__}; copy_from() takes whatever is array-like"
        )
    to, of = target._layout_now(), source._layout_now()
    if not to.same(of):
        raise ValueError(
            f"pair {i}: shapes {to.shape} and {of.shape}, dtypes {words.name(to.dtype)} and {words.name(of.dtype)}, "
            f"strides {to.strides} and {of.strides} must be the same; use copy_from(), which converts"
        )
    if not layouts.is_gapless(of):
        raise ValueError(
            f"pair {i}: strides {of.strides} leave gaps or overlap, so the array cannot be copied in one piece; use copy_from()"
        )
    if stream is not None and not (target._on_gpu() and source._on_gpu()):
        raise ValueError(
            f"pair {i}: `stream=` needs both arrays on a GPU; drop `stream=`, or move the array with .to('cuda:0')"
        )
    leases = target._open_lease(), source._open_lease()
    kept += leases
    pair.target, pair.source = map(usable, leases)
    pair.target_bytes = target._offset - of.origin
    pair.source_bytes = source._offset - of.origin
    pair.size_bytes = of.span


def copy(pairs: Iterable[tuple[Array, Array]], *, stream: Any = None) -> None:
    """Copies many arrays at once: (target, source) pairs of one shape, dtype and order of axes each.

    They count as one piece of work: they are put in order with others' work once, and given to the GPU by one call where the
    driver has such a call. They may run in any order, so no target may overlap another pair's memory. Small copies gain
    most: instead of a few microseconds each takes a fraction of one.

    Args:
        pairs: arrays of ours, on any devices, also parts of arrays without gaps; a million at most.
        stream: between GPU arrays: the copies are given to this stream and go on; else it blocks until all are done.

    Raises:
        ValueError: a pair's layouts differ or have gaps, targets overlap, a target is read-only, or they are more
            than a million; with a stream, an array lies on the host. Nothing was copied then.
        TypeError: something is no array of ours.
        ProducerDied: a source is incomplete. Nothing was copied.
        DeviceError: the driver failed. Where it did in the midst, whoever reads a target gets `ProducerDied` until it
            is written anew.

    >>> import cableway as cw
    >>> a, b = cw.zeros(2), cw.zeros(3)
    >>> cw.copy([(a, cw.full(2, 1.5)), (b[:1], cw.full(1, 7.0))])
    >>> a.numpy().tolist(), b.numpy().tolist()
    ([1.5, 1.5], [7.0, 0.0, 0.0])
    """
    listed: list[tuple[Any, Any]] = list(pairs)
    given = ffi.new("cw_pair[]", len(listed) or 1)
    kept: list[Lease] = []  # whoever closes an Array meanwhile
    leased, address = (
        _usable if stream is None else _usable_on_gpu,
        int(ffi.cast("uintptr_t", given)),
    )
    filled = _dispatch.pairs_fill(listed, address, leased, _span_and_origin, kept)
    for i in range(filled, len(listed)):
        _fill_pair(given[i], i, *listed[i], stream, kept)
    number = _NO_STREAM
    if stream is not None:
        number = ffi.cast("void *", stream_order.stream_number(stream) or 1)
    check_again(lib.cw_array_copy_many, given, len(listed), number)


def _same_shape(target: Layout, source: Layout) -> None:
    if target.shape != source.shape:
        raise ValueError(
            f"an array of shape {source.shape} cannot be copied into one of shape {target.shape}"
        )


def assign(target: Array, source: Any, *, spread: bool = False, stream: Any = None) -> None:
    """Copies source, of the same shape, into target, on whatever devices they lie.

    spread: host values are spread over target by NumPy's rules.

    Raises:
        ValueError: the shapes differ, or target is read-only.
        TypeError: the numbers would have to be converted, and not on the host.
    """
    to = target._layout_now()
    if is_array(source):
        of = source._layout_now()
        if to.same(of) and layouts.is_gapless(of):
            _move(target, source, stream)
        elif source._on_gpu():
            _check_bytes(target, of)
            copy_values(target._exact(), duplicate(source, "cpu")._exact())
        else:
            _assign_host(target, source._exact(), spread)
        return
    told = interop.external_array(source)
    if told is None:
        _assign_host(target, _host_values(to, source, spread), spread)
    elif to.same(told.layout) and layouts.is_gapless(to):
        _take(target, told)
    else:
        _check_bytes(target, told.layout)
        copy_values(target._exact(), from_external(type(target), told, "cpu")._exact())


def _check_bytes(target: Array, of: Layout) -> None:
    """Refuses what cannot go from a GPU into target as bytes."""
    to = target._layout_now()
    _same_shape(to, of)
    if not words.same(to.dtype, of.dtype):
        raise TypeError(
            f"from {words.name(of.dtype)} to {words.name(to.dtype)}: only the host converts numbers; convert the array with its own "
            "library first, or copy it with .to('cpu')"
        )
    if target._on_gpu():
        raise ValueError(
            f"strides {of.strides} and {to.strides} differ or have gaps: on a GPU only whole arrays are copied; make "
            "the source contiguous first"
        )


def _host_values(to: Layout, source: Any, spread: bool) -> np.ndarray[Any, Any]:
    """Something array-like as NumPy has it. A number of Python's that does not fit is an error, as in an assignment.

    Raises:
        TypeError: elements are masked.
        OverflowError: a number does not fit.
    """
    if has_masked(source):
        raise TypeError(
            "a masked array cannot be copied, since its masked elements have no value; pass array.filled()"
        )
    of_library = capsules.host_values(source)
    if of_library is not None:
        return of_library
    found = np.asarray(source)
    known = isinstance(source, (np.ndarray, np.generic)) or hasattr(source, "__array__")
    integers = found.dtype.kind in "iu" and words.raw(to.dtype).kind in "iu"
    if not spread and not known and integers:
        found = np.asarray(source, words.raw(to.dtype))
    if spread and not known:  # what an assignment to a part does in NumPy
        words.check_assigned(found.dtype, to.dtype)
        values = np.empty(to.shape, words.raw(to.dtype))
        values[...] = source
        return values
    return found


def _assign_host(target: Array, values: np.ndarray[Any, Any], spread: bool) -> None:
    layout = target._layout_now()
    if words.are_bytes(values.dtype, layout.dtype):
        values = values.view(layout.dtype)
    words.check_cast(values.dtype, layout.dtype)
    if spread:
        values = np.broadcast_to(values, layout.shape).astype(layout.dtype, copy=False)
    if target._open_lease().gpu < 0:
        if fill_new(target, values):
            return
        found = target._exact()
        if values.shape != found.shape:
            _same_shape(layout, Layout(values.shape, values.dtype, values.strides))
        copy_values(found, clear_of(found, values), casting="same_kind")
        return
    _same_shape(layout, Layout(values.shape, values.dtype, values.strides))
    if not np.can_cast(values.dtype, layout.dtype, "same_kind"):
        raise TypeError(
            f"cannot cast {words.name(values.dtype)} to {words.name(layout.dtype)} (casting='same_kind'); convert first with .astype({words.name(layout.dtype)!r})"
        )
    if not layouts.is_gapless(layout):
        raise ValueError(
            f"the GPU array of strides {layout.strides} has gaps, and is not written piece by piece; "
            "write a contiguous part of it, or use a GPU library: cupy.asarray(w)[...] = x"
        )
    _write(target, values.astype(layout.dtype, copy=False))
