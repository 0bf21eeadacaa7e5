"""Batches of joblib's tasks on their way to a worker and back: pickled in the parent, run in the worker, large arrays shared.

The parent pickles in the thread that submits, under joblib's lock for dispatching: one batch at a time.
"""

from __future__ import annotations

import copyreg
import functools
import io
import mmap
import os
import pickle
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from joblib.parallel import BatchedCalls

from cableway._core.leases import bounds
from cableway._core.words import word
from cableway.array import Array, open_handle
from cableway.create import asarray

__all__ = ["Batches", "Failed", "SharedArrays", "run"]

_REFUSALS = (pickle.PicklingError, AttributeError, TypeError)
_AGAIN_BYTES = 64 << 10  # smaller arrays go along with each batch
_OWN = "own"  # how a task sees an array that is shared to save memory alone: as a copy of its own
_WORDS = {nbytes: f"u{nbytes}" for nbytes in (1, 2, 4, 8)}


# ---- arrays that many tasks get


class SharedArrays:
    """The arrays of one call, each put into shared memory once. They go when their originals do, or at the call's end.

    Args:
        readonly: whether tasks map them read-only.
    """

    def __init__(self, readonly: bool) -> None:
        self._readonly = readonly
        # None: such a part was seen once.
        self._owners: dict[int, tuple[weakref.ref[Any], dict[Any, Array | None]]] = {}

    def share(self, values: np.ndarray[Any, Any]) -> Array:
        """The shared array with the contents of values; the same for the same part of the same memory."""
        shared, key = self._shared_parts(values)
        found = shared.get(key)
        if found is None:
            found = asarray(values)
            if self._readonly and not found.readonly:
                state = list(found.reduce(transit=False)[1])
                state[5] = True
                found = open_handle(*state)
            shared[key] = found
        return found

    def _shared_parts(self, values: np.ndarray[Any, Any]) -> tuple[dict[Any, Array | None], Any]:
        """What is shared of the memory in which an array lies, by its parts, and which part the array is."""
        owner = values
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        ident, owners = id(owner), self._owners
        entry = owners.get(ident)
        if entry is None or entry[0]() is not owner:
            entry = owners[ident] = (weakref.ref(owner, lambda _: owners.pop(ident, None)), {})
        address = values.__array_interface__["data"][0]
        kind = (values.dtype, word(values.dtype))
        return entry[1], (address, values.shape, values.strides, kind)

    def share_again(self, values: np.ndarray[Any, Any]) -> Array | None:
        """The same for an array that tasks get as it is when they are submitted. None the first time.

        Whoever submits may change it from one task to the next: what was shared is looked at, and put anew if it differs.
        """
        words = _WORDS.get(values.dtype.itemsize)
        if words is None:
            return None
        shared, key = self._shared_parts(values)
        if key not in shared:
            shared[key] = None
            return None
        found = shared[key]
        # Bit by bit: nan is the same as itself, and -0.0 another than 0.0.
        if found is None or not np.array_equal(found.numpy().view(words), values.view(words)):
            found = shared[key] = asarray(values, copy=True)
        return found

    def clear(self) -> None:
        """The call has ended."""
        self._owners.clear()


class _Opened(threading.local):
    arrays: list[Any] | None = None


_opened = _Opened()


def _array_of_batch(number: int) -> Any:
    if _opened.arrays is None:
        raise pickle.UnpicklingError("a part of a batch was taken out of it")
    return _opened.arrays[number]


# ---- arrays in files


def _backing(values: np.ndarray[Any, Any]) -> np.memmap[Any, Any] | None:
    """The memmap on whose file an array is a view; None: its bytes are in no file that can be mapped again.

    Not for mode "c", whose changes are in no file, and for "r" only while there is the file: else it is shared as any other.
    """
    owner: Any = values
    while isinstance(owner, np.ndarray) and not isinstance(owner.base, mmap.mmap):
        owner = owner.base
    if not isinstance(owner, np.memmap) or owner.filename is None or owner.mode == "c":
        return None
    return owner if owner.mode != "r" or os.path.exists(owner.filename) else None


