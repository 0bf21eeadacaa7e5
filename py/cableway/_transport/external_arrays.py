"""GPU arrays of PyTorch and CuPy in the tasks and results of a Pool with devices: they are sent as handles, like our own.

On their own, both libraries pickle the values, through host memory, and PyTorch also the number of the GPU, which names another GPU in
a worker. Here the array becomes a `cableway.Array` whose handle is sent, and the task gets an array of the same library on that memory,
on its worker's GPU.

Whose memory that is:
    of cableway (cableway.torch.use() and so on)   the array's own: the caller sees what a task writes
    of the library, in an argument                 the array's own, borrowed (`suballocation.borrow`) as torch.multiprocessing does,
                                                   or one copy on the GPU: see Lender
    of the library, in a result                    one copy on the GPU, since the result must outlive the worker
Arrays that cannot be sent so (in host memory, sparse, empty) are pickled by their library.

Invariant: a lent array keeps its memory until the last process has let go of it, even if the caller's array is gone: the loan holds
another array on the same memory, never the caller's. What is remembered of an array (`_known`) is checked against the array, and its
memory against the driver, each time. If the parent dies, the arrays that it lent go with it, and its workers end, too. Order: a
worker's streams wait for the work that the array's current stream had been given when the task was sent (`cw_array_behind`), and the
answer comes when the worker's GPU has nothing left to do.
"""

from __future__ import annotations

import errno
import functools
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cableway import array as arrays
from cableway import client, create
from cableway._core import words
from cableway._core.layouts import Layout, is_gapless
from cableway._core.leases import Lease
from cableway._core.library import check, ffi, lib
from cableway._cuda import interop, suballocation
from cableway._transport.rebuilt_tensors import Rebuild, rebuild
from cableway.array import Array
from cableway.errors import LimitExceeded

__all__ = ["Lender", "changed", "changes", "is_external", "kinds", "reductions"]

_CLASSES = {"torch": "Tensor", "cupy": "ndarray"}
_LEGACY_STREAM = 1
_Reduction = Callable[[Any], Any]


_found: set[type] = set()


def kinds() -> list[tuple[str, type]]:
    """The classes of arrays of the libraries that this process has imported."""
    found = []
    for library, name in _CLASSES.items():
        kind = getattr(sys.modules.get(library), name, None)
        if isinstance(kind, type):
            found.append((library, kind))
    return found


_changes = 0


def changed() -> None:
    """What multiprocessing's pickler knows of these classes is not what it was (`cableway.torch.share`)."""
    global _changes
    _changes += 1


def changes() -> int:
    """How often that was."""
    return _changes


def is_external(kind: type) -> bool:
    """Whether it is one of those classes. Quick."""
    if kind in _found:
        return True
    if kind.__module__ not in _CLASSES or (kind.__module__, kind) not in kinds():
        return False
    _found.add(kind)
    return True


def reductions(known: dict[Any, _Reduction], lender: Lender) -> dict[type, _Reduction]:
    """How those are pickled.

    Args:
        known: how they would be otherwise, if not by themselves.
    """
    return {kind: partial(_reduce, lender, known.get(kind, _by_itself)) for _, kind in kinds()}


def _by_itself(obj: Any) -> Any:
    return obj.__reduce_ex__(5)


def _reduce(lender: Lender, otherwise: _Reduction, obj: Any) -> Any:
    found = lender.lend(obj)
    return otherwise(obj) if found is None else (rebuild, found)


# ---- what the libraries' arrays are


class _Seen(NamedTuple):
    """An array of a library.

    Attributes:
        alias: another one on its memory, without gaps and of a dtype that NumPy has.
        whole: it is that memory; False: a copy without gaps.
        layout: the alias's, which is a tensor on a GPU; None: to be asked for.
    """

    alias: Any
    how: Rebuild
    whole: bool
    layout: Layout | None


_WITHOUT_NUMPY = {
    1: "uint8",
    2: "int16",
    4: "int32",
}  # dtypes that NumPy lacks travel as these, by their bytes


