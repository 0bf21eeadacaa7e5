"""PyTorch's tensors in cableway's memory: `use()`.

For example::

    import torch, cableway as cw, cableway.torch

    with cableway.torch.use():
        x = torch.zeros(1000, 1000, device="cuda")      # lies in a slab of cableway's
    cw.put("x", x)                                      # shared with no copy
"""

from __future__ import annotations

from typing import Any

from cableway import _cableway
from cableway._cuda import allocator_hooks

__all__ = ["use"]

_allocators: list[Any] = []  # one, for good: PyTorch calls it as long as a tensor lives
_pools: dict[int, Any] = {}  # by GPU; a pool keeps what was freed for its next use
_open: list[Any] = []  # contexts under way, which would end if nobody had them


def _pool(torch: Any, gpu: int) -> Any:
    if not _allocators:
        _allocators.append(
            torch.cuda.memory.CUDAPluggableAllocator(
                _cableway.__file__, "cwpy_hook_alloc", "cwpy_hook_free"
            )
        )
    if gpu not in _pools:
        with torch.cuda.device(gpu):
            _pools[gpu] = torch.cuda.MemPool(_allocators[0].allocator())
    return _pools[gpu]


def use(device: Any = None) -> allocator_hooks.Use:
    """From now on what this thread makes on a GPU lies in cableway's memory, by a `torch.cuda.MemPool`.

    What is put of it (or sent through a Pool as `cableway.asarray(x)`) is shared without a copy, and stays in memory
    as long as anyone holds it, also when the tensor is gone. PyTorch's caching allocator works as always, with its
    streams, statistics and graphs; other threads, also those in which backward() runs, allocate as before, and what
    they make is shared with one copy.

    Args:
        device: a device of PyTorch; None for its current one.

    Returns:
        Use: end() or the end of its `with`, in the same thread, lets PyTorch allocate as before; tensors stay valid.

    Raises:
        ImportError: PyTorch is not installed.
        RuntimeError: it is too old (2.5 has `torch.cuda.MemPool`), or sees no GPU.
        BrokerLost: no broker could be reached or started.

    When memory is full PyTorch raises its own `torch.OutOfMemoryError`.
    """
    import torch

    if not hasattr(torch.cuda, "MemPool"):
        raise RuntimeError(
            f"PyTorch {torch.__version__} has no torch.cuda.MemPool; 2.5 is the first that has"
        )
    torch.cuda.init()
    place = torch.device("cuda" if device is None else device)
    gpu = torch.cuda.current_device() if place.index is None else place.index
    allocator_hooks.begin()
    context = torch.cuda.use_mem_pool(_pool(torch, gpu), gpu)
    context.__enter__()
    _open.append(context)

    def end() -> None:
        _open.remove(context)
        context.__exit__(None, None, None)

    return allocator_hooks.Use(end)
