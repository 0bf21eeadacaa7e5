"""How a task of a Pool gets an array of PyTorch or CuPy on memory of cableway: `rebuild`, and `Maker` for many tensors of the
same form.

`Rebuild` in the message names the library, and has what a `cableway.Array` cannot say of the library's array. The array keeps the
lease. Order: the library's current stream waits for the last write of the memory, by `Array.__dlpack__` or
`__cuda_array_interface__`.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from cableway._array import dlpack
from cableway._core.library import check_again, ffi, lib
from cableway._cuda import interop

if TYPE_CHECKING:
    from cableway._core.layouts import Layout
    from cableway._core.leases import Lease
    from cableway.array import Array

__all__ = ["Maker", "Rebuild", "maker", "rebuild"]

Rebuild = tuple[Any, ...]  # library; of PyTorch a dtype that NumPy lacks (else ""), requires_grad


def rebuild(array: Array, how: Rebuild) -> Any:
    """An array of a library on memory of ours; at the other end."""
    library = _imported(how[0])
    return library.asarray(array) if how[0] == "cupy" else _tensor(library, array, how)


def _imported(name: str) -> Any:
    return sys.modules.get(name) or importlib.import_module(name)


def _tensor(torch: Any, given: Any, how: Rebuild) -> Any:
    _, dtype, requires_grad = how
    made = torch.from_dlpack(given)
    if dtype:
        made = made.view(getattr(torch, dtype))
    return made.requires_grad_() if requires_grad else made


class Maker:
    """Makes tensors of PyTorch's as `rebuild` does, of one form and one after the other: what they have in common is found
    out once. PyTorch's current stream waits for the last write; where that is complete, nobody is asked for a stream. Each
    is a tensor of its own, which keeps a lease of its own.

    Args:
        layout: theirs.
        how: of PyTorch.
        gpu: where their memory lies, by this process's number.

    Raises:
        BufferError: DLPack cannot tell such.
    """

    __slots__ = ("_device", "_form", "_how")

    def __init__(self, layout: Layout, how: Rebuild, gpu: int) -> None:
        self._form = dlpack.form(layout.dtype, layout.shape, layout.strides)
        self._device = (dlpack.CUDA, gpu)
        self._how = how

    def make(self, lease: Lease, offset: int) -> Any:
        """A tensor whose first element lies so many bytes behind the beginning of memory of ours, which can be written and is
        not evictable.

        Raises:
            ProducerDied: who wrote it last died before it was complete.
        """
        torch = _imported("torch")
        if not dlpack.has_passed(lease):
            stream = ffi.cast("void *", interop.torch_stream(torch, self._device[1]))
            check_again(lib.cwpy_follow, lease.pointer, stream)
        address = int(ffi.cast("uintptr_t", lib.cw_array_data(lease.pointer))) + offset
        capsule = dlpack.on(lease, address, self._device, self._form)
        return _tensor(torch, capsule, self._how)


def maker(layout: Layout, how: Rebuild | None, gpu: int) -> Maker | None:
    """Who makes such arrays; None: `rebuild` alone can."""
    if how is None or how[0] != "torch" or not layout.size:
        return None
    try:
        return Maker(layout, how, gpu)
    except BufferError:
        return None