def _reduce_mapped(values: np.ndarray[Any, Any], backing: np.memmap[Any, Any]) -> Any:
    """Tasks map the same part of the same file: what they write there is the caller's, as with joblib's own backends."""
    low, high = bounds(values)
    address = values.__array_interface__["data"][0]
    offset = backing.offset + low - backing.__array_interface__["data"][0]
    order = "C" if values.flags.c_contiguous else "F" if values.flags.f_contiguous else None
    mode = "r+" if values.flags.writeable else "r"
    part = (values.shape, values.strides, address - low, high - low)
    return _map_again, (
        os.path.abspath(str(backing.filename)),
        mode,
        values.dtype,
        offset,
        order,
        part,
    )


def _map_again(
    path: str, mode: Any, dtype: Any, offset: int, order: Any, part: tuple[Any, ...]
) -> np.ndarray[Any, Any]:
    shape, strides, first, size_bytes = part
    if order is not None:
        return np.memmap(path, dtype, mode, offset, shape, order)
    lie: np.memmap[Any, Any] = np.memmap(path, np.uint8, mode, offset, size_bytes)
    found: np.ndarray[Any, Any] = np.ndarray(shape, dtype, lie, first, strides)
    return found


# ---- batches on their way to a worker, and their results back


class _Pickler(pickle.Pickler):
    """Notes which modules are named, and whether something that the workers do not have: their `__main__` is another one.

    What the pickle says does not tell: scikit-learn sends the filters of warnings along, where "__main__" is a word.
    """

    main = False
    modules: set[Any]

    def reducer_override(self, value: Any) -> Any:
        module = getattr(value, "__module__", None)
        if module == "__main__":
            self.main = True
        elif type(module) is str:
            self.modules.add(module)
        return NotImplemented


class Batches:
    """Pickles batches of tasks.

    Args:
        arrays: where large arrays go.
        min_bytes: how large they are; None: none is shared.
        mode: joblib's mmap_mode.

    Attributes:
        modules: those that batches have named so far.
    """

    def __init__(self, arrays: SharedArrays, min_bytes: int | None, mode: str | None) -> None:
        self._arrays = arrays
        self._min_bytes = min_bytes
        self._mode = mode
        self._nested: tuple[Any, Any, bytes] = (None, None, b"")
        self.modules: set[str] = set()

    def _parts(self, batch: Callable[[], Any]) -> tuple[Any, bytes]:
        """A batch's calls, and what they find as joblib's setting, pickled: that is the same for all batches."""
        if type(batch) is not BatchedCalls:
            return batch, b""
        reduced: Any = batch.__reduce__()
        calls, (backend, n_jobs), *_ = reduced[1]
        before = self._nested
        if before[0] is not backend or before[1] != n_jobs or backend is None:
            self._nested = before = (backend, n_jobs, pickle.dumps((backend, n_jobs), 5))
        return calls, before[2]

    def arguments(self, batch: Callable[[], Any]) -> tuple[Any, ...]:
        """What `run` gets, for a batch."""
        work, nested = self._parts(batch)
        found: list[tuple[Array, str | None]] = []

        def reduce_ndarray(values: np.ndarray[Any, Any]) -> Any:
            backing = _backing(values) if values.size else None
            if backing is not None:
                return _reduce_mapped(values, backing)
            small = self._min_bytes is None or values.nbytes < max(self._min_bytes, 1)
            shared = None
            if not small and not values.dtype.hasobject:
                shared = self._arrays.share(values), self._mode
            elif values.nbytes >= _AGAIN_BYTES and not values.dtype.hasobject:
                again = self._arrays.share_again(values)
                shared = None if again is None else (again, _OWN)
            if shared is None:
                return np.ndarray.__reduce_ex__(values, 5)
            found.append(shared)
            return _array_of_batch, (len(found) - 1,)

        def reduce_array(array: Array) -> Any:
            found.append((array, None))
            return _array_of_batch, (len(found) - 1,)

        own: dict[Any, Any] = {
            np.ndarray: reduce_ndarray,
            np.memmap: reduce_ndarray,
            Array: reduce_array,
        }
        buffers: list[pickle.PickleBuffer] = []
        out = io.BytesIO()
        by_value = False
        pickler = _Pickler(out, protocol=5, buffer_callback=buffers.append)
        pickler.dispatch_table = {**copyreg.dispatch_table, **own}
        pickler.modules = self.modules
        refusal = None
        try:
            pickler.dump(work)
            by_value = pickler.main
        except _REFUSALS as error:
            by_value, refusal = True, error
        if by_value:
            found.clear()
            buffers.clear()
            out = io.BytesIO()
            try:
                _pickle_by_value(work, out, own, buffers, refusal)
            finally:
                refusal = None  # its traceback holds this frame
        return out.getvalue(), buffers, found, by_value, nested


