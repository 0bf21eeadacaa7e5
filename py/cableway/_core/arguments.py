"""Arguments that many functions take: names, and what is yes or no."""

from __future__ import annotations

import numpy as np

__all__ = ["flag", "name_bytes"]


def name_bytes(name: object) -> bytes:
    """A name as the library takes it. Its grammar is the library's to check."""
    if not isinstance(name, str):
        raise TypeError(f"a name is a str, not {type(name).__name__}")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name {name!r} cannot be encoded as UTF-8") from None
    if b"\0" in encoded:
        raise ValueError(f"a name must not contain a NUL character: {name!r}")
    return encoded


def flag(name: str, value: object) -> bool:
    """An argument that is yes or no: "no" would count as yes."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return bool(value)