@functools.lru_cache(maxsize=256)
def _torch_layout(dtype: Any, itemsize: int, shape: Any, steps: Any) -> tuple[str, Layout, bool]:
    """The name of a dtype if NumPy lacks it, else ""; a layout with a dtype that it has; and whether that has no gaps.

    Raises:
        TypeError: NumPy has no such dtype, and it is none that travels by its bytes.
    """
    name = str(dtype).partition(".")[2]
    row = words.of_torch(name)
    without = row is not None and row.dtype[0].isalpha()
    strides = tuple(step * itemsize for step in steps)
    layout = Layout(tuple(shape), np.dtype(_WITHOUT_NUMPY[itemsize] if without else name), strides)
    return name if without else "", layout, is_gapless(layout)


def _see_torch(torch: Any, tensor: Any) -> _Seen | None:
    odd = tensor.is_conj() or tensor.is_neg() or tensor.layout is not torch.strided
    if tensor.device.type != "cuda" or odd or not tensor.numel():
        return None
    plain, itemsize = tensor.detach(), tensor.element_size()
    try:
        dtype, layout, whole = _torch_layout(tensor.dtype, itemsize, plain.shape, plain.stride())
    except TypeError:
        return None  # quantized ones: pickled, as PyTorch does it
    if dtype:
        plain = plain.view(getattr(torch, _WITHOUT_NUMPY[itemsize]))
    how = ("torch", dtype, tensor.requires_grad)
    if not whole:
        return _Seen(plain.contiguous(), how, False, None)
    return _Seen(plain, how, True, layout)


def _torch_state(tensor: Any) -> Any:
    """What may change in place."""
    return (
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.requires_grad,
    )


def _see_cupy(cupy: Any, array: Any) -> _Seen | None:
    if not array.size or array.dtype.names is not None:
        return None
    whole = is_gapless(Layout(array.shape, array.dtype, array.strides))
    return _Seen(array.view() if whole else cupy.ascontiguousarray(array), ("cupy",), whole, None)


def _cupy_state(array: Any) -> Any:
    return array.data.ptr, array.shape, array.strides, array.dtype


def _cupy_stream(cupy: Any, gpu: int) -> int:
    return int(cupy.cuda.get_current_stream().ptr) or _LEGACY_STREAM


_SEE = {"torch": _see_torch, "cupy": _see_cupy}
_STATE = {"torch": _torch_state, "cupy": _cupy_state}
_STREAM = {"torch": interop.torch_stream, "cupy": _cupy_stream}


def _told(seen: _Seen) -> interop.ExternalArray | None:
    if seen.layout is None:
        return interop.external_array(seen.alias)
    alias = seen.alias
    return interop.ExternalArray.at(alias, alias.data_ptr(), seen.layout, alias.get_device())


# ---- what is lent


class _Known(NamedTuple):
    """An array of a library that was lent, for as long as it lives.

    Attributes:
        library: whose it is.
        gpu: where it lies, by this process's number.
        borrowed: its memory is the library's.
    """

    alive: weakref.ref[Any]
    library: str
    gpu: int
    state: Any
    connection: client.Connection
    borrowed: bool
    found: tuple[Array, Rebuild]


_known: dict[int, _Known] = {}  # by id of the library's array


