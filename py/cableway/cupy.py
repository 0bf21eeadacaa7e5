"""CuPy's arrays in cableway's memory: `use()`.

For example::

    import cupy, cableway as cw, cableway.cupy

    cableway.cupy.use()
    x = cupy.arange(1_000_000)      # lies in cableway's memory
    cw.put("x", x)                  # shared with no copy
"""

from __future__ import annotations

from cableway._cuda import allocator_hooks
from cableway.errors import LimitExceeded

__all__ = ["use"]

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


def _allocate(size: int, gpu: int) -> int:
    import cupy

    try:
        return allocator_hooks.allocate(size, gpu)
    except LimitExceeded as error:
        # CuPy's pool frees what it can on this one, tries again, and then raises its OutOfMemoryError.
        raise cupy.cuda.runtime.CUDARuntimeError(_OUT_OF_MEMORY) from error


def use() -> allocator_hooks.Use:
    """From now on CuPy allocates GPU memory from cableway, in all threads and on all GPUs.

    If you put such an array (or send it through a Pool as `cableway.asarray(x)`), it is shared without a copy. Its memory stays
    as long as a process uses it, even if CuPy's own array is gone. A memory pool of CuPy lies in between, so small arrays cost
    what they always cost.

    Returns:
        Use: its end(), or the end of its `with` block, restores CuPy's former allocator; arrays stay valid.

    Raises:
        ImportError: CuPy is not installed.
        BrokerLost: no broker could be reached or started.

    If GPU memory is full, CuPy raises its own `cupy.cuda.memory.OutOfMemoryError`.
    """
    import cupy

    allocator_hooks.begin()
    before = cupy.cuda.get_allocator()
    pool = cupy.cuda.MemoryPool(
        cupy.cuda.PythonFunctionAllocator(_allocate, allocator_hooks.free).malloc
    )
    cupy.cuda.set_allocator(pool.malloc)

    def end() -> None:
        cupy.cuda.set_allocator(before)
        pool.free_all_blocks()

    return allocator_hooks.Use(end)
