"""GPU arrays and other libraries: what we show them, and what they show us.

Both sides speak the CUDA Array Interface (version 3), and DLPack where that cannot tell the dtype (bfloat16). Memory of
ours that went out is found again by its address when it comes back, so that no copy is made of what is shared already.
"""

from __future__ import annotations

import errno
import sys
from typing import Any

import numpy as np

from cableway import client
from cableway._core import capsules, dtypes, words
from cableway._core.layouts import Layout, contiguous, is_gapless
from cableway._core.leases import EvictableLease, Lease, lease_served
from cableway._core.library import check, check_again, ffi, lib
from cableway._cuda import stream_order

__all__ = [
    "ExternalArray", "external_array", "find", "interface", "is_shared", "lies_on_gpu", "no_host_view", "torch_stream",
]  # fmt: skip

_DLPACK_CUDA = 2
_LEGACY_STREAM = 1


def no_host_view(device: str) -> TypeError:
    """The error for whoever wants to look at GPU memory from the CPU."""
    return TypeError(
        f"the array lies on {device}, and the CPU cannot look at it there; copy it with "
        '.to("cpu").numpy(), or give it to a GPU library: cupy.asarray(w), torch.from_dlpack(w)'
    )


def find(address: int) -> Lease | None:
    """A lease on GPU memory of ours that holds an address, None if there is none."""
    pointer = client.current().pointer
    status, found = lease_served(Lease, lib.cw_memory_array, pointer, ffi.cast("void *", address))
    if status == -errno.ENOENT:
        return None
    check(status)
    return found


def is_shared(address: int) -> bool:
    """Whether an address lies in GPU memory of ours. Quick: where it does not, nothing is to be found there."""
    return bool(lib.cw_memory_is_shared(client.current().pointer, ffi.cast("void *", address)) > 0)


def uuid(lease: Lease) -> str:
    """The UUID of the GPU where memory of ours lies; "" on the host."""
    text = ffi.new("char[41]")
    lib.cw_array_device_uuid(lease.pointer, text)
    return str(ffi.string(text), "ascii")


def interface(lease: Lease, layout: Layout, offset: int) -> dict[str, Any]:
    """`__cuda_array_interface__` of an array. Inside `writing` or `reading` it names that stream, which the consumer then
    follows; else it waits until the last writer's work has passed, and stream is None. An evictable array then stays
    where it is for good, since nobody tells when the consumer is done with its address.

    Raises:
        AttributeError: it has none: host memory, or fields.
        ProducerDied: who wrote it last died before it was complete.
    """
    if lease.gpu < 0:
        raise AttributeError(
            "host memory has no __cuda_array_interface__; .to('cuda:0') copies it to a GPU"
        )
    if layout.dtype.names is not None:
        raise AttributeError(
            "__cuda_array_interface__ cannot describe structured dtypes; copy the array with .to('cpu')"
        )
    if words.word(layout.dtype):
        raise AttributeError(
            f"__cuda_array_interface__ cannot describe {words.name(layout.dtype)}; use DLPack: torch.from_dlpack(w)"
        )
    stream = stream_order.begun(lease)
    if stream is None:
        if isinstance(lease, EvictableLease):
            lease.lend()
        check_again(lib.cw_array_wait, lease.pointer, -1)
    low, _ = lease.span()
    return {
        "version": 3,
        "shape": layout.shape,
        "typestr": layout.dtype.str,
        "data": (low + offset if layout.size else 0, lease.readonly or layout.repeats),
        "strides": None if layout.is_contiguous("C") else layout.strides,
        "stream": stream,
    }


