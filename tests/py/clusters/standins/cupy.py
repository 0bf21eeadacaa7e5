"""A stand-in for CuPy over the test double of the CUDA driver: what Dask and cableway.dask use of it, on the process's first GPU."""

from __future__ import annotations

import types
from typing import Any

import gpu_standins
import numpy as np

__version__ = "0"  # Dask then looks for CuPy's sparse matrices where there are none
dtype = np.dtype
empty_pools = 0  # how often memory that is kept was asked for


class _Pointer:
    """Where memory begins, and what keeps it."""

    def __init__(self, mem: Any, ptr: int) -> None:
        self.mem, self.ptr = mem, ptr


class ndarray:  # noqa: N801
    """`cupy.ndarray`."""

    def __init__(self, shape: Any, dtype: Any = "f8", memptr: Any = None, strides: Any = None):
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.size = int(np.prod(self.shape))
        self.nbytes = self.size * self.dtype.itemsize
        self.strides = tuple(strides or np.empty(self.shape, self.dtype).strides)
        if memptr is None:
            try:
                memory = gpu_standins.DriverMemory(max(self.nbytes, 1))
            except AssertionError as error:
                raise MemoryError(f"{self.nbytes} bytes of GPU memory: {error}") from error
            memptr = _Pointer(memory, memory.ptr)
        self.data = memptr

    @property
    def flags(self) -> dict[str, bool]:
        """In which orders it is contiguous."""
        seen = np.lib.stride_tricks.as_strided(np.empty(1, self.dtype), self.shape, self.strides)
        return {"C_CONTIGUOUS": seen.flags.c_contiguous, "F_CONTIGUOUS": seen.flags.f_contiguous}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data.ptr, False),
            "version": 3,
            "strides": self.strides,
            "stream": 1,
        }

    def get(self) -> np.ndarray:
        """Its values."""
        span = self.dtype.itemsize + sum(
            (n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)
        )
        raw = gpu_standins.read(self.data.ptr, (span if self.size else 0,), "u1")
        return np.ndarray(self.shape, self.dtype, raw, strides=self.strides)

    def set(self, values: Any) -> None:
        """Writes to it."""
        raw = np.empty(self.nbytes, "u1")
        np.ndarray(self.shape, self.dtype, raw, strides=self.strides)[...] = values
        if self.nbytes:
            gpu_standins.write(self.data.ptr, raw)


def array(values: Any, copy: bool = True) -> ndarray:
    """A new array."""
    values = values.get() if isinstance(values, ndarray) else np.array(values)
    order = "F" if values.flags.f_contiguous else "C"
    made = ndarray(values.shape, values.dtype, strides=np.empty(values.shape, values.dtype, order).strides)  # fmt: skip
    made.set(values)
    return made


def empty(shape: Any, dtype: Any = "f8") -> ndarray:
    """A new array without values."""
    return ndarray((shape,) if isinstance(shape, int) else shape, dtype)


def asnumpy(values: ndarray) -> np.ndarray:
    """Its values."""
    return values.get()


def asarray(other: Any) -> ndarray:
    """The same memory."""
    if isinstance(other, ndarray):
        return other
    told = other.__cuda_array_interface__
    where = _Pointer(other, told["data"][0])
    return ndarray(told["shape"], told["typestr"], where, told["strides"])


class _Device:
    """A GPU, and the current one."""

    def __init__(self, number: int = 0) -> None:
        self.id = number

    def __enter__(self) -> _Device:
        return self

    def __exit__(self, *error: object) -> None:
        pass


cuda = types.SimpleNamespace(Device=_Device)


def get_default_memory_pool() -> Any:
    """It keeps nothing."""

    def free_all_blocks() -> None:
        global empty_pools
        empty_pools += 1

    return types.SimpleNamespace(free_all_blocks=free_all_blocks)
