"""Other shapes of an array on a GPU: handles on the same memory, as slices are. Nothing here reads an element.

The arguments are those of ndarray's methods, and so are the errors. What NumPy could only do with a copy raises, and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SHAPES"]

_HAS_COPY = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


def _needs_copy(seen: NDArray[Any], call: str) -> ValueError:
    return ValueError(
        f"{call} of a GPU array of shape {seen.shape} and strides {seen.strides} needs a copy, which cableway does not make there; "
        f"let a GPU library do it: cupy.asarray(w).{call}"
    )


def _without_copy(seen: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any] | None:
    """The elements, taken in C order, in another shape; None if no strides describe that."""
    if _HAS_COPY:
        try:
            return seen.reshape(shape, copy=False)
        except ValueError:
            return None
    found: NDArray[Any] = seen.view()
    try:
        found.shape = shape
    except AttributeError:
        return None
    return found


def _reshape(seen: NDArray[Any], *shape: Any, order: Any = "C", copy: bool | None = None) -> Any:
    # An array of as many elements without bytes: NumPy finds what -1 stands for, and refuses what is no shape of it.
    target = np.empty(seen.shape, np.dtype([])).reshape(*shape, order=order).shape
    if copy:
        raise _needs_copy(seen, f"reshape({target}, copy=True)")
    if order == "F" or (order == "A" and seen.flags.fnc):
        turned = _without_copy(seen.T, target[::-1])
        found = None if turned is None else turned.T
    else:
        found = _without_copy(seen, target)
    if found is None:
        raise _needs_copy(seen, f"reshape({target}, order={order!r})")
    return found


def _ravel(seen: NDArray[Any], order: Any = "C") -> Any:
    if order == "K":
        by_stride = sorted(range(seen.ndim), key=lambda axis: -abs(seen.strides[axis]))
        found = _without_copy(seen.transpose(by_stride), (seen.size,))
    else:
        found = _reshape(seen, -1 if seen.size else 0, order=order)
    if found is None or not found.flags.c_contiguous:  # what ravel returns is always contiguous
        raise _needs_copy(seen, f"ravel({order!r})")
    return found


# Methods of an ndarray whose result is, or may be, a view.
SHAPES: dict[str, Callable[..., Any]] = {
    "ravel": _ravel,
    "reshape": _reshape,
    "squeeze": np.ndarray.squeeze,
    "swapaxes": np.ndarray.swapaxes,
    "transpose": np.ndarray.transpose,
}
