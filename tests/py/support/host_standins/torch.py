"""A stand-in for PyTorch where it is not installed: tensors in host memory that can be passed on, over NumPy's arrays.

Its own pickle refuses, so that whoever uses it is seen.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np

strided = "strided"


class dtype:
    """`torch.dtype`, and how NumPy sees it."""

    def __init__(self, name: str, seen: str) -> None:
        self.name, self.seen = name, np.dtype(seen)

    def __str__(self) -> str:
        return f"torch.{self.name}"


float32, int16, uint8 = dtype("float32", "f4"), dtype("int16", "i2"), dtype("uint8", "u1")
bfloat16 = dtype("bfloat16", "i2")
_OF_NUMPY = {kind.seen: kind for kind in (float32, int16, uint8)}


class Tensor:
    """`torch.Tensor`."""

    layout, is_leaf = strided, True
    device = types.SimpleNamespace(type="cpu", index=None)

    def __init__(self, values: np.ndarray, kind: dtype, requires_grad: bool = False) -> None:
        self.values, self.dtype, self.requires_grad = values, kind, requires_grad

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("pickled as PyTorch has it")

    @property
    def shape(self) -> tuple[int, ...]:
        """As NumPy has it."""
        return self.values.shape

    def is_conj(self) -> bool:
        """Never."""
        return False

    is_neg = is_conj

    def detach(self) -> Tensor:
        """The same memory."""
        return Tensor(self.values, self.dtype)

    def element_size(self) -> int:
        """Bytes of one."""
        return self.values.itemsize

    def view(self, kind: dtype) -> Tensor:
        """The same bytes."""
        return Tensor(self.values, kind)

    def numpy(self) -> np.ndarray:
        """The same memory."""
        if self.dtype is bfloat16:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values[...]

    def requires_grad_(self) -> Tensor:
        """Says so."""
        self.requires_grad = True
        return self

    def tolist(self) -> list[Any]:
        """Its values."""
        found: list[Any] = self.values.tolist()
        return found

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.values[key], self.dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.values[key] = value


class Parameter(Tensor):
    """`torch.nn.Parameter`."""

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        super().__init__(data.values, data.dtype, requires_grad)


nn = types.SimpleNamespace(Parameter=Parameter)


def tensor(values: Any, dtype: dtype = float32) -> Tensor:
    """A new one."""
    return Tensor(np.array(values, dtype.seen), dtype)


def from_numpy(values: np.ndarray) -> Tensor:
    """The same memory."""
    assert values.flags.writeable, "PyTorch would warn"
    return Tensor(values, _OF_NUMPY[values.dtype])


def from_dlpack(array: Any) -> Tensor:
    """The same memory."""
    seen = np.from_dlpack(array)
    return Tensor(seen, _OF_NUMPY[seen.dtype])
