"""What the modules beneath `cableway.array` ask of an object: whether it is an Array. The class itself stands above them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cableway._dispatch import Fields

if TYPE_CHECKING:
    from typing import TypeGuard

    from cableway.array import Array

__all__ = ["is_array"]


def is_array(value: Any) -> TypeGuard[Array]:
    """Whether it is an Array: no other class has these fields."""
    return isinstance(value, Fields)
