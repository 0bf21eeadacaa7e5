"""A stand-in for CuPy in programs on the test double: arrays on cuda:0 that can be passed on."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
from gpu_standins import Device, DriverMemory


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


def array(values: Any) -> ndarray:
    """A new array."""
    values = np.array(values, order="K")
    memory = DriverMemory(max(values.nbytes, 1))
    return ndarray(memory, memory.ptr, values)


def asarray(other: Any) -> ndarray:
    """An array on memory of ours."""
    told = other.__cuda_array_interface__
    made = ndarray.__new__(ndarray)
    made.memory, made.address, made.shape = other, told["data"][0], told["shape"]
    made.dtype = np.dtype(told["typestr"])
    made.strides = told["strides"] or np.empty(made.shape, made.dtype).strides
    made.size = int(np.prod(made.shape))
    return made


cuda = types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=0))
