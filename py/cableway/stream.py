"""`current_stream`: the stream for the part of a GPU that a worker may use.

>>> import cableway as cw
>>> cw.current_stream() is None      # outside of a Pool with sms=
True
"""

from __future__ import annotations

__all__ = ["Stream", "current_stream"]


class Stream:
    """A CUDA stream for other libraries: `cupy.cuda.ExternalStream(s.ptr)`, `torch.cuda.ExternalStream(s.ptr)`,
    `numba.cuda.external_stream(s.ptr)`, or any library that accepts `__cuda_stream__`.

    Attributes:
        ptr: the CUstream, as a number.
        multiprocessors: how many multiprocessors its work may use.
    """

    __slots__ = ("multiprocessors", "ptr")

    def __init__(self, ptr: int, multiprocessors: int) -> None:
        self.ptr = ptr
        self.multiprocessors = multiprocessors

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def __repr__(self) -> str:
        return f"<cableway.Stream {self.ptr:#x}, {self.multiprocessors} multiprocessors>"


_current: Stream | None = None


def set_current(stream: Stream) -> None:
    """Sets the stream for this process's part of its GPU."""
    global _current
    _current = stream


def current_stream() -> Stream | None:
    """In a worker of a Pool with sms=: the stream whose work runs only on the worker's part of the GPU. Else None.

    A library uses this stream only if you tell it to. Its work in another stream, such as its default one, may run on all
    multiprocessors: the part belongs to the stream, not to the process.

    Returns:
        Stream | None: it lives as long as the process.
    """
    return _current
