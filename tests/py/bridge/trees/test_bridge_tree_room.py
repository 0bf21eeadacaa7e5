"""Memory of trees of other nodes: what nobody has gives way, here and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator

import bridge_support
import numpy as np
import pytest
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

MIB = 1 << 20
LIMIT = 120 * MIB
PIECE = 20 * MIB
VERSIONS = 12  # of two pieces each: four times what a node may have


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    """Two nodes, each of which takes 120 MiB."""
    with bridge_support.pair("--read", "*", "--write", "*", CABLEWAY_MAX_BYTES=str(LIMIT)) as made:
        yield made


def put(node: Node, number: int) -> None:
    with node.here():
        cw.put("m", {"x": np.full(2 * PIECE, number, "u1")}, keep=True)


def has_room(node: Node, number: int) -> bool:
    """Puts it, where there is room by now: what the bridges held a moment ago comes back soon."""
    try:
        put(node, number)
    except cw.LimitExceeded:
        return False
    return True


def test_old_versions_give_way_on_both_nodes(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    for number in range(VERSIONS):
        assert eventually(lambda: has_room(b, number)), number  # noqa: B023
        with a.here():
            with cw.get("//b/m", timeout=60) as tree:
                assert tree["x"].numpy()[0] in (number - 1, number)
            assert eventually(lambda: came("//b/m") == number)  # noqa: B023


def came(name: str) -> int:
    with cw.get(name, timeout=60) as tree:
        assert tree.verify() == 1
        return int(tree["x"].numpy()[0])


def test_a_tree_without_room_is_refused_and_leaves_nothing(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    put(b, 1)
    with a.here():
        mine = cw.put("mine", np.zeros(5 * PIECE, "u1"))
        for _ in range(3):
            with pytest.raises(cw.LimitExceeded):
                cw.get("//b/m")
        assert mine[0] == 0
        del mine
        cw.remove("mine")
        assert came("//b/m") == 1


def test_versions_that_are_put_there_give_way(nodes: tuple[Node, Node]) -> None:
    """Of what is replaced nothing stays: neither what was sent from here, nor what was put there."""
    a, b = nodes
    for number in range(VERSIONS):
        with a.here():
            assert eventually(lambda: is_put(number)), number  # noqa: B023
        with b.here():
            assert came("m") == number


def is_put(number: int) -> bool:
    try:
        cw.put("//b/m", {"x": np.full(2 * PIECE, number, "u1")}, keep=True)
    except cw.LimitExceeded:
        return False
    return True


def test_a_tree_that_is_put_without_room_there_is_refused_and_leaves_nothing(
    nodes: tuple[Node, Node],
) -> None:
    a, b = nodes
    with b.here():
        mine = cw.put("mine", np.zeros(5 * PIECE, "u1"))
        with a.here():
            for _ in range(3):
                with pytest.raises(cw.LimitExceeded, match="max_bytes"):
                    cw.put("//b/m", {"x": np.zeros(PIECE, "u1"), "y": np.ones(PIECE, "u1")})
        assert mine[0] == 0 and "m" not in cw.names()
        del mine
        cw.remove("mine")
    with a.here():
        assert eventually(lambda: is_put(3))
