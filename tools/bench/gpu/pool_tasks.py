"""What the workers of bench_gpu_pool run."""

from __future__ import annotations

import functools
import os
from multiprocessing import shared_memory
from typing import Any

import numpy as np
from gpu import driver
from gpu.kernel import Busy


@functools.cache
def busy() -> Busy:
    """The kernel in this worker."""
    return Busy("double" in os.environ.get("CABLEWAY_CUDA_DRIVER", ""))


def ends_of(address: int, nbytes: int) -> tuple[int, int]:
    """The first and the last byte of GPU memory."""
    found = np.zeros(2, "u1")
    for i, at in enumerate((address, address + nbytes - 1)):
        driver.call(
            "cuMemcpyDtoH_v2",
            driver.ctypes.c_void_p(found.ctypes.data + i),
            driver.ctypes.c_uint64(at),
            driver.ctypes.c_size_t(1),
        )
    return int(found[0]), int(found[1])


def size(x: Any) -> int:
    """Of an array of ours: one that is opened, as every library does it."""
    assert x.__cuda_array_interface__["data"][0]
    return int(x.nbytes)


def size_by_torch(x: Any) -> int:
    """The same with a tensor of torch's, or an array that becomes one."""
    import torch

    tensor = x if isinstance(x, torch.Tensor) else torch.from_dlpack(x)
    return int(tensor.numel())


def total_by_torch(x: Any) -> int:
    """The sum of all bytes."""
    import torch

    tensor = x if isinstance(x, torch.Tensor) else torch.from_dlpack(x)
    return int(tensor.sum())


def words_for(seconds: float) -> int:
    """The kernel's size for so long, on this worker's GPU."""
    return busy().words_for(seconds)


def compute(x: Any, words: int) -> tuple[int, int]:
    """The kernel, and what x holds at its ends."""
    busy().run(words)
    return ends_of(x.__cuda_array_interface__["data"][0], x.nbytes)


def spend(words: int) -> int:
    """The kernel alone."""
    busy().run(words)
    return words


def compute_named(name: str, nbytes: int, words: int) -> tuple[int, int]:
    """As people write it today: the input in shared memory by name, a copy, the kernel."""
    target = _memory(nbytes)
    driver.copy("HtoD", target, _attached(name), nbytes, busy()._stream)
    busy().run(words)
    return ends_of(target, nbytes)


@functools.cache
def _memory(nbytes: int) -> int:
    busy()
    return driver.memory(nbytes)


@functools.cache
def _attached(name: str) -> int:
    opened = shared_memory.SharedMemory(name)
    _kept.append(opened)
    return int(np.frombuffer(opened.buf, "u1").__array_interface__["data"][0])


_kept: list[Any] = []
