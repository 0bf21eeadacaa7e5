"""Actors of Ray on a node share tensors: import this module before you make the actors, and name the transport.

>>> import ray, numpy, cableway.ray
>>> @ray.remote
... class Maker:
...     @ray.method(tensor_transport="cableway_numpy")
...     def make(self):
...         return numpy.ones(32 << 20)                                              # 256 MiB
>>> @ray.remote(enable_tensor_transport=True)
... class Reader:
...     def total(self, x):
...         return float(x.sum())
>>> maker, reader = Maker.remote(), Reader.remote()                                  # doctest: +SKIP
>>> ray.get(reader.total.remote(maker.make.remote()))                                # doctest: +SKIP
33554432.0

The import registers two transports with Ray Direct Transport: "cableway" for tensors of PyTorch in host memory, where PyTorch is installed, and
"cableway_numpy" for NumPy arrays. Actors that are made with tensor transport know them. What a method with such a transport returns, or
`ray.put(x, _tensor_transport=...)` is given, is copied into shared memory once. Actors of the node to which the reference is passed, and
`ray.get`, map that memory: each has a private view, which it may write to, and nobody else sees it.

The memory belongs to the reference: it stays as long as the process that called the method has it, though the actor that returned it has
died, and is free once the last reference and the last view are gone. An array that already lies in memory of cableway (`cableway.empty`)
is not copied; then readers may see what is written there later, as with all of Ray's transports.

Actors that only read are made with `@ray.remote(enable_tensor_transport=True)`; Ray waits for a minute, and fails, where that is missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.experimental import register_tensor_transport
from ray.experimental.rdt import util

from cableway._ray import actors, blocks, libraries, sessions
from cableway._ray.transport import Transport, session_ended

__all__ = ["NumpyTransport", "TorchTransport", "register", "shared_bytes"]


class TorchTransport(Transport):
    """`tensor_transport="cableway"`: tensors of PyTorch."""


class NumpyTransport(Transport):
    """`tensor_transport="cableway_numpy"`: NumPy arrays."""


def register() -> None:
    """What the import does. May be repeated, as after PyTorch was installed."""
    sessions.watch(session_ended)
    actors.watch(NumpyTransport)
    known = util.transport_manager_info
    if "cableway_numpy".upper() not in known:
        register_tensor_transport("cableway_numpy", ["cpu"], NumpyTransport, np.ndarray)
    try:
        import torch
    except ImportError:
        return
    if "cableway".upper() not in known:
        register_tensor_transport("cableway", ["cpu"], TorchTransport, torch.Tensor)


def shared_bytes(x: Any) -> int:
    """How many bytes of a tensor or a NumPy array, as a method of an actor or `ray.get` got it, are a view of shared memory; 0: none.

    Raises:
        TypeError: x is neither.

    >>> shared_bytes(np.ones(3))
    0
    """
    return blocks.seen_bytes(*libraries.address_of(x))


register()
