"""Pauses of Python's garbage collector.

Who makes thousands of objects at once that all stay sets off collections of everything that the process has. In one that has imported
PyTorch a full one takes 100 ms, several times what making the objects takes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["uncollected"]


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection begins by itself until the end, in any thread. Does nothing where the collector is off already.

    If another thread calls `gc.disable()` in the middle, the end turns the collector on again all the same.
    """
    was_on = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_on:
            gc.enable()
