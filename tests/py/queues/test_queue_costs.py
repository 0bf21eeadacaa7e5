"""What a put of an array costs beside its copy, counted."""

from __future__ import annotations

import numpy as np
import pytest

import cableway as cw
from cableway._queue import items
from cableway._transport.blocks import Block


def test_a_put_looks_at_few_of_the_blocks_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, values, looks = cw.Queue(), np.zeros(items.THRESHOLD_BYTES, "u1"), []
    state = Block.state.fget
    assert state is not None
    for _ in range(100):
        queue.put(values)
    monkeypatch.setattr(Block, "state", property(lambda block: looks.append(1) or state(block)))
    for _ in range(10):
        queue.put(values)
    assert 0 < len(looks) <= 10 * 8
    for _ in range(110):
        assert queue.get().nbytes == values.nbytes


def test_a_put_makes_one_handle_of_each_array(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(block: Block) -> bytes:
        raise AssertionError("a handle that no item needs")

    monkeypatch.setattr(Block, "handle", property(refuse))
    queue = cw.Queue()
    queue.put((np.arange(40_000), b"x" * 300_000, "y" * 300_000))
    array, _, text = queue.get()
    assert array[-1] == 39_999 and text == "y" * 300_000
