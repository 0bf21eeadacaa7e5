"""What the benchmarks run in workers: in a module of its own, so that every peer sends it by name."""

from __future__ import annotations

import numpy as np

RESULT: np.ndarray | None = None  # in each worker: the result that it gives back


def nothing(number: int) -> int:
    """No work."""
    return number


def prepare(size: int, seed: int) -> None:
    """Initializer: makes the result that the worker gives back."""
    global RESULT
    RESULT = np.random.default_rng(seed).random(size // 8)


def swap(array: np.ndarray) -> np.ndarray:
    """Looks at the argument and gives back the prepared result, no longer what it was."""
    assert RESULT is not None
    RESULT[0] = array[::512].sum()
    return RESULT


def echo(array: np.ndarray) -> np.ndarray:
    """Gives the argument back."""
    return array


def add(array: np.ndarray) -> np.ndarray:
    """Gives a new array back."""
    return array + 1.0


def glance(array: np.ndarray) -> float:
    """Looks at some of it: one element a page."""
    return float(array[::512].sum())


def glance_at(array: np.ndarray, number: int) -> float:
    """Looks at one part of it, of 128 parts."""
    part = len(array) // 128
    return float(array[number * part : (number + 1) * part : 64].sum())


def column_sum(values: np.ndarray, number: int) -> float:
    """A short task on a large array."""
    return float(values[:, number].sum())
