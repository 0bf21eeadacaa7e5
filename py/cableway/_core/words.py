"""Dtypes that NumPy has no typestr for: the words of machine learning ("bfloat16"), as `ipc/base/ml_dtype.c` lists them.

As a NumPy dtype a word is that of ml_dtypes, where that can be imported, else (and for what ml_dtypes lacks) a void of its
size with the word in its metadata. NumPy looks neither at metadata when it compares dtypes, nor has it casts for void that
convert numbers: so whoever compares or converts asks here.

>>> dtype = of_word("int4_x2")
>>> word(dtype), name(dtype), name(np.dtype("f4")), raw(dtype)
('int4_x2', 'int4_x2', 'float32', dtype('uint8'))
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from cableway._core.library import ffi, lib

__all__ = [
    "PACKED", "Row", "are_bytes", "check_assigned", "check_cast", "dtype_of", "has_word", "is_packed", "name", "of_dlpack", "of_row", "of_text", "of_torch", "of_word", "raw", "row", "same", "torch_name", "word",
]  # fmt: skip

_KEY = "cableway.dtype"  # of a void dtype's metadata
_BYTE = np.dtype("u1")
PACKED = ("int4_x2", "uint4_x2")


class Row(NamedTuple):
    """What array libraries call a dtype; see `cw_dtype_row` in cableway.h."""

    dtype: str
    ml_dtypes: str
    torch: str
    safetensors: str
    size_bytes: int
    code: int
    bits: int
    lanes: int


def _rows() -> list[Row]:
    count = ffi.new("uint32_t *")
    table = lib.cw_dtype_table(count)
    found = []
    for i in range(count[0]):
        one = table[i]
        texts = (one.dtype, one.ml_dtypes, one.torch, one.safetensors)
        dtype, ml_dtypes, torch, safetensors = (ffi.string(text).decode() for text in texts)
        numbers = one.size_bytes, one.dlpack_code, one.dlpack_bits, one.dlpack_lanes
        found.append(Row(dtype, ml_dtypes, torch, safetensors, *numbers))
    return found


_ROWS = {row.dtype: row for row in _rows()}
_WORDS = {text: row for text, row in _ROWS.items() if text[0].isalpha()}
_OF_ML_DTYPES = {row.ml_dtypes: text for text, row in _WORDS.items() if row.ml_dtypes}
_OF_TORCH = {row.torch: row for row in _ROWS.values()}
_OF_DLPACK = {(row.code, row.bits, row.lanes): row for row in _ROWS.values()}


def row(dtype: np.dtype[Any]) -> Row | None:
    """The row of a dtype; None: it has none (big endian, structured, dates, longdouble)."""
    return _ROWS.get(word(dtype) or dtype.str)


def _of_ml_dtypes(dtype: np.dtype[Any]) -> str:
    if dtype.type.__module__.partition(".")[0] != "ml_dtypes":
        return ""
    return _OF_ML_DTYPES.get(dtype.name, "")


def word(dtype: np.dtype[Any]) -> str:
    """The word of a dtype; "": it needs none, NumPy's typestr tells it."""
    if dtype.metadata is None:
        return "" if dtype.num < 256 else _of_ml_dtypes(dtype)
    found = dtype.metadata.get(_KEY)
    if not isinstance(found, str) or found not in _WORDS or dtype.kind != "V" or dtype.names:
        return ""
    return found if dtype.itemsize == _WORDS[found].size_bytes else ""


def is_packed(dtype: np.dtype[Any]) -> bool:
    """Whether one element is two numbers of four bits. PyTorch takes those of DLPack's integers by their bytes alone."""
    return word(dtype) in PACKED


def of_word(text: str) -> np.dtype[Any] | None:
    """The dtype of a word; None: it is none."""
    found = _WORDS.get(text)
    made: np.dtype[Any] | None = None if found is None else _made(found)
    return made


def of_text(text: str) -> Row | None:
    """The row of a dtype's text, without making the dtype; None: it has none."""
    return _ROWS.get(text)


