"""A stand-in for Numba, by which Dask deserializes CuPy's arrays: this file is `numba` and all parts of it that Dask uses."""

from __future__ import annotations

import sys
from typing import Any

import cupy
import numpy as np

__path__: list[str] = []  # a package, whose parts stand in sys.modules
cuda = cudadrv = devicearray = sys.modules[__name__]
for _name in ("cuda", "cuda.devicearray", "cuda.cudadrv", "cuda.cudadrv.devicearray"):
    sys.modules[f"numba.{_name}"] = sys.modules[__name__]


class DeviceNDArray(cupy.ndarray):
    """`numba.cuda.devicearray.DeviceNDArray`."""

    __module__ = "numba.cuda.devicearray"

    def __init__(self, shape: Any, dtype: Any, strides: Any = None, gpu_data: Any = None) -> None:
        super().__init__(shape, dtype, gpu_data, strides)
        self.gpu_data = self.data


def to_device(values: Any) -> DeviceNDArray:
    """A copy on the GPU."""
    values = np.asarray(values)
    made = DeviceNDArray(values.shape, values.dtype)
    made.set(values)
    return made


def as_cuda_array(other: Any) -> Any:
    """The same memory."""
    found = cupy.asarray(other)
    found.gpu_data = found.data
    return found


def get_current_device() -> Any:
    """The first one."""
    return cupy.cuda.Device()


def current_context() -> None:
    """Nothing to be kept."""
