"""Numba's device arrays in cableway's memory: `use()`.

For example::

    from numba import cuda
    import cableway as cw, cableway.numba

    cableway.numba.use()
    x = cuda.device_array(1000)     # lies in cableway's memory
    cw.put("x", x)                  # shared with no copy
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from cableway._cuda import allocator_hooks
from cableway.errors import LimitExceeded

__all__ = ["use"]

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_users = 0  # use() without its end


def _device_pointer(driver: Any, address: int) -> Any:
    """An address in the type that this version of Numba uses."""
    if not getattr(driver, "USE_NV_BINDING", True):
        return driver.drvapi.cu_device_ptr(address)
    from cuda.bindings.driver import CUdeviceptr

    return CUdeviceptr(address)


@functools.cache
def _manager() -> Any:
    """The plug-in class for Numba's memory management (EMM, interface version 1). Made at first use, since its base is Numba's."""
    from numba import cuda
    from numba.cuda.cudadrv import driver

    class Manager(driver.NumbaCUDAMemoryManager):  # type: ignore[misc]
        """Takes device memory from cableway while `use` is in effect, else from Numba's own manager."""

        def memalloc(self, size: int) -> Any:
            """Allocates bytes on the context's GPU."""
            if not _users:
                return super().memalloc(size)
            gpu = self.context.device.id

            def allocator() -> int:
                try:
                    return allocator_hooks.allocate(size, gpu)
                except LimitExceeded as error:
                    raise driver.CudaAPIError(_OUT_OF_MEMORY, str(error)) from error

            address = self._attempt_allocation(allocator)
            return cuda.MemoryPointer(
                weakref.proxy(self.context),
                _device_pointer(driver, address),
                size,
                finalizer=functools.partial(allocator_hooks.free, address, gpu),
            )

        def get_ipc_handle(self, memory: Any) -> Any:
            """Raises: memory of cableway has no CUDA IPC handle."""
            if _users:
                raise NotImplementedError(
                    "cableway's memory has no CUDA IPC handle; share the array by name: cableway.put(name, x)"
                )
            return super().get_ipc_handle(memory)

    return Manager


def use() -> allocator_hooks.Use:
    """From now on Numba allocates GPU memory from cableway, in all threads and on all GPUs.

    If you put such an array (or send it through a Pool as `cableway.asarray(x)`), it is shared without a copy. Its memory stays
    as long as a process uses it, even if Numba's array is gone. Call this before Numba first uses a GPU, since a context of Numba
    keeps its memory manager.

    Returns:
        Use: its end(), or the end of its `with` block, lets Numba allocate as before; arrays stay valid.

    Raises:
        ImportError: Numba is not installed.
        RuntimeError: Numba has used a GPU already, with another memory manager.
        BrokerLost: no broker could be reached or started.

    If GPU memory is full, Numba raises its own `CudaAPIError` (CUDA_ERROR_OUT_OF_MEMORY).
    """
    global _users
    from numba import cuda

    allocator_hooks.begin()
    cuda.set_memory_manager(_manager())
    if not isinstance(cuda.current_context().memory_manager, _manager()):
        raise RuntimeError(
            "Numba has used the GPU already, with its own memory manager; call cableway.numba.use() before that, "
            "or numba.cuda.close() first"
        )
    _users += 1

    def end() -> None:
        global _users
        _users -= 1

    return allocator_hooks.Use(end)
