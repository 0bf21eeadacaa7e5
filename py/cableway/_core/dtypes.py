"""Dtypes as text: NumPy's typestr, or for structured ones the literal of the NPY format's `descr`.

Where `descr` cannot tell a structured dtype (fields that overlap or stand out of order, titles, elements of
`numpy.recarray`), the text is the literal of the dict that `numpy.dtype` takes, with "record": True for a record. A
literal of some hundred fields is too long as it is, and goes compressed behind a word on what it is. What is read back
is parsed as a literal and checked, since another process wrote it. What NumPy has no typestr for is a word, see `words`.

>>> import numpy as np
>>> encode(np.dtype("f4"))
'<f4'
>>> decode(encode(np.dtype([("x", "i2"), ("y", "f8", (3,))])))
dtype([('x', '<i2'), ('y', '<f8', (3,))])
"""

from __future__ import annotations

import ast
import base64
import re
import zlib
from typing import Any

import numpy as np

from cableway._core import words
from cableway._core.library import check, ffi, lib
from cableway.errors import Error

__all__ = ["decode", "encode"]

# What NumPy and ast raise where a text makes no dtype. Not Exception: a signal's handler may raise here.
_MET = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    zlib.error,
)
_PACKED = re.compile(r"\|V[0-9]+ of [0-9]+ fields, zlib ([!-~]+)")
_UNPACKED_MAX = 1 << 20
_cache: dict[str, np.dtype[Any]] = {}
_CACHE_MAX = 4096


def _describe(dtype: np.dtype[Any]) -> Any:
    """The literal for a dtype, nested as deep as the dtype is."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return (_describe(base), shape)
    if dtype.names is None or dtype.fields is None:
        return dtype.str
    fields: list[Any] = [dtype.fields[name] for name in dtype.names]
    found: dict[str, Any] = {
        "names": list(dtype.names),
        "formats": [_describe(field[0]) for field in fields],
        "offsets": [int(field[1]) for field in fields],
        "itemsize": dtype.itemsize,
    }
    if issubclass(dtype.type, np.record):
        found["record"] = True
    if any(len(field) > 2 for field in fields):
        found["titles"] = [field[2] if len(field) > 2 else None for field in fields]
    if dtype.isalignedstruct:
        found["aligned"] = True
    return found


def _has_records(dtype: np.dtype[Any]) -> bool:
    """Whether its elements, or parts of them, are `numpy.record`: equal dtypes need not agree in that."""
    if dtype.subdtype is not None:
        return _has_records(dtype.subdtype[0])
    fields: Any = dtype.fields or {}
    return issubclass(dtype.type, np.record) or any(_has_records(f[0]) for f in fields.values())


def _packed(dtype: np.dtype[Any], text: str) -> str:
    data = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    return f"|V{dtype.itemsize} of {len(dtype.names or ())} fields, zlib {data}"


def _unpacked(text: str) -> str:
    """The literal; text itself if it is not compressed. At most _UNPACKED_MAX bytes, whatever another process wrote."""
    found = _PACKED.fullmatch(text)
    if not found:
        return text
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.b85decode(found[1]), _UNPACKED_MAX)
    if not unpacker.eof:
        raise ValueError(f"it is longer than {_UNPACKED_MAX} bytes, or cut off")
    return data.decode()


def encode(dtype: np.dtype[Any]) -> str:
    """The text of a dtype.

    Raises:
        TypeError: the dtype holds Python objects, or text cannot tell it.
        ValueError: the text would be longer than 2048 bytes, even compressed.
    """
    if dtype.hasobject:
        raise TypeError(
            f"dtype {dtype} holds Python objects, which live in one process only; "
            "convert to a fixed dtype (for text array.astype('U') or 'S'), or send a pickle of it"
        )
    text = words.word(dtype)
    if text:
        return text
    if dtype.names is None and dtype.subdtype is None:
        text = str(dtype.str)
    else:
        text = ""
        try:
            descr: Any = dtype.descr  # NumPy's hints for the two do not agree
            if (
                not dtype.isalignedstruct
                and not _has_records(dtype)
                and np.lib.format.descr_to_dtype(descr) == dtype
            ):
                text = repr(descr)
        except (ValueError, TypeError):
            pass
        text = text or repr(_describe(dtype))
    if len(text.encode()) > lib.CW_DTYPE_MAX and len(text) <= _UNPACKED_MAX // 4:
        text = _packed(dtype, text)
    if len(text.encode()) > lib.CW_DTYPE_MAX:
        raise ValueError(
            f"dtype with {len(dtype.names or ())} fields takes {len(text.encode())} bytes as compressed text, "
            f"at most {lib.CW_DTYPE_MAX} are possible; share the fields as several arrays"
        )
    try:
        found = decode(text)
        same = found == dtype and _has_records(found) == _has_records(dtype)
        same = same and not words.has_word(dtype)  # a field's word stands in no descr
    except Error:
        same = False
    if not same:
        raise TypeError(
            f"dtype {dtype!r} cannot be described to another process as text ({text}); "
            f"share array.view('{_bytes_of(dtype)}'), which has the same bytes, and the dtype's name beside it"
        )
    return text


def _bytes_of(dtype: np.dtype[Any]) -> str:
    plain = dtype.names is None and dtype.subdtype is None and dtype.itemsize in (1, 2, 4, 8)
    return f"u{dtype.itemsize}" if plain else f"V{dtype.itemsize}"


def _build(found: Any) -> Any:
    if isinstance(found, str):
        return np.dtype(found)
    if isinstance(found, list):
        return np.lib.format.descr_to_dtype(found)
    if isinstance(found, tuple) and len(found) == 2:
        return np.dtype((_build(found[0]), found[1]))
    if isinstance(found, dict):
        fields: Any = {**found, "formats": [_build(one) for one in found["formats"]]}
        is_record = fields.pop("record", False)
        made = np.dtype(fields)
        return np.dtype((np.record, made)) if is_record else made
    raise ValueError("neither text, list, tuple nor dict")


def decode(text: str) -> np.dtype[Any]:
    """The dtype for a text.

    Raises:
        Error: another process wrote a text that is no dtype, or one that holds objects.
    """
    known = _cache.get(text)
    if known is None:
        known = words.of_word(text)
    if known is not None:
        return known
    try:
        itemsize = ffi.new("uint32_t *")
        check(lib.cw_dtype_size(text.encode(), itemsize))  # the one grammar, which C checks by, too
        literal = _unpacked(text)
        found: np.dtype[Any] = _build(
            ast.literal_eval(literal) if literal[:1] in ("[", "{", "(") else literal
        )
        if found.hasobject:
            raise ValueError("it holds objects")
        if found.itemsize != itemsize[0]:
            raise ValueError(f"{found.itemsize} bytes by NumPy, {itemsize[0]} by its text")
    except _MET as error:
        raise Error(
            f"another process described an array with a dtype that cannot be: {text[:200]!r} ({error})"
        ) from None
    if len(_cache) >= _CACHE_MAX:
        _cache.clear()
    _cache[text] = found
    return found
