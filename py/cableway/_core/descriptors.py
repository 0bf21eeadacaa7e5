"""Descriptors of this process: none of ours is standard input, output or error."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

__all__ = ["above_stdio"]

_Made = TypeVar("_Made")


def above_stdio(make: Callable[[], _Made]) -> _Made:
    """make(), which opens descriptors, so that none of them is 0, 1 or 2: where one of these is closed, whatever is
    printed would go there."""
    low: list[int] = []
    try:
        while True:
            fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            if fd > 2:
                os.close(fd)
                return make()
            low.append(fd)
    finally:
        for fd in low:
            os.close(fd)