class ExternalArray:
    """GPU memory of another library, as its `__cuda_array_interface__` describes it, or DLPack."""

    __slots__ = ("address", "gpu", "layout", "owner", "readonly", "stream", "whole")

    def __init__(self, owner: Any, told: dict[str, Any]) -> None:
        if told.get("mask") is not None:
            raise ValueError(
                "the array has a mask, which shared memory cannot carry; fill the masked elements first"
            )
        dtype = np.dtype(told["typestr"])
        if dtype.kind == "V":
            raise TypeError(
                f"__cuda_array_interface__ of this {type(owner).__name__} says {told['typestr']!r}, which may be anything; "
                f"share its bytes, a view as uint8, and the dtype ({getattr(owner, 'dtype', 'unknown')}) beside it"
            )
        dtypes.encode(dtype)
        shape = tuple(told["shape"])
        strides = told.get("strides")
        self.owner = owner
        self.layout = Layout(
            shape, dtype, contiguous(shape, dtype.itemsize, "C") if strides is None else strides
        )
        self.address, self.readonly = told["data"]
        self.stream = told.get("stream")
        self.whole = told.get("version", 0) < 3
        if self.whole and _is_torch(owner):
            self.stream, self.whole = _stream_of(owner), False
        elif self.stream is None and not self.whole:
            # It says that nobody need wait. Numba says so of its default stream, where a copy from host memory may go on after the
            # call that began it (CUDA's "API synchronization behavior"); its own work comes after that by itself, and ours does not.
            self.stream = _LEGACY_STREAM
        if self.stream == 0:
            raise ValueError(
                "__cuda_array_interface__ names the stream 0, which is ambiguous; "
                "it must say 1 (the default stream) or 2 (the per-thread default stream)"
            )
        self.gpu = self._find_gpu()

    @classmethod
    def by_dlpack(cls, owner: Any) -> ExternalArray:
        """Of an array whose dtype `__cuda_array_interface__` cannot tell."""
        of_torch = _is_torch(owner)
        # PyTorch's work is ordered by the current stream; others let the one that is named here wait for theirs.
        stream = _stream_of(owner) if of_torch else _LEGACY_STREAM
        seen = capsules.look(owner, stream=-1 if of_torch else stream)
        self = cls.at(owner, seen.address, seen.layout)
        self.stream, self.readonly = stream, seen.readonly
        return self

    @classmethod
    def at(cls, owner: Any, address: int, layout: Layout, gpu: int | None = None) -> ExternalArray:
        """The same of what is known already, without a stream: whoever takes it orders the work by himself. gpu: where it lies, by
        this process's number; None: the driver is asked."""
        self = cls.__new__(cls)
        self.owner, self.address, self.layout = owner, address, layout
        self.readonly, self.stream, self.whole = False, None, False
        self.gpu = self._find_gpu() if gpu is None else gpu
        return self

    def _find_gpu(self) -> int:
        gpu = ffi.new("int *", -1)
        if self.layout.size:
            check(lib.cw_memory_gpu(ffi.cast("void *", self.address), gpu))
            if gpu[0] < 0:
                raise ValueError(
                    f"the address {self.address:#x}, which this {type(self.owner).__name__} gives, is not GPU memory"
                )
        return int(gpu[0])

    @property
    def low(self) -> int:
        """The address of the lowest byte."""
        return int(self.address) - self.layout.origin

    def ready(self) -> None:
        """Waits until what its maker had begun on it has passed, as the interface's rule for streams says.

        JAX names no stream although its work may not even be submitted: it is asked to wait.
        """
        submitted = getattr(self.owner, "block_until_ready", None)
        if submitted is not None:
            submitted()
        if self.layout.size and (self.whole or self.stream is not None):
            stream = ffi.cast("void *", self.stream or 0)
            check(lib.cw_stream_wait(self.gpu, stream, int(self.whole)))

    def check_gapless(self) -> None:
        """Refuses what cannot be copied in one piece, with the remedy."""
        if not is_gapless(self.layout):
            raise ValueError(
                f"the GPU array of shape {self.layout.shape} and strides {self.layout.strides} has gaps or "
                "overlaps, and is not copied piece by piece; make it contiguous first "
                "(cupy.ascontiguousarray(x), x.contiguous())"
            )


def _is_torch(obj: Any) -> bool:
    return type(obj).__module__.partition(".")[0] == "torch"


def torch_stream(torch: Any, gpu: int) -> int:
    """The number of PyTorch's current stream on a GPU."""
    # The public call makes an object of Python's each time, which takes as long as all the rest of a task.
    quick = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    number = torch.cuda.current_stream(gpu).cuda_stream if quick is None else quick(gpu)
    return int(number) or _LEGACY_STREAM


def _stream_of(tensor: Any) -> int:
    return torch_stream(sys.modules["torch"], tensor.get_device())


def _told(obj: Any) -> dict[str, Any] | None:
    """Its `__cuda_array_interface__`; None: it has none, or none for its dtype."""
    if capsules.of_torch(obj):
        return None  # PyTorch says "<V2", or raises KeyError
    return getattr(obj, "__cuda_array_interface__", None)


def lies_on_gpu(obj: Any) -> bool:
    """Whether an array of another library lies on a GPU."""
    if _told(obj) is not None:
        return True
    place = getattr(obj, "__dlpack_device__", None)
    return place is not None and place()[0] == _DLPACK_CUDA


def packed(tensor: Any, dtype: np.dtype[Any]) -> Any:
    """A tensor of PyTorch's with the dtype that an array of ours has; it came by its bytes where PyTorch refuses the dtype."""
    if not words.is_packed(dtype):
        return tensor
    import torch

    row = words.row(dtype)
    assert row is not None
    return tensor.view(getattr(torch, row.torch))


def external_array(obj: Any) -> ExternalArray | None:
    """What obj shows of GPU memory; None for what lies on the host.

    Raises:
        TypeError: it lies on a GPU, and its dtype is not known.
    """
    if isinstance(obj, (np.ndarray, np.generic, list, tuple, int, float, complex)):
        return None
    told = _told(obj)
    place = getattr(obj, "__dlpack_device__", None)
    if told is not None and (place is None or np.dtype(told["typestr"]).kind != "V"):
        return ExternalArray(obj, told)
    if place is not None and place()[0] == _DLPACK_CUDA:
        return ExternalArray.by_dlpack(obj)
    return None if told is None else ExternalArray(obj, told)
