"""Replicas that nobody has give way to what is put on the node itself."""

from __future__ import annotations

from collections.abc import Iterator

import bridge_support
import numpy as np
import pytest
from bridge_support import Node

import cableway as cw

WHY_NOT = bridge_support.lacking()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
MIB = 1 << 20
LIMIT = 120 * MIB
PIECE = 20 * MIB


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    """Two nodes, each of which takes 120 MiB."""
    with bridge_support.pair("--read", "*", "--write", "*", CABLEWAY_MAX_BYTES=str(LIMIT)) as made:
        yield made


def test_replicas_that_nobody_has_give_way_to_a_put(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    with a.here():
        for i in range(4):
            cw.put(f"x{i}", np.full(PIECE, i, "u1"))
    with b.here():
        for i in range(4):
            assert cw.get(f"//a/x{i}", timeout=30)[0] == i
        held = cw.get("//a/x3", timeout=30)
        for round_ in range(3):  # what gave way comes again, and gives way again
            mine = cw.put("mine", np.full(3 * PIECE, 9, "u1"))
            assert mine.sum(dtype="u8") == 9 * 3 * PIECE
            assert held.sum(dtype="u8") == 3 * PIECE
            del mine
            cw.remove("mine")
            for i in range(2):
                assert (cw.get(f"//a/x{i}", timeout=30).numpy() == i).all(), round_
        assert cw.get("//a/x3", timeout=30).sum(dtype="u8") == 3 * PIECE


def test_replicas_that_somebody_has_stay(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    with a.here():
        for i in range(4):
            cw.put(f"x{i}", np.full(PIECE, i, "u1"))
    with b.here():
        held = [cw.get(f"//a/x{i}", timeout=30) for i in range(4)]
        with pytest.raises(cw.LimitExceeded):
            cw.put("mine", np.full(3 * PIECE, 9, "u1"))
        assert all((held[i].numpy() == i).all() for i in range(4))
        del held
        assert cw.put("mine", np.full(3 * PIECE, 9, "u1"))[-1] == 9
