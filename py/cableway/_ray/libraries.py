"""Arrays of PyTorch and NumPy as bytes, and back.

What arrives has the shape, the dtype and the values of what was sent. It is contiguous: a NumPy array in Fortran's order stays so. A tensor
of PyTorch arrives as a plain one, which needs no gradient.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Form", "address_of", "copy_into", "device_of", "form_of", "host_bytes", "made"]


class Form(NamedTuple):
    """What makes bytes an array again.

    Attributes:
        library: "torch" or "numpy".
        order: of NumPy's, "C" or "F".
    """

    library: str
    shape: tuple[int, ...]
    dtype: Any
    order: str


def _is_torch(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "torch"


def device_of(array: Any) -> str:
    """Where it lies, as Ray writes it: "cpu", "cuda" or another type of PyTorch's."""
    return str(array.device.type) if _is_torch(array) else "cpu"


def form_of(array: Any) -> Form:
    """Of an array.

    Raises:
        TypeError: it has no bytes that could be shared.
    """
    if _is_torch(array):
        torch = sys.modules["torch"]
        if array.layout is not torch.strided or array.is_quantized:
            raise TypeError(
                f"cableway cannot share a tensor of layout {array.layout} and dtype {array.dtype}; return a dense one, `x.to_dense()`"
            )
        if array.device.type != "cpu":
            raise TypeError(
                f"cableway cannot share a tensor on {array.device} with Ray; return `x.cpu()`"
            )
        return Form("torch", tuple(array.shape), array.dtype, "C")
    if not isinstance(array, np.ndarray):
        raise TypeError(f"cableway shares tensors of PyTorch and NumPy arrays, not {type(array)}")
    if array.dtype.hasobject:
        raise TypeError(
            f"cableway cannot share an array of dtype {array.dtype}, whose elements are Python objects; return it as a list, or by a "
            "method without tensor_transport"
        )
    flags = array.flags
    return Form(
        "numpy",
        array.shape,
        array.dtype,
        "F" if flags.f_contiguous and not flags.c_contiguous else "C",
    )


def host_bytes(array: Any) -> np.ndarray[Any, Any]:
    """All its bytes in the order of its form, a view where it has no gaps."""
    if _is_torch(array):
        plain = array.detach().resolve_conj().resolve_neg().contiguous()
        found: np.ndarray[Any, Any] = plain.reshape(-1).view(sys.modules["torch"].uint8).numpy()
        return found
    plain = array.T if form_of(array).order == "F" else array
    if not plain.nbytes:
        return np.empty(0, "u1")
    return np.ascontiguousarray(plain).reshape(-1).view("u1")


def made(memory: np.ndarray[Any, Any], form: Form) -> Any:
    """The array, on that memory.

    Args:
        memory: writeable bytes, as many as it has.
    """
    if form.library == "numpy":
        if not memory.size:
            return np.empty(form.shape, form.dtype, form.order)  # type: ignore[call-overload]
        return memory.view(form.dtype).reshape(form.shape, order=form.order)
    import torch

    if not memory.size:
        return torch.empty(form.shape, dtype=form.dtype)
    return torch.from_numpy(memory).view(form.dtype).reshape(form.shape)


def address_of(array: Any) -> tuple[int, int]:
    """Of an array in host memory without gaps: its first byte, and how many it has. Others have 0 bytes."""
    if _is_torch(array):
        there = array.device.type == "cpu" and array.is_contiguous()
        return array.data_ptr(), array.numel() * array.element_size() if there else 0
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"shared_bytes() takes a tensor or a NumPy array, not {type(array).__name__}"
        )
    flags = array.flags
    there = flags.c_contiguous or flags.f_contiguous
    return array.__array_interface__["data"][0], array.nbytes if there else 0


def copy_into(target: Any, array: Any) -> None:
    """Copies an array into one of the same form, on whatever device that lies."""
    if _is_torch(target):
        target.detach().copy_(array)
    else:
        target[...] = array
