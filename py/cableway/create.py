"""Making arrays: empty, zeros, full, asarray.

>>> import cableway as cw
>>> cw.full((2, 2), 7, "i2").numpy()
array([[7, 7],
       [7, 7]], dtype=int16)
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cableway import array as arrays
from cableway import client
from cableway._array import copies
from cableway._array.values import plain
from cableway._core import capsules, dtypes, layouts, leases, words
from cableway._core.layouts import Layout
from cableway._core.leases import Lease, lease_again, usable
from cableway._core.library import exported, lib
from cableway._cuda import interop, suballocation
from cableway.array import Array
from cableway.device import resolve

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    _DType = np.dtype[Any]

__all__ = ["asarray", "empty", "full", "zeros"]


def _shape(shape: Any) -> tuple[int, ...]:
    if type(shape) is int and shape >= 0:
        return (shape,)
    if shape is None or isinstance(shape, (bool, float)):
        raise TypeError(f"a shape is an integer or a sequence of integers, not {shape!r}")
    try:
        found: tuple[int, ...] = (operator.index(shape),)
    except TypeError:
        found = tuple(map(operator.index, shape))
    if any(n < 0 for n in found):
        raise ValueError(f"no axis can have a negative length: {found}")
    return found


def _layout(shape: Any, dtype: DTypeLike, order: str) -> Layout:
    if order not in ("C", "F"):
        raise ValueError(f"order is 'C' or 'F', not {order!r}")
    found, kind = _shape(shape), words.dtype_of(dtype)
    if kind.subdtype is not None:
        kind, inner = kind.subdtype
        found += inner
    if kind.itemsize == 0 and kind.kind in "SU":
        kind = np.dtype(f"{kind.kind}1")  # as NumPy does
    return layouts.gapless(found, kind, order)


def empty(
    shape: int | tuple[int, ...],
    dtype: DTypeLike = float,
    *,
    device: str = "cpu",
    order: str = "C",
    evictable: bool = False,
) -> Array:
    """A new array with arbitrary contents.

    Args:
        shape: one length or a tuple of them.
        dtype: any dtype without Python objects: of NumPy, ml_dtypes or PyTorch, or a word ("bfloat16", "float8_e4m3fn",
            "int4_x2"; the guide lists them).
        device: "cpu", or "cuda:N" ("cuda": the first GPU of this process).
        order: "C" or "F".
        evictable: for a GPU array: if an allocation of this process on that GPU would fail, the array's bytes move to host
            memory, those of the least recently used arrays first, and come back at the next use. They do not move while the array
            is in use or a stream works on it. An array that has a name, was pickled, or whose address a library has, stays on the
            GPU from then on (`cupy.asarray(w)` outside of `with w.reading()` or `writing()`; for a DLPack tensor only as long as
            it lives).

    Returns:
        Array: without a name; it lives until the last process has closed it.

    Raises:
        LimitExceeded: a limit of the broker, or no memory left.
        DeviceError: there is no such device.
        TypeError: the dtype holds objects.
        ValueError: a negative or too large shape; evictable=True in host memory.

    >>> import cableway as cw
    >>> cw.empty((2, 3), "f4").shape
    (2, 3)
    """
    return arrays.new(_layout(shape, dtype, order), device=resolve(device), evictable=evictable)


def zeros(
    shape: int | tuple[int, ...],
    dtype: DTypeLike = float,
    *,
    device: str = "cpu",
    order: str = "C",
    evictable: bool = False,
) -> Array:
    """A new array of zeros; see `empty`.

    >>> import cableway as cw
    >>> cw.zeros(3).numpy()
    array([0., 0., 0.])
    """
    return arrays.new(
        _layout(shape, dtype, order), zero=True, device=resolve(device), evictable=evictable
    )


def full(
    shape: int | tuple[int, ...],
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    device: str = "cpu",
    order: str = "C",
    evictable: bool = False,
) -> Array:
    """A new array filled with a value; dtype None means the value's dtype. See `empty`.

    >>> import cableway as cw
    >>> cw.full(2, 1.5).numpy()
    array([1.5, 1.5])
    """
    value = plain(fill_value)
    if dtype is None:
        value = np.asarray(value)
    kind = value.dtype if dtype is None else words.dtype_of(dtype)
    layout, place = _layout(shape, kind, order), resolve(device)
    made = arrays.new(layout, filled=True, device=place, evictable=evictable)
    copies.fill(made, value)
    return made


def asarray(
    obj: Any,
    dtype: DTypeLike | None = None,
    *,
    shape: int | tuple[int, ...] | None = None,
    order: str = "K",
    copy: bool | None = None,
    device: str | None = None,
    evictable: bool = False,
) -> Array:
    """A `cableway.Array` with obj's contents; copies only if obj is not in cableway's memory.

    These are not copied: an `Array`; a view of one by NumPy or a GPU library; an array of a GPU library that allocates from
    cableway (`cableway.cupy.use()`, `cableway.torch.use()`, `cableway.numba.use()`); a
    `multiprocessing.shared_memory.SharedMemory`, whose memory is used as it is and stays valid if it is unlinked later. Other
    arrays of GPU libraries (CuPy, PyTorch, Numba, JAX, PyCUDA, cuDF's columns) are copied once on their GPU.

    Args:
        obj: array-like (also on a GPU), Array or SharedMemory.
        dtype: convert to this dtype; for a SharedMemory, read its bytes as this dtype (unsigned bytes by default).
        shape: for a SharedMemory, the shape of the array; None for all of it in one dimension.
        order: the order of a copy; "K" keeps the order in memory, "C", "F" or "A" as in NumPy.
        copy: True copies always, False never. With False, memory that a GPU library allocated itself is shared by CUDA IPC, which
            is weaker: any process of the same user could open it, it ends with this process, and obj is kept until no other
            process uses it.
        device: the device of the result; None for the device of obj.
        evictable: always a copy, on a GPU; see `empty`.

    Returns:
        Array: without a name. If obj is an Array and needs no change, it is returned itself.

    Raises:
        ValueError: copy=False, but a copy is needed.
        TypeError: the dtype holds objects, or elements are masked.
        OverflowError: a number of a list does not fit dtype, as in NumPy.
        LimitExceeded: a limit of the broker, or no memory left.

    >>> import cableway as cw
    >>> w = cw.asarray([[1, 2], [3, 4]], "i4")
    >>> cw.asarray(w) is w
    True
    >>> cw.asarray(w.numpy()[1]).numpy().tolist()
    [3, 4]
    """
    if order not in ("C", "F", "A", "K"):
        raise ValueError(f"order is 'C', 'F', 'A' or 'K', not {order!r}")
    place = None if device is None else resolve(device)
    dtype = None if dtype is None else words.dtype_of(dtype)
    if shape is not None and not _is_shared_memory(obj):
        raise ValueError("shape= is only for a SharedMemory; reshape the array instead")
    if leases.has_masked(obj):
        raise TypeError(
            "a masked array's mask would be lost; put array.filled(), and the mask as an array of its own"
        )
    if evictable:
        return _evictable(obj, dtype, order, copy, place)
    return _shared(obj, dtype, shape, order, copy, place)


def _shared(
    obj: Any,
    dtype: _DType | None,
    shape: Any,
    order: str,
    copy: bool | None,
    place: str | None,
    ordered: set[tuple[int, int]] | None = None,
) -> Array:
    """`asarray` of what was looked at. ordered: see _of_external."""
    if isinstance(obj, Array) and obj._on_gpu():
        return _of_gpu_array(obj, dtype, copy, place)
    told = None if isinstance(obj, Array) else interop.external_array(obj)
    if told is not None:
        return _of_external(told, dtype, copy, place, ordered)
    if place is not None and place != "cpu":
        if copy is False:
            raise ValueError(
                f"copy=False, but moving an array from host memory to {place} needs a copy; leave copy out"
            )
        return copies.from_host(Array, _converted(obj, dtype), place, order)
    return _of_host(obj, dtype, shape, order, copy)


def _evictable(
    obj: Any, dtype: _DType | None, order: str, copy: bool | None, place: str | None
) -> Array:
    if copy is False:
        raise ValueError("copy=False, but an evictable array is always a new copy; leave copy out")
    found = asarray(obj, dtype, order=order) if isinstance(obj, Array) else None
    if found is None and interop.external_array(obj) is None:
        values = _converted(obj, dtype)
        layout = layouts.like(values, order)
        made = arrays.new(layout, device=place or "cpu", evictable=True)
        copies.assign(made, values)
        return made
    if found is None:
        found = asarray(obj, dtype, device=place)
    made = arrays.new(found._layout_now(), device=place or found.device, evictable=True)
    copies.assign(made, found)
    return made


def _of_gpu_array(obj: Array, dtype: _DType | None, copy: bool | None, place: str | None) -> Array:
    if dtype is not None and words.are_bytes(dtype, obj.dtype):
        obj = _viewed(obj, dtype)
    elif dtype is not None and not words.same(dtype, obj.dtype):
        raise TypeError(
            f"from {words.name(obj.dtype)} to {words.name(dtype)}: only the host converts numbers; "
            "copy the array with .to('cpu') first"
        )
    if place is None or place == obj.device:
        found = None if copy else _here(obj, copy is False)
        return found if found is not None else obj.copy()
    if copy is False:
        raise ValueError(
            f"copy=False, but moving an array from {obj.device} to {place} needs a copy; leave copy out"
        )
    return obj.to(place)


def _of_external(
    told: interop.ExternalArray,
    dtype: _DType | None,
    copy: bool | None,
    place: str | None,
    ordered: set[tuple[int, int]] | None = None,
) -> Array:
    """An array of ours of another library's. ordered: memory and streams between which the order is made already, to which this
    one is added: who takes many arrays in one piece of memory orders once.
    """
    if dtype is not None and words.are_bytes(dtype, told.layout.dtype):
        told.layout = Layout(told.layout.shape, dtype, told.layout.strides)
    elif dtype is not None and not words.same(dtype, told.layout.dtype):
        raise TypeError(
            f"from {words.name(told.layout.dtype)} to {words.name(dtype)}: only the host converts numbers; "
            "convert the array with its own library first"
        )
    stays = place is None or place == f"cuda:{told.gpu}"
    lease = None
    if told.layout.size and stays and not copy:
        lease = interop.find(told.low) or suballocation.lend(told, insist=copy is False)
        if lease is None and copy is False:
            lease = suballocation.borrow(told)
    if lease is not None:
        found = arrays.make(lease, told.layout, told.address - lease.address)
        if told.stream is None or told.readonly or lease.readonly:
            told.ready()  # also of what was published, whose library may have it writable still
            return found
        here = lease.address, told.stream
        if ordered is None or here not in ordered:
            with found.writing(told.stream):  # what its library had begun on it comes first
                pass
            if ordered is not None:
                ordered.add(here)
        return found
    if copy is False and told.layout.size:
        raise ValueError(
            f"copy=False, but moving an array from cuda:{told.gpu} to {place} needs a copy; leave copy out"
        )
    return copies.from_external(Array, told, place)


def _of_host(obj: Any, dtype: _DType | None, shape: Any, order: str, copy: bool | None) -> Array:
    if _is_shared_memory(obj):
        return _from_shared_memory(obj, dtype, shape, order, copy)
    if isinstance(obj, Array) and dtype is not None and words.are_bytes(dtype, obj.dtype):
        obj = _viewed(obj, dtype)
    values = obj._exact() if isinstance(obj, Array) else _values(obj, dtype)
    converted = dtype is not None and not isinstance(obj, (Array, np.ndarray))
    kind = values.dtype if dtype is None or converted else dtype
    if words.are_bytes(kind, values.dtype):
        values = values.view(kind)
    serves = words.same(kind, values.dtype) and (
        order in ("K", "A")
        or (order == "C" and values.flags.c_contiguous)
        or (order == "F" and values.flags.f_contiguous)
    )
    if not copy and serves:
        found = _without_copy(obj, values, copy is False)
        if found is not None:
            return found
    if copy is False:
        _refuse(values, kind, serves)
    return _copied(values, kind, order)


def _values(obj: Any, dtype: _DType | None) -> np.ndarray[Any, Any]:
    """obj as NumPy has it; of that dtype, if it has none of its own that could be converted without a copy between."""
    of_library = capsules.host_values(obj)
    if of_library is not None:
        return of_library if dtype is None else _cast(of_library, dtype)
    if (
        hasattr(obj, "__dlpack__")
        and not hasattr(obj, "__array__")
        and not hasattr(obj, "__array_interface__")
    ):
        obj = np.from_dlpack(obj)
        return obj if dtype is None else np.asarray(obj, dtype)
    if isinstance(obj, np.ndarray):
        return np.asarray(obj)
    return _converted(obj, dtype)


def _cast(values: np.ndarray[Any, Any], dtype: _DType) -> np.ndarray[Any, Any]:
    if words.are_bytes(values.dtype, dtype):
        return values.view(dtype)
    words.check_cast(values.dtype, dtype)
    return values.astype(dtype, copy=False)


def _viewed(obj: Array, dtype: _DType) -> Array:
    """The same memory with another dtype of the same size."""
    layout = obj._layout_now()
    return arrays.make(obj._open_lease(), Layout(layout.shape, dtype, layout.strides), obj._offset)


def _converted(obj: Any, dtype: _DType | None) -> np.ndarray[Any, Any]:
    """numpy.asarray. Where that makes one element of obj, the object itself, the error says what obj is and what to do."""
    of_library = capsules.host_values(obj)
    if of_library is not None:
        return of_library if dtype is None else _cast(of_library, dtype)
    if dtype is not None and dtype.metadata is not None and words.word(dtype):
        listed = words.raw(dtype) != dtype and not isinstance(obj, np.ndarray)
        return _cast(np.asarray(obj, words.raw(dtype) if listed else None), dtype)
    found = np.asarray(obj, dtype)
    if found.dtype != object or found.shape or isinstance(obj, np.ndarray):
        return found
    what = "None" if obj is None else f"this {type(obj).__name__}"
    if hasattr(obj, "toarray") and hasattr(obj, "nnz"):
        remedy = "put the arrays that it consists of (of CSR: data, indices, indptr), or .toarray()"
    elif isinstance(obj, Mapping):
        remedy = "cableway.put(name, it) makes a tree of the arrays in it"
    elif isinstance(obj, Iterable):
        remedy = "make a list or an array of it first"
    else:
        remedy = "objects go through a Pool, a Queue or cableway.constant"
    raise TypeError(f"NumPy makes no array of numbers or text of {what}; {remedy}")


def _refuse(values: np.ndarray[Any, Any], kind: np.dtype[Any], serves: bool) -> None:
    if serves:
        raise ValueError(
            "copy=False, but this memory is neither cableway's nor a SharedMemory's, so that others could not "
            "see it; leave copy out, or make the array with cableway.empty() from the start"
        )
    raise ValueError(
        f"copy=False, but converting {words.name(values.dtype)} to {words.name(kind)} in that order needs a copy; leave copy out"
    )


def _copied(values: np.ndarray[Any, Any], kind: np.dtype[Any], order: str) -> Array:
    layout = layouts.like(values, order)
    if not words.same(kind, values.dtype):
        if kind.itemsize == 0 or kind.subdtype is not None:
            values = values.astype(kind)
            layout = layouts.like(values, order)
        else:
            steps = layouts.like(np.empty_like(values, dtype=kind, order=order), order).strides  # type: ignore[call-overload]
            layout = Layout(values.shape, kind, steps)
    return copies.of_values(Array, values, layout)


def _without_copy(obj: Any, values: np.ndarray[Any, Any], insist: bool) -> Array | None:
    """An Array on the memory of values if it is ours, or (insist) if it lies in /dev/shm."""
    if isinstance(obj, Array):
        return _here(obj, insist)
    lease = leases.find(values)
    if lease is not None:
        offset = values.__array_interface__["data"][0] - lease.address if values.size else 0
        found = arrays.make(lease, Layout(values.shape, values.dtype, values.strides), offset)
        return _here(found, insist)
    if not insist or not values.size:
        return None
    place = leases.shared_memory_of(values)
    if place is None:
        return None
    path, begin = place
    low = leases.bounds(values)[0]
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        span = leases.bounds(values)[1] - low
        raw = _adopt(fd, begin, Layout((span,), np.dtype(np.uint8)))
    finally:
        os.close(fd)
    offset = values.__array_interface__["data"][0] - low
    return arrays.make(raw, Layout(values.shape, values.dtype, values.strides), offset)


def _here(found: Array, insist: bool) -> Array | None:
    """found for the connection that this process has now; None when only a copy can get there."""
    lease = found._open_lease()
    connection = client.current()
    pointer = usable(lease)
    if lib.cw_array_client(pointer) == connection.pointer:
        return found
    if lib.cw_client_instance(lib.cw_array_client(pointer)) == connection.instance:
        handle = exported(pointer, 1)
        raw = Layout((lease.span()[1],), np.dtype(np.uint8))
        flags = lib.CW_READONLY if lease.readonly else 0
        opened = lease_again(Lease, lib.cw_array_open, connection.pointer, handle, raw.c, flags)
        layout = found._layout_now()
        return arrays.make(opened, layout, found._offset, found._name)
    if insist:
        raise ValueError(
            "copy=False, but this array belongs to another broker than the one that this process speaks with "
            f"now ({connection.address}); leave copy out"
        )
    return None


def _is_shared_memory(obj: object) -> bool:
    module = sys.modules.get("multiprocessing.shared_memory")  # who has one has imported it
    return module is not None and isinstance(obj, module.SharedMemory)


def _from_shared_memory(
    obj: Any, dtype: _DType | None, shape: Any, order: str, copy: bool | None
) -> Array:
    kind = np.dtype(np.uint8) if dtype is None else dtype
    dtypes.encode(kind)  # refuses what cannot be shared before anything is measured
    if shape is None:
        if kind.itemsize == 0 or obj.size % kind.itemsize:
            raise ValueError(
                f"SharedMemory {obj.name!r} of {obj.size} bytes is no whole number of {words.name(kind)}; give shape="
            )
        shape = obj.size // kind.itemsize
    layout = _layout(shape, kind, "F" if order == "F" else "C")
    if layout.nbytes > obj.size:
        raise ValueError(
            f"SharedMemory {obj.name!r} has {obj.size} bytes, and an array of shape {layout.shape} and dtype "
            f"{layout.dtype} needs {layout.nbytes}"
        )
    if copy:
        values = np.ndarray(layout.shape, layout.dtype, obj.buf, 0, layout.strides)
        return _copied(values, values.dtype, "K")
    fd = getattr(obj, "_fd", -1)
    if fd < 0:
        raise ValueError(f"SharedMemory {obj.name!r} is closed; attach to it again and put that")
    return arrays.make(_adopt(fd, 0, layout), layout) if layout.nbytes else arrays.new(layout)


def _adopt(fd: int, offset: int, layout: Layout) -> Lease:
    pointer = client.current().pointer
    return lease_again(Lease, lib.cw_array_adopt, pointer, fd, offset, layout.c)