class Lender:
    """Arrays of ours on the memory of other libraries' arrays. Any thread.

    Args:
        borrow: the libraries' own memory goes as it is: True; False: it is copied; None: PyTorch's goes as it
            is, as with torch.multiprocessing, and CuPy's is copied, as its pickle would be.
        copy: makes an array of ours with what an array without gaps holds; its second argument tells the number of
            the library's current stream on a GPU.

    Attributes:
        shared: arrays that went without a copy.
        copied: arrays that were copied: as borrow says, or since they have gaps, or the driver gives no handle for
            such memory (expandable segments, cudaMallocAsync).
    """

    __slots__ = ("_copy", "borrow", "copied", "shared")

    def __init__(
        self,
        borrow: bool | None,
        copy: Callable[[interop.ExternalArray, Callable[[int], int]], Array] = lambda told, _: (
            create.asarray(told.owner)
        ),
    ) -> None:
        self.borrow = borrow
        self._copy = copy
        self.copied = 0
        self.shared = 0

    def lend(self, obj: Any) -> tuple[Array, Rebuild] | None:
        """An array of ours with what a GPU array holds, and how it is made one of its library again. None: it is pickled
        as its library has it.

        Raises:
            LimitExceeded: no memory left for a copy.
            BrokerLost: the broker is gone.
            DeviceError: the GPU, or the work that the array was made by, has failed.
        """
        known = _known.get(id(obj))
        found = None
        if known is not None and known.alive() is obj:
            found = self._lend_known(known, obj)
        if found is None:
            library = type(obj).__module__
            module = sys.modules[library]
            if library == "torch" and obj.device.type != "cuda":
                return None
            seen = _SEE[library](module, obj)
            told = None if seen is None else _told(seen)
            if seen is None or told is None:
                return None
            found = self._lend_new(library, module, obj, seen.how, told) if seen.whole else None
            if found is None:
                self.copied += 1
                return self._copy(told, partial(_STREAM[library], module)), seen.how
        self.shared += 1
        return found

    def _lend_known(self, known: _Known, obj: Any) -> tuple[Array, Rebuild] | None:
        library = known.library
        if known.borrowed and not self._borrows(library):
            return None
        stands = known.connection is client.current() and known.state == _STATE[library](obj)
        if stands and _behind(known.found[0], _STREAM[library](sys.modules[library], known.gpu)):
            return known.found
        _known.pop(id(obj), None)
        return None

    def _lend_new(
        self, library: str, module: Any, obj: Any, how: Rebuild, told: interop.ExternalArray
    ) -> tuple[Array, Rebuild] | None:
        stream = _STREAM[library](module, told.gpu)
        for _ in range(2):
            lease, borrowed = self._lease_on(library, told)
            if lease is None:
                return None
            array = arrays.make(lease, told.layout, told.address - lease.address)
            if _behind(array, stream):
                found = array, how
                _remember(obj, library, told.gpu, borrowed, found)
                return found
        return None

    def _borrows(self, library: str) -> bool:
        return library == "torch" if self.borrow is None else self.borrow

    def _lease_on(self, library: str, told: interop.ExternalArray) -> tuple[Lease | None, bool]:
        """A lease on an array's own memory, if there may be one, and whether that is borrowed."""
        lease = None
        if interop.is_shared(told.low):
            lease = interop.find(told.low) or suballocation.lend(told, insist=False)
        if lease is not None or not self._borrows(library):
            return lease, False
        try:
            return suballocation.borrow(told), True
        except (
            ValueError,
            LimitExceeded,
        ):  # no handle for such memory; too many pieces of it are lent
            return None, False


def _behind(array: Array, stream: int) -> bool:
    """Puts it behind what the stream was given; False: its memory is not the library's any more."""
    lease, number = array._open_lease(), ffi.cast("void *", stream)
    while (status := lib.cw_array_behind(lease.pointer, number)) == -errno.EINTR:
        pass  # a signal was served
    if status == -errno.ESTALE:
        return False
    check(status)
    return True


def _remember(
    obj: Any, library: str, gpu: int, borrowed: bool, found: tuple[Array, Rebuild]
) -> None:
    state = _STATE[library](obj)
    key, loan = id(obj), suballocation.number_of(found[0]._open_lease())
    if loan is not None:
        suballocation.will_drop()

    def forget(alive: weakref.ref[Any]) -> None:
        known = _known.get(key)
        if known is not None and known.alive is alive:
            del _known[key], known
        if loan is not None:
            suballocation.collect_soon(loan)

    try:
        alive = weakref.ref(obj, forget)
        _known[key] = _Known(alive, library, gpu, state, client.current(), borrowed, found)
    except (
        TypeError
    ):  # of a version of its library without weak references: it is looked at anew each time
        return
