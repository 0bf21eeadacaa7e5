"""Pickles of objects that members send.

The smallest plain objects (numbers, short texts, a few of them in a tuple or list) are written and read by `_dispatch`, which takes a
third of the pickler's time. They are pickles as any other, and nothing in them is opened or called.
"""

from __future__ import annotations

import pickle
from typing import Any

from cableway._dispatch import small_dump, small_load

__all__ = ["SMALL_BYTES", "dumps", "loads"]

SMALL_BYTES = 256  # longer ones go to the pickler at once


def dumps(obj: Any) -> bytes:
    """The pickle of an object."""
    small = small_dump(obj)
    return pickle.dumps(obj, 5) if small is None else small


def loads(data: bytes) -> Any:
    """The object of a pickle."""
    found = small_load(data) if len(data) <= SMALL_BYTES else ()
    return found[0] if found else pickle.loads(data)
