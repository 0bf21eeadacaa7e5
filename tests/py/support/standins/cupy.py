"""A stand-in for CuPy in programs on the test double: arrays on cuda:0 that can be passed on."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
from gpu_standins import Device, DriverMemory, look

from cableway import _dlpack
from cableway._core import words


class ndarray(Device):
    """`cupy.ndarray`."""

    def __init__(self, memory: Any, address: int, values: np.ndarray) -> None:
        super().__init__(memory, address, values.T if values.flags.f_contiguous else values)
        self.shape, self.strides, self.size = values.shape, values.strides, values.size

    @property
    def data(self) -> Any:
        """Where it lies."""
        return types.SimpleNamespace(ptr=self.address)

    def view(self) -> ndarray:
        """Another one on the same memory."""
        made = ndarray.__new__(ndarray)
        made.__dict__.update(self.__dict__)
        return made

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.told(version=3, stream=None, strides=self.strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, stream: int | None = None, **_: Any) -> object:
        row = words.row(self.dtype)
        steps = tuple(step // self.dtype.itemsize for step in self.strides)
        told = (row.code, row.bits, row.lanes)
        return _dlpack.capsule(self, self.address, (2, 0), self.shape, steps, *told, 0, False)


def array(values: Any) -> ndarray:
    """A new array."""
    values = np.array(values, order="K")
    memory = DriverMemory(max(values.nbytes, 1))
    return ndarray(memory, memory.ptr, values)


def asarray(other: Any) -> ndarray:
    """An array on memory of ours."""
    if not hasattr(other, "__cuda_array_interface__"):
        return other.__cupy_get_ndarray__()
    told = other.__cuda_array_interface__
    made = ndarray.__new__(ndarray)
    made.memory, made.address, made.shape = other, told["data"][0], told["shape"]
    made.dtype = np.dtype(told["typestr"])
    made.strides = told["strides"] or np.empty(made.shape, made.dtype).strides
    made.size = int(np.prod(made.shape))
    return made


def from_dlpack(other: Any) -> ndarray:
    """An array on memory of ours, of bfloat16 or what NumPy has."""
    seen = look(other.__dlpack__(stream=1))
    made = ndarray.__new__(ndarray)
    made.memory, made.address, made.shape = other, seen.address, seen.shape
    if seen.dtype[0] > 6:
        raise TypeError(f"float8 is not supported: {seen.dtype}")
    made.dtype = words.of_row(words.of_dlpack(*seen.dtype))
    made.strides = tuple(step * made.dtype.itemsize for step in seen.strides)
    made.size = int(np.prod(made.shape))
    return made


cuda = types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=0))
