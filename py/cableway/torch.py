"""PyTorch's tensors in cableway's memory: `use()`; and how they go to other processes: `share()`.

For example::

    import torch, cableway as cw, cableway.torch

    with cableway.torch.use():
        x = torch.zeros(1000, 1000, device="cuda")      # lies in a slab of cableway's
    cw.put("x", x)                                      # shared with no copy

A `cw.Queue` takes tensors as they are: those in cableway's memory go by their handle, others by one copy where they lie.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

from cableway import _cableway
from cableway._cuda import allocator_hooks
from cableway._transport import external_arrays
from cableway._transport.tensors import Tensors

__all__ = ["Sharing", "share", "use"]

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


class Sharing:
    """Tensors go as `share` says until end(), or to the end of the `with`. Those that were sent stay valid after it."""

    __slots__ = ("_before",)

    def __init__(self, before: dict[type, Any]) -> None:
        self._before = before

    def end(self) -> None:
        """They go as they did before. May be repeated."""
        before, self._before = self._before, {}
        _register(before)

    def __enter__(self) -> Sharing:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _register(reductions: dict[type, Any]) -> None:
    known = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for kind, how in reductions.items():
        if how is None:
            known.pop(kind, None)
        else:
            known[kind] = how
    external_arrays.changed()


def share() -> Sharing:
    """From now on whatever multiprocessing sends from this process takes PyTorch's tensors as a `cableway.Queue` does: the Queue,
    Pipe, Pool and Process of `multiprocessing` and of `torch.multiprocessing`, and our Pool. Plain `pickle` and `torch.save` stay
    PyTorch's.

    What lies in cableway's memory goes by its handle, and both ends see the same memory: what was made in `use()`, what came from
    another process in this way, and `Array.torch()`. Such a tensor can be sent on, which PyTorch refuses. Any other tensor is
    copied once, on its GPU or in host memory (from 256 KiB on into shared memory, else by value), so that the receiver's is
    its own. No process has to stay for another's sake. Receivers need no call of this.

    A queue of multiprocessing's pickles in a thread of its own, whose current stream is the default one: let work of other streams
    on a GPU tensor be complete before it is put, as with PyTorch's own. `cableway.Queue` comes after the caller's stream.

    Returns:
        Sharing: end() or the end of its `with` sends tensors as before.

    Raises:
        ImportError: PyTorch is not installed.

    For example::

        import torch, torch.multiprocessing as mp, cableway.torch

        cableway.torch.share()
        queue = mp.get_context("spawn").Queue()
        queue.put(torch.zeros(1000, 1000, device="cuda"))
    """
    import torch

    known = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    kinds = {torch.Tensor, torch.nn.Parameter}
    found = Tensors(shares=True).reductions(known)
    before = {kind: known.get(kind) for kind in kinds}
    _register({kind: found[kind] for kind in kinds})
    return Sharing(before)