def of_row(found: Row) -> np.dtype[Any]:
    """The dtype of a row of the table."""
    known = of_word(found.dtype)
    return np.dtype(found.dtype) if known is None else known


@functools.cache
def _made(found: Row) -> Any:
    if found.ml_dtypes:
        try:
            import ml_dtypes
        except ImportError:
            pass
        else:
            kind = getattr(ml_dtypes, found.ml_dtypes, None)  # older ones lack some
            if kind is not None:
                return np.dtype(kind)
    return np.dtype(f"V{found.size_bytes}", metadata={_KEY: found.dtype})


def of_dlpack(code: int, bits: int, lanes: int) -> Row | None:
    """The row of the dtype that DLPack tells so; None: we have none."""
    return _OF_DLPACK.get((code, bits, lanes))


def of_torch(name: str) -> Row | None:
    """The row of what PyTorch calls a dtype; None: it has none."""
    return _OF_TORCH.get(name)


def torch_name(obj: Any) -> str:
    """What PyTorch calls a dtype of its own ("bfloat16"); "" of everything else."""
    kind = type(obj)
    if kind.__name__ != "dtype" or kind.__module__.partition(".")[0] != "torch":
        return ""
    return str(obj).rpartition(".")[2]


def dtype_of(obj: Any) -> np.dtype[Any]:
    """numpy.dtype, which takes words and PyTorch's dtypes too.

    Raises:
        TypeError: it is none.
    """
    known = of_word(obj) if isinstance(obj, str) else None
    if known is not None:
        return known
    name = torch_name(obj)
    if not name:
        plain: np.dtype[Any] = np.dtype(obj)
        return plain
    found = _OF_TORCH.get(name)
    if found is None:
        raise TypeError(
            f"cableway has no dtype for {obj}; share x.view(torch.uint8), which has the same bytes"
        )
    return of_row(found)


def are_bytes(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether one of two dtypes is the bytes (uint8) of the other, which has two numbers in each."""
    return (one == _BYTE) != (other == _BYTE) and raw(one) == _BYTE and raw(other) == _BYTE


def name(dtype: np.dtype[Any]) -> str:
    """What people read: the word, or what NumPy calls it."""
    return word(dtype) or str(dtype)


def same(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether two dtypes are equal, also in their words."""
    return one is other or (one == other and word(one) == word(other))


def raw(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """As what NumPy sees the memory: of two numbers in a byte it sees the byte."""
    if dtype.metadata is None:
        return dtype
    found = _WORDS.get(word(dtype))
    return dtype if found is None or found.lanes == 1 else _BYTE


def has_word(dtype: np.dtype[Any]) -> bool:
    """Whether it is or has, in its fields or elements, what NumPy's typestr cannot tell."""
    if dtype.subdtype is not None:
        return has_word(dtype.subdtype[0])
    fields: Any = dtype.fields or {}
    return bool(word(dtype)) or any(has_word(field[0]) for field in fields.values())


def check_assigned(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    """The same where values are assigned to elements: of two numbers in a byte each is given by an integer, the byte."""
    if source.kind not in "iub" or raw(target) is target or word(source):
        check_cast(source, target)


def check_cast(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    """Refuses to convert numbers from or to a word for which there is no ml_dtypes: as void, NumPy would make zeros of them.
    Bytes (uint8) of two numbers each are taken as they are.

    Raises:
        TypeError: such a conversion.
    """
    if source is target or (source.metadata is None and target.metadata is None):
        return
    here, there = word(source), word(target)
    if here == there or are_bytes(source, target):
        return
    lacking = _WORDS.get(there if there and target.kind == "V" and target.num < 256 else here)
    if lacking is None:
        return
    remedy = f"no library for NumPy converts {lacking.dtype}; do it with PyTorch"
    if lacking.ml_dtypes:
        remedy = "install ml_dtypes: pip install 'cableway[ml]'"
    elif lacking.lanes > 1:
        remedy = "give its bytes, an array of uint8 with two numbers in each"
    raise TypeError(f"cannot convert {name(source)} to {name(target)}: {remedy}")
