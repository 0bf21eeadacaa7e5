"""A stand-in for PyTorch in programs on the test double: tensors on cuda:0 and on the host that can be passed on."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
from gpu_standins import DriverMemory, look, read, write

strided = "strided"


class dtype:
    """`torch.dtype`."""

    def __init__(self, name: str, itemsize: int) -> None:
        self.name, self.itemsize = name, itemsize

    def __str__(self) -> str:
        return f"torch.{self.name}"


float32, int16, bfloat16 = dtype("float32", 4), dtype("int16", 2), dtype("bfloat16", 2)


class Tensor:
    """`torch.Tensor`: elements in C order unless it is a part."""

    layout = strided

    def __init__(
        self, owner: Any, address: int, shape: tuple[int, ...], kind: dtype, steps: Any = None
    ) -> None:
        self.owner, self.address, self.shape, self.dtype = owner, address, shape, kind
        self.requires_grad = False
        self.device = types.SimpleNamespace(
            type="cuda" if address else "cpu", index=0 if address else None
        )
        whole = np.empty(shape, f"V{kind.itemsize}").strides
        self.steps = steps or tuple(step // kind.itemsize for step in whole)

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.address

    def stride(self) -> tuple[int, ...]:
        """Steps in elements."""
        return self.steps

    def element_size(self) -> int:
        """Bytes of one."""
        return self.dtype.itemsize

    def numel(self) -> int:
        """How many elements."""
        return int(np.prod(self.shape))

    def is_conj(self) -> bool:
        """Never."""
        return False

    is_neg = is_conj

    def detach(self) -> Tensor:
        """The same memory."""
        return Tensor(self.owner, self.address, self.shape, self.dtype, self.steps)

    def requires_grad_(self) -> Tensor:
        """Says so."""
        self.requires_grad = True
        return self

    def view(self, kind: dtype) -> Tensor:
        """The same bytes."""
        return Tensor(self.owner, self.address, self.shape, kind, self.steps)

    def contiguous(self) -> Tensor:
        """A copy in C order."""
        return tensor(self.cpu(), self.dtype)

    def __getitem__(self, key: slice) -> Tensor:
        begin, end, step = key.indices(self.shape[0])
        return Tensor(
            self.owner,
            self.address + begin * self.steps[0] * self.dtype.itemsize,
            (len(range(begin, end, step)), *self.shape[1:]),
            self.dtype,
            (self.steps[0] * step, *self.steps[1:]),
        )

    def cpu(self) -> np.ndarray:
        """Its values."""
        if not self.address:
            return self.owner
        span = sum((n - 1) * step for n, step in zip(self.shape, self.steps, strict=True)) + 1
        raw = read(self.address, (span,), _NUMPY[self.dtype.name])
        return np.lib.stride_tricks.as_strided(
            raw, self.shape, [s * self.dtype.itemsize for s in self.steps]
        ).copy()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype is bfloat16:
            raise TypeError("no type string for bfloat16")
        strides = tuple(step * self.dtype.itemsize for step in self.steps)
        typestr = np.dtype(_NUMPY[self.dtype.name]).str
        return {
            "version": 2,
            "shape": self.shape,
            "typestr": typestr,
            "data": (self.address, False),
            "strides": strides,
        }


_NUMPY = {"float32": "f4", "int16": "i2", "bfloat16": "i2"}


def tensor(values: Any, kind: dtype = float32, device: str = "cuda") -> Tensor:
    """A new tensor."""
    values = np.array(values, _NUMPY[kind.name], order="C")
    if device == "cpu":
        return Tensor(values, 0, values.shape, kind)
    memory = DriverMemory(values.nbytes)
    write(memory.ptr, values)
    return Tensor(memory, memory.ptr, values.shape, kind)


def from_dlpack(array: Any) -> Tensor:
    """A tensor on memory of ours: of an array, or of a capsule. The capsule goes with the tensor."""
    capsule = array
    if type(array).__name__ != "PyCapsule":
        capsule = array.__dlpack__(stream=_current[0] or 1, max_version=(1, 0))
    seen = look(capsule)
    kind = _OF_DLPACK[seen.dtype[:2]]
    return Tensor(capsule, seen.address, seen.shape, kind, seen.strides)


_OF_DLPACK = {(2, 32): float32, (0, 16): int16}
_current = [0]  # the current stream


def set_stream(number: int) -> None:
    """Makes a stream the current one."""
    _current[0] = number


cuda = types.SimpleNamespace(
    current_stream=lambda device: types.SimpleNamespace(cuda_stream=_current[0]),
    is_available=lambda: False,
)
_C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda gpu: _current[0])
