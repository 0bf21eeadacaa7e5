"""A worker's own GPU: cuda:0 of its process; begin() makes sure of that.

After each task, before it answers, the worker waits until all work that this process has begun on its GPU is complete. So an answer
means that the work is done. A kernel that breaks the CUDA context fails its own task and no later one, with `DeviceError` and CUDA's
name for the error. If the work used data of a process that died before it was complete, the task gets `ProducerDied`. A broken context
cannot be repaired: the worker ends once its answer has been taken, and the parent starts another one. If the process has opened no
context, there is nothing to wait for.

Owner: the worker's process, its main thread. When it dies, its GPU memory is freed; arrays of cableway stay.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cableway import client
from cableway._core.library import check, failure, ffi, lib
from cableway._pool.devices.devices import key_of
from cableway._pool.launch.environment import Description
from cableway.errors import DeviceError
from cableway.stream import Stream, set_current

__all__ = ["OWN", "OwnGpu"]

OWN = "cuda:0"


class OwnGpu:
    """The GPU of this worker.

    Attributes:
        broken: its context is: no more tasks.
        usable: begin() has made sure of it, and it is not broken.
    """

    __slots__ = ("_begun", "broken", "told")

    def __init__(self, told: Description) -> None:
        self.told = told
        self.broken = False
        self._begun = False

    @property
    def usable(self) -> bool:
        return self._begun and not self.broken

    def begin(self) -> None:
        """Before the initializer.

        Raises:
            DeviceError: cuda:0 is another GPU, or none can be used; or there are no multiprocessors as asked for.
        """
        told = self.told
        told.prefer_node()
        found = ffi.new("cw_device_place *")
        check(lib.cw_device_place_of(OWN.encode(), found))
        uuid = str(ffi.string(found.uuid), "ascii")
        if key_of(uuid) != key_of(told.uuid):
            raise DeviceError(
                f"a worker of {told.name} ({told.uuid}) finds {uuid} as its first GPU: the main module has set "
                "CUDA_VISIBLE_DEVICES and used CUDA when it was imported; put what uses a GPU there under "
                '`if __name__ == "__main__":`'
            )
        if told.sms is not None:
            self._take_part(told.sms)
        self._begun = True

    def _take_part(self, sms: int) -> None:
        stream, got = ffi.new("void **"), ffi.new("uint32_t *")
        check(lib.cw_device_part(0, sms, self.told.part, stream, got))
        set_current(Stream(int(ffi.cast("uintptr_t", stream[0])), got[0]))

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that looks after each call what it has left on the GPU, as `settle` does."""
        return _Guarded(self, function)

    def settle(self, error: Exception | None = None) -> None:
        """Waits until all work of this process on its GPU is complete.

        Args:
            error: what the task raised.

        Raises:
            DeviceError: the context is broken; error is its cause.
            ProducerDied: the work is done, but what it came after was never complete. Not where the task raised an error.
        """
        status = lib.cw_device_settle(0)
        if status >= 0:
            connection = client.known()
            if connection is not None and not connection.closed:
                died = lib.cw_work_check(connection.pointer)
                if died and error is None:
                    check(died)
            return
        self.broken = True
        told = self.told
        raise DeviceError(
            f"the task broke the CUDA context of its worker {os.getpid()} on {told.name} ({told.uuid}), which is "
            f"replaced: {failure(status)}"
        ) from error


class _Guarded:
    __slots__ = ("__wrapped__", "_gpu")

    def __init__(self, gpu: OwnGpu, function: Callable[..., Any]) -> None:
        self._gpu = gpu
        self.__wrapped__ = function

    def __call__(self, *args: Any, **named: Any) -> Any:
        gpu = self._gpu
        if gpu.broken:  # by an item before, of the same task
            gpu.settle()
        try:
            value = self.__wrapped__(*args, **named)
        except Exception as error:
            gpu.settle(error)
            raise
        gpu.settle()
        return value
