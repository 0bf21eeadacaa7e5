"""Functions that tasks of test_pool_ml_dtypes call."""

from __future__ import annotations

from typing import Any

import numpy as np

from cableway._core import words


def told(x: Any) -> tuple[str, str, bytes]:
    """What an argument is, by its type, its dtype's name and its bytes."""
    return type(x).__name__, words.name(x.dtype), x.tobytes()


def same(x: Any) -> Any:
    """An argument as result."""
    return x


def double(x: Any) -> None:
    """Doubles an argument in place."""
    x.numpy()[...] = x.numpy() * np.array(2, x.dtype)


def writeable(x: np.ndarray) -> tuple[str, bool]:
    """What a constant's array is."""
    return words.name(x.dtype), x.flags.writeable
