"""`use()` puts PyTorch's tensors into cableway's memory; `share()` decides how multiprocessing sends tensors.

For example::

    import torch, cableway as cw, cableway.torch

    with cableway.torch.use():
        x = torch.zeros(1000, 1000, device="cuda")      # lies in cableway's memory
    cw.put("x", x)                                      # shared with no copy

A `cw.Queue` sends tensors without `share()`: those in cableway's memory as a handle, others by one copy on their device.
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
    """From now on this thread's GPU tensors lie in cableway's memory, by a `torch.cuda.MemPool`.

    If you put such a tensor (or send it through a Pool as `cableway.asarray(x)`), it is shared without a copy. Its memory stays
    as long as a process uses it, even if the tensor is gone. PyTorch's caching allocator works as always, with its streams,
    statistics and graphs. Other threads, including those in which backward() runs, allocate as before; their tensors are shared
    with one copy.

    Args:
        device: a device of PyTorch; None for its current one.

    Returns:
        Use: its end(), or the end of its `with` block, in the same thread, lets PyTorch allocate as before; tensors stay valid.

    Raises:
        ImportError: PyTorch is not installed.
        RuntimeError: it is too old (2.5 has `torch.cuda.MemPool`), or sees no GPU.
        BrokerLost: no broker could be reached or started.

    If GPU memory is full, PyTorch raises its own `torch.OutOfMemoryError`.
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
    """Tensors are sent as `share` says until end() or the end of the `with` block. Tensors that were sent before stay valid."""

    __slots__ = ("_before",)

    def __init__(self, before: dict[type, Any]) -> None:
        self._before = before

    def end(self) -> None:
        """Sends tensors again as before `share`. May be repeated."""
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
    """From now on everything that multiprocessing sends from this process passes PyTorch tensors as a `cableway.Queue` does. This
    holds for the Queue, Pipe, Pool and Process of `multiprocessing` and `torch.multiprocessing`, and for `cableway.Pool`. Plain
    `pickle` and `torch.save` do not change.

    A tensor in cableway's memory is sent as a handle, and both ends see the same memory. Such tensors are those made in `use()`,
    those that came from another process in this way, and those of `Array.torch()`. They can also be sent on, which PyTorch
    refuses. Any other tensor is copied once, on its GPU or in host memory (from 256 KiB on into shared memory, else by value), so
    that the receiver has its own. No process has to stay alive for another one. Receivers need not call `share`.

    A queue of multiprocessing pickles in a thread of its own, whose current stream is the default one. So wait until other
    streams have completed their work on a GPU tensor before you put it, as with PyTorch's own sharing. A `cableway.Queue` waits
    for the caller's stream by itself.

    Returns:
        Sharing: its end(), or the end of its `with` block, makes tensors go as before.

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
