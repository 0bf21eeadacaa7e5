"""What `layout_hash` and `content_hash` tell of, and how a swap to another layout is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cableway as cw


def test_a_layout_is_not_the_order_alone_and_a_content_is_bytes() -> None:
    a, b = np.arange(3.0), np.ones(2)
    first = cw.put("m", {"a": a, "b": b})
    swapped = cw.put("m", {"b": b, "a": a})
    assert first.layout_hash != swapped.layout_hash
    assert first.content_hash != swapped.content_hash
    square = np.arange(4.0).reshape(2, 2)
    plain, turned = cw.put("m", {"a": square}), cw.put("m", {"a": square.T})
    assert plain.layout_hash != turned.layout_hash and plain.content_hash == turned.content_hash
    swapped_bytes = cw.put("m", {"a": square.astype(">f8")})
    assert plain.layout_hash != swapped_bytes.layout_hash
    other = cw.put("m", {"other": square.reshape(4)})
    assert plain.content_hash == other.content_hash and plain.layout_hash != other.layout_hash


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"w": np.ones(3), "c": np.ones(4)}, 'it has no leaf "b"'),
        ({"w": np.ones(3), "x": np.ones(1), "b": np.ones(4)}, 'it has a leaf "x" beside'),
        ({"w": np.ones(3), "b": np.ones(4), "x": np.ones(1)}, 'it has a leaf "x" beside'),
        ({"w": np.ones(3)}, 'it has no leaf "b"'),
        (
            {"b": np.ones(4), "w": np.ones(3)},
            'leaf 0 is "b", not "w": the order of the leaves differs',
        ),
        ({"w": np.ones(3), "b": np.ones(5)}, r'"b" has the shape \(5,\), not \(4,\)'),
        ({"w": np.ones(3, "f4"), "b": np.ones(4)}, '"w" has the dtype <f4, not <f8'),
        ({"w": np.ones(3, ">f8"), "b": np.ones(4)}, '"w" has the dtype >f8, not <f8'),
    ],
)
def test_another_layout_is_told_by_its_first_leaf(other: dict[str, Any], told: str) -> None:
    cw.put("m", {"w": np.ones(3), "b": np.ones(4)})
    tree = cw.get("m", swappable=True)
    cw.put("m", other)
    with pytest.raises(cw.LayoutChanged, match=f"{told}$"):
        tree.swap()
    assert tree["b"].numpy().tolist() == [1] * 4


def test_another_layout_is_told_by_strides_and_ties() -> None:
    square, one = np.ones((2, 2)), np.ones((2, 2))
    cw.put("m", {"w": square, "b": one})
    tree = cw.get("m", swappable=True)
    cw.put("m", {"w": square.T, "b": one})
    with pytest.raises(cw.LayoutChanged, match=r'"w" has the strides \(8, 16\), not \(16, 8\)$'):
        tree.swap()
    cw.put("m", {"w": square, "b": square})
    with pytest.raises(cw.LayoutChanged, match='"b" has the tie to "w", not to none$'):
        tree.swap()