@functools.cache
def _cloud_pickler() -> Any:
    import cloudpickle

    # One class for all: a class is kept by itself until garbage is collected, and with it what its table names.
    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(
            self, out: io.BytesIO, own: dict[Any, Any], buffers: list[pickle.PickleBuffer]
        ) -> None:
            self.dispatch_table = {**cloudpickle.Pickler.dispatch_table, **own}
            super().__init__(out, protocol=5, buffer_callback=buffers.append)

    return Pickler


def _pickle_by_value(
    work: Any,
    out: io.BytesIO,
    own: dict[Any, Any],
    buffers: list[pickle.PickleBuffer],
    refusal: Exception | None,
) -> None:
    try:
        _cloud_pickler()(out, own, buffers).dump(work)
    except _REFUSALS:
        if refusal is None:
            raise
        raise refusal from None


class _ByValue:
    """A result whose classes may exist in the worker alone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        import cloudpickle

        buffers: list[pickle.PickleBuffer] = []
        data = cloudpickle.dumps(self.value, protocol=5, buffer_callback=buffers.append)
        return _read, (data, buffers)


def _read(data: bytes, buffers: list[Any]) -> Any:
    return pickle.loads(data, buffers=buffers)


class Failed:
    """An exception that came by value, and its traceback there."""

    def __init__(self, error: Exception, text: str) -> None:
        self.error = error
        self.text = text


_nested: tuple[bytes, Any] = (b"", None)  # in a worker: the setting that came last


def _batch_of(calls: Any, nested: bytes) -> Callable[[], Any]:
    global _nested
    if not nested:
        return calls  # type: ignore[no-any-return]
    if _nested[0] != nested:
        _nested = (nested, pickle.loads(nested))
    return BatchedCalls(calls, _nested[1])  # type: ignore[no-any-return]


def run(
    data: bytes,
    buffers: list[Any],
    arrays: list[tuple[Array, str | None]],
    by_value: bool,
    nested: bytes,
) -> Any:
    """Runs a batch in a worker."""
    before = _opened.arrays
    _opened.arrays = [_seen(array, mode) for array, mode in arrays]
    try:
        batch = _batch_of(pickle.loads(data, buffers=buffers), nested)
    finally:
        _opened.arrays = before
    del arrays
    if not by_value:
        return batch()
    try:
        return _ByValue(batch())
    except Exception as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        error.__traceback__ = None
        return _ByValue(Failed(error, text))


def _seen(array: Array, mode: str | None) -> Any:
    """An array as a task sees it; mode None: it was an Array."""
    if mode is None:
        return array
    if mode == _OWN:
        return np.array(array.numpy())
    return array.copy().numpy() if mode == "c" else array.numpy()
