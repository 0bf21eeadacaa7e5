"""What an array shares with a number: its elements as Python values. All of it looks at the memory from the CPU."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Values"]


class Values:
    """Conversions to Python values, for a class that has `numpy()`."""

    __slots__ = ()

    if TYPE_CHECKING:

        def numpy(self) -> NDArray[Any]:
            """The memory as a NumPy array."""

    def item(self) -> Any:
        """The only element, as a Python value. ValueError if there are more."""
        return self.numpy().item()

    def tolist(self) -> Any:
        """The elements as nested lists of Python values."""
        return self.numpy().tolist()

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __complex__(self) -> complex:
        return complex(self.numpy())

    def __index__(self) -> int:
        found = self.numpy()
        return operator.index(found if found.shape else found[()])

    def __bool__(self) -> bool:
        return bool(self.numpy())
