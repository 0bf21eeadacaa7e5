"""The leaves of a tree, all at once: what a loop over thousands of them reads without a call of C for each.

The bytes are the library's own copy of the index, checked to the last (ipc/tree/index.h); docs/PROTOCOL.md has their form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cableway._core import dtypes
from cableway._core.layouts import Layout, contiguous
from cableway._core.library import ffi

__all__ = ["KINDS", "Row", "difference", "rows"]

KINDS = ("plain", "parameter", "buffer", "attribute")
_HEAD_BYTES, _PART_BYTES = 128, 64
_LEAF = np.dtype(
    [
        ("offset", "<u8"), ("nbytes", "<u8"), ("hash", "<u8"), ("path_at", "<u4"), ("dtype_at", "<u4"), ("shape_at", "<u4"),
        ("part", "<u4"), ("alias", "<u4"), ("path_bytes", "<u2"), ("dtype_bytes", "<u2"), ("ndim", "u1"), ("kind", "u1"),
        ("flags", "u1"), ("strided", "u1"), ("itemsize", "<u4"), ("reserved", "<u8"),
    ]
)  # fmt: skip
_READ = (
    "offset", "nbytes", "hash", "path_at", "path_bytes", "dtype_at", "dtype_bytes", "shape_at", "ndim", "strided", "part", "alias",
    "kind", "flags",
)  # fmt: skip


class Row(NamedTuple):
    """One leaf.

    Attributes:
        path: where it stands.
        layout: how its bytes are seen; leaves that are alike share it.
        part: in which part it lies.
        offset: of its lowest byte there.
        nbytes: that it spans.
        alias: number, from 1, of the earlier leaf that it is; 0: none.
        kind: CW_LEAF_PLAIN and so on.
        flags: CW_LEAF_HASHED, CW_LEAF_TRANSIENT.
        hash: of its bytes.
    """

    path: str
    layout: Layout
    part: int
    offset: int
    nbytes: int
    alias: int
    kind: int
    flags: int
    hash: int


def rows(info: Any) -> list[Row]:
    """All leaves of the tree that a `cw_tree_info *` tells of, which stays open meanwhile."""
    raw = memoryview(ffi.buffer(info.index, info.index_bytes))
    _, _, numbers_count, text_bytes = np.frombuffer(raw, "<u4", 4, 48).tolist()
    at = _HEAD_BYTES + info.parts * _PART_BYTES
    leaves = np.frombuffer(raw, _LEAF, info.leaves, at)
    at += leaves.nbytes
    numbers = np.frombuffer(raw, "<i8", numbers_count, at).tolist()
    at += 8 * numbers_count
    text = bytes(raw[at : at + text_bytes])
    known_dtypes: dict[int, np.dtype[Any]] = {}
    known: dict[Any, Layout] = {}
    found = []
    made = tuple.__new__  # what Row() does, without a call of Python for each of its fields
    columns = (leaves[name].tolist() for name in _READ)
    for (
        offset, nbytes, hashed, path_at, path_bytes, dtype_at, dtype_bytes, shape_at, ndim, strided, part, alias, kind, flags,
    ) in zip(*columns, strict=True):  # fmt: skip
        dtype = known_dtypes.get(dtype_at)
        if dtype is None:
            dtype = dtypes.decode(text[dtype_at : dtype_at + dtype_bytes].decode())
            known_dtypes[dtype_at] = dtype
        shape = tuple(numbers[shape_at : shape_at + ndim])
        steps = tuple(numbers[shape_at + ndim : shape_at + 2 * ndim]) if strided else None
        key = (dtype_at, shape, steps)
        layout = known.get(key)
        if layout is None:
            steps = contiguous(shape, dtype.itemsize, "C") if steps is None else steps
            layout = known[key] = Layout(shape, dtype, steps)
        path = text[path_at : path_at + path_bytes].decode()
        found.append(made(Row, (path, layout, part, offset, nbytes, alias, kind, flags, hashed)))
    return found


def difference(old: list[Row], new: list[Row]) -> str:
    """How the first leaf differs that is not laid out as the other tree's leaf of that number, in a sentence; "" if none does.

    Args:
        old: all leaves of the one tree.
        new: of the other, which is told of.
    """
    paths, before = {row.path for row in new}, {row.path for row in old}
    for number, (was, now) in enumerate(zip(old, new, strict=False)):
        if was.path != now.path:
            if was.path not in paths:
                return f'it has no leaf "{was.path}"'
            if now.path not in before:
                return f'it has a leaf "{now.path}" beside'
            return (
                f'leaf {number} is "{now.path}", not "{was.path}": the order of the leaves differs'
            )
        for what, one, other in (
            ("shape", was.layout.shape, now.layout.shape),
            ("dtype", was.layout.text, now.layout.text),
            ("strides", was.layout.strides, now.layout.strides),
            ("tie", _tied(old, was), _tied(new, now)),
            ("kind", KINDS[was.kind], KINDS[now.kind]),
            ("place", (was.part, was.offset), (now.part, now.offset)),
        ):
            if one != other:
                return f'"{now.path}" has the {what} {other}, not {one}'
    if len(old) != len(new):
        return (
            f'it has no leaf "{old[len(new)].path}"'
            if len(old) > len(new)
            else f'it has a leaf "{new[len(old)].path}" beside'
        )
    return ""


def _tied(table: list[Row], row: Row) -> str:
    return f'to "{table[row.alias - 1].path}"' if row.alias else "to none"
