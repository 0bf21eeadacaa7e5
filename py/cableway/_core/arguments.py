"""Arguments that many functions take: names, and what is yes or no."""

from __future__ import annotations

import json
from operator import index
from typing import Any

import numpy as np

__all__ = ["count", "flag", "json_bytes", "name_bytes", "optional_flag"]


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


def optional_flag(name: str, value: object) -> bool | None:
    """The same of one that may also be None."""
    if value is None:
        return None
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True, False or None, not {value!r}")
    return bool(value)


def json_bytes(name: str, value: object) -> bytes:
    """An argument that is to be metadata, as JSON.

    Raises:
        TypeError, ValueError: JSON cannot represent it.
    """
    try:
        return json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"{name} must be made of dict, list, str, int, float, bool and None, as in JSON: {error}"
        ) from None


def count(name: str, value: Any) -> int:
    """An argument that is a number of things."""
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if number < 0:
        raise ValueError(f"{name} must be 0 or more, not {value}")
    return number
