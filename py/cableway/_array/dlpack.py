"""DLPack: capsules through which any array library takes our memory without a copy.

>>> import numpy as np, cableway as cw
>>> w = cw.asarray([1.5, 2.5])
>>> np.from_dlpack(w)
array([1.5, 2.5])
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cableway import _dlpack
from cableway._core import words
from cableway._core.leases import EvictableLease, Lease, Pin, show
from cableway._core.library import lib
from cableway._cuda import stream_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from cableway.array import Array

__all__ = ["Form", "device_of", "for_cupy", "form", "give", "has_passed", "on", "unknown"]

HOST = (1, 0)  # kDLCPU
CUDA = 2  # kDLCUDA
_READ_ONLY = 1
_IS_COPIED = 2


class Form(NamedTuple):
    """What DLPack says of an array besides where it is.

    Attributes:
        shape: elements along each axis.
        steps: strides in elements.
        code: what kind of number.
        bits: of one number.
        lanes: numbers of an element.
    """

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    code: int
    bits: int
    lanes: int


def unknown(dtype: np.dtype[Any]) -> BufferError:
    """The error for a dtype that DLPack cannot tell."""
    return BufferError(
        f"DLPack has no dtype for {dtype}; use cableway.Array.numpy(), or convert to a native number"
    )


def form(dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> Form:
    """Of an array with strides in bytes.

    Raises:
        BufferError: DLPack cannot tell the dtype or the strides.
    """
    return _form(dtype, words.word(dtype), shape, strides)


@functools.lru_cache(maxsize=256)
def _form(
    dtype: np.dtype[Any], word: str, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Form:
    """The same; word is there since dtypes that differ in it alone are equal to NumPy."""
    row = words.row(dtype)
    if row is None:
        raise unknown(dtype)
    if any(step % dtype.itemsize for step in strides):
        raise BufferError(
            "DLPack needs strides of whole elements, these are not; copy the array first"
        )
    steps = tuple(step // dtype.itemsize for step in strides)
    return Form(shape, steps, row.code, row.bits, row.lanes)


def has_passed(lease: Lease) -> bool:
    """Whether the last write of memory of ours is complete, so that a stream that reads it has nothing to wait for. Asks
    neither the driver nor anybody, and does not wait; False also where somebody is to be told that it never will be.
    """
    return bool(lib.cw_array_wait(lease.pointer, 0) == 0)


def on(lease: Lease, address: int, device: tuple[int, int], told: Form) -> object:
    """An unversioned capsule over writable memory that lease keeps. The consumer comes after the last write by itself."""
    return _dlpack.capsule(lease, address, device, *told, 0, False)


def device_of(lease: Lease) -> tuple[int, int]:
    """DLPack's type and number of the device where memory of ours lies."""
    gpu = lease.gpu
    return HOST if gpu < 0 else (CUDA, gpu)


def give(
    array: Array,
    stream: object,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> object:
    """`Array.__dlpack__`. The consumer's stream is made to wait for the array's last write where that is not complete;
    without a stream the CPU waits.

    Raises:
        BufferError: DLPack cannot tell this array, or another device is asked for than its own or the host.
        ValueError: the array is closed, or stream is given, which host memory has not.
    """
    source = array
    here = device_of(array._open_lease())
    wanted = here if dl_device is None else tuple(dl_device)
    if stream is not None and wanted == HOST:
        raise ValueError("host memory has no stream: stream must be None")
    if stream == 0:
        raise ValueError(
            "stream 0 is ambiguous; pass 1 (the default stream) or 2 (the per-thread default stream)"
        )
    if wanted != here:
        if wanted != HOST or copy is False:
            raise BufferError(f"the array lies on the device {here}, not on {wanted}")
        source = array.to("cpu")
    elif copy:
        source = array.copy()
    lease = source._open_lease()
    # Pinned before the look: what leaves and comes back between the two is written anew.
    owner = Pin(lease) if isinstance(lease, EvictableLease) else lease
    if lease.gpu >= 0:
        if stream_order.begun(lease) is not None:
            pass  # inside `writing` or `reading`: the stream has been made to wait
        elif stream is None or stream == -1:
            source.wait()
        elif not has_passed(lease):
            with source.reading(stream):  # the consumer's stream waits for the last write
                pass
    return _export(source, owner, max_version, copied=source is not array)


def for_cupy(array: Array) -> Callable[[], Any]:
    """`Array.__cupy_get_ndarray__`: how CuPy takes an array whose dtype `__cuda_array_interface__` cannot tell.

    Raises:
        AttributeError: it can, or the array lies on the host.
    """
    word = words.word(array._layout_now().dtype)
    if not word or array._open_lease().gpu < 0:
        raise AttributeError("__cuda_array_interface__ or __array__ tells this array")

    def taken() -> Any:
        try:
            return sys.modules["cupy"].from_dlpack(array)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"CuPy takes no {word} ({error}); torch.from_dlpack(w) does") from error

    return taken


_warned = False


def _warn_of_torch(array: Array) -> None:
    """Once a process: PyTorch takes a read-only array, and makes a tensor of it that says nothing of that."""
    global _warned
    frame = None if _warned or "torch" not in sys.modules else sys._getframe(4)
    if frame is None or frame.f_globals.get("__name__", "").partition(".")[0] != "torch":
        return
    _warned = True
    what = "the array" if array.name is None else f"the array {array.name!r}"
    happens = (
        "ends the process by SIGSEGV" if array.device == "cpu" else "changes it for every process"
    )
    warnings.warn(
        f"{what} is read-only, and PyTorch has no read-only tensors: writing to this one (t.add_(1)) {happens}. Use "
        "t.clone(), or get the array without readonly=True. This is said once",
        UserWarning,
        stacklevel=6,
    )


def _export(
    array: Array, owner: Lease | Pin, max_version: tuple[int, int] | None, *, copied: bool
) -> object:
    """A capsule over an array, which keeps its owner. Versioned if the consumer understands it.

    Raises:
        BufferError: DLPack cannot tell the dtype, the strides, or (unversioned) that it is read-only.
    """
    lease, layout = array._open_lease(), array._layout_now()
    told = form(layout.dtype, layout.shape, layout.strides)
    versioned = max_version is not None and max_version[0] >= 1
    readonly = lease.readonly or layout.repeats
    if readonly and not versioned:
        raise BufferError(
            "the array is read-only and the consumer's DLPack (before 1.0) cannot say so; "
            "copy it first, or get the array without readonly=True"
        )
    if readonly:
        _warn_of_torch(array)
    flags = (_READ_ONLY if readonly else 0) | (_IS_COPIED if copied else 0)
    address = lease.span()[0] + array._offset  # pinned, it stays there
    show(lease)
    return _dlpack.capsule(owner, address, device_of(lease), *told, flags, versioned)
