"""A stand-in for dask-cuda's `device_host_file.DeviceHostFile`: a worker's data, on the GPU as far as it may be, the rest in host memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, MutableMapping
from typing import Any

import cupy
from zict import Buffer, Func


class DeviceHostFile(MutableMapping[Any, Any]):
    """Arrays on the GPU go to host memory, the oldest first, where all take more than so many bytes, and come back when they are used."""

    def __init__(self, device_memory_limit: int) -> None:
        self.host_buffer = Buffer({}, {}, 1 << 40, weight=lambda key, value: 1)
        to_host = Func(cupy.asnumpy, cupy.array, self.host_buffer)
        self.device_buffer = Buffer({}, to_host, device_memory_limit, weight=lambda key, value: value.nbytes)  # fmt: skip
        self.device_keys: set[Any] = set()
        self.device = self.device_buffer.fast.d
        self.host = self.host_buffer.fast.d
        self.fast = self.host_buffer.fast

    def __setitem__(self, key: Any, value: Any) -> None:
        if key in self.device_buffer:
            del self[key]
        if isinstance(value, cupy.ndarray):
            self.device_keys.add(key)
            self.device_buffer[key] = value
        else:
            self.host_buffer[key] = value

    def __getitem__(self, key: Any) -> Any:
        return (self.device_buffer if key in self.device_keys else self.host_buffer)[key]

    def __delitem__(self, key: Any) -> None:
        self.device_keys.discard(key)
        del self.device_buffer[key]

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain(self.device_buffer)

    def __len__(self) -> int:
        return len(self.device_buffer)
