"""Leaves: the arrays in nested dicts, lists and modules, by their paths.

A path is the keys on the way to an array with "." between them, so that a `state_dict` keeps its own names. Two leaves of the same
memory and the same layout are tied: the second is an alias of the first. In a dict a list of numbers is one leaf, as NumPy has it.
An empty dict has no leaf, so nothing of it is kept; an empty list is a leaf without elements.

>>> import numpy as np
>>> [leaf.path for leaf in flatten({"layer": {"weight": np.ones(2)}, "list": [np.ones(1), 2.0], "losses": [0.5, 0.25]})]
['layer.weight', 'list.0', 'list.1', 'losses']
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cableway._core.library import lib
from cableway._tree import modules
from cableway.array import Array

__all__ = ["Leaf", "flatten", "is_tree"]

_DEPTH_MAX = 64  # of dicts and lists
_NO_KEY = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, and what is no text
_NUMBERS = frozenset((bool, int, float, complex))


class Leaf(NamedTuple):
    """One array of what is to be published.

    Attributes:
        path: where it stands.
        value: the array, in any library's form.
        kind: CW_LEAF_PLAIN, _PARAMETER, _BUFFER or _ATTRIBUTE.
        flags: CW_LEAF_TRANSIENT of a buffer that is no part of its module's state.
    """

    path: str
    value: Any
    kind: int = 0
    flags: int = 0


def is_tree(value: Any) -> bool:
    """Whether `put` publishes it as a tree: a mapping, a module, or a list that can be no array, since such a thing stands in it,
    or arrays of different shapes, or arrays on a GPU. A list of numbers, or of arrays that stack, is an array as ever.
    """
    if isinstance(value, Mapping) or modules.is_module(value):
        return True
    return _is_sequence(value) and _no_array(value, _DEPTH_MAX)


def _is_named(value: Any) -> bool:
    """Whether it is a named tuple."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _is_sequence(value: Any) -> bool:
    return type(value) in (list, tuple) or _is_named(value)


def _no_array(value: Any, depth: int) -> bool:
    shapes = set()
    for element in value:
        if (isinstance(element, Mapping) and element) or modules.is_module(element):
            return True
        if _is_sequence(element):
            if depth and _no_array(element, depth - 1):
                return True
        elif hasattr(element, "shape"):
            shapes.add(tuple(element.shape))
            on_gpu = isinstance(element, Array) and element._on_gpu()
            if on_gpu or hasattr(element, "__cuda_array_interface__"):
                return True
        if len(shapes) > 1:
            return True
    return False


def flatten(value: Any) -> list[Leaf]:
    """All leaves, in the order in which they stand.

    Raises:
        TypeError: a key is neither str nor int, or there is nothing to be flattened.
        ValueError: two leaves have the same path, it is too deep, or too many.
    """
    found: list[Leaf] = []
    paths: set[str] = set()
    for leaf in _walk("", value, 0, set()):
        if leaf.path in paths:
            raise ValueError(
                f'two arrays have the path "{leaf.path}": keys on the way are joined by "."; rename one'
            )
        paths.add(leaf.path)
        found.append(leaf)
        if len(found) > lib.CW_LEAVES_MAX:
            raise ValueError(f"a tree has at most {lib.CW_LEAVES_MAX} leaves: split the tree")
    return found


def _walk(path: str, value: Any, depth: int, single: set[type]) -> Iterator[Leaf]:
    """single: types that were found to be arrays; whether a thing is a dict or a module, its type says."""
    if depth > _DEPTH_MAX:
        raise ValueError(
            f'"{path[:60]}..." lies in more than {_DEPTH_MAX} dicts and lists, one in another: flatten it, '
            "or does one contain itself?"
        )
    kind = type(value)
    if modules.is_module(value):
        for name, array, of_module, flags in modules.arrays_of(value):
            yield Leaf(_join(path, name), array, of_module, flags)
    elif isinstance(value, Mapping):
        for key in value:
            at, element = _join(path, key), value[key]
            if type(element) in single and depth < _DEPTH_MAX:  # as most are
                yield Leaf(at, element)
            else:
                yield from _walk(at, element, depth + 1, single)
    elif kind in (list, tuple) and (not depth or _shape(value) is None):
        for number, element in enumerate(value):
            yield from _walk(_join(path, number), element, depth + 1, single)
    elif _is_named(value):
        for name, element in zip(value._fields, value, strict=True):
            yield from _walk(_join(path, name), element, depth + 1, single)
    else:
        if not path:
            raise TypeError(f"a tree is a dict, a list or a module, not {kind.__name__}")
        if kind not in (list, tuple):  # another list may be none
            single.add(kind)
        yield Leaf(path, value)


def _shape(value: Any, within: tuple[int, ...] = ()) -> tuple[int, ...] | None:
    """The shape of the one array that NumPy makes of a list of numbers; None: it makes none. within: lists that it lies in."""
    if type(value) not in (list, tuple):
        return () if type(value) in _NUMBERS else None
    if id(value) in within or len(within) >= _DEPTH_MAX:
        return None
    if _NUMBERS.issuperset(map(type, value)):
        return (len(value),)
    shapes = {_shape(element, (*within, id(value))) for element in value}
    shape = shapes.pop()
    return None if shapes or shape is None else (len(value), *shape)


def _join(path: str, key: Any) -> str:
    if type(key) is str and key and key.isprintable():  # as most are
        return f"{path}.{key}" if path else key
    where = f'in "{path}"' if path else "at the top"
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise TypeError(f"keys of a tree are str or int; {where} stands the key {key!r:.60}")
    if key == "" or (isinstance(key, str) and _NO_KEY.search(key)):
        raise ValueError(
            "a key of a tree has at least one character, no control characters, and no halves of surrogate pairs; "
            f"{where} stands the key {key!r:.60}"
        )
    return f"{path}.{key}" if path else str(key)
