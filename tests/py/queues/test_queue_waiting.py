"""However much waits in a queue, putting one more thing costs the same."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import cableway as cw
from cableway._queue import items
from cableway._transport import blocks as buffers

NBYTES = 70_000  # an array that goes by a block


class Counted(buffers.Block):
    """Counts the looks at blocks' words."""

    looks = 0

    @property
    def state(self) -> int:
        Counted.looks += 1
        return super().state


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(buffers, "Block", Counted)
    Counted.looks = 0
    yield Counted
    items._encoders.clear()  # they have the store of the test


def looks_of_puts(q: Any, count: int) -> int:
    before = Counted.looks
    for i in range(count):
        q.put(np.full(NBYTES, i % 100, "u1"))
    return Counted.looks - before


def test_a_put_costs_the_same_however_much_waits(
    counted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "_store", buffers.BlockStore(20 * NBYTES, in_transit=True))
    items._encoders.clear()
    q: Any = cw.Queue()
    looks_of_puts(q, 300)
    early, late = looks_of_puts(q, 100), 0
    for _ in range(4):
        late = looks_of_puts(q, 100)
    assert early == late, "800 waited, in place of 400"
    gc.collect()
    for i in range(800):
        assert (q.get() == i % 100).all()  # what the writer has let go of is there


def test_what_only_the_sender_holds_stays_and_is_looked_at_a_few_at_a_time(counted: Any) -> None:
    """A Pool's: nobody else keeps what was lent and is not opened yet."""
    store = buffers.BlockStore(2 * NBYTES)
    blocks = []
    for _ in range(200):
        block = store.take(NBYTES)
        block.lend()
        before = counted.looks
        store.lent([block], None)
        assert counted.looks - before <= buffers._LOOKS_EACH
        blocks.append(block)
    assert all(block.array is not None for block in blocks)
    for block in blocks:
        block._word[0] = buffers.RETURNED
    for _ in range(4):
        block = store.take(NBYTES)
        block.lend()
        store.lent([block], None)
    assert sum(block.array is not None for block in blocks) <= 8, "above its limit nothing is kept"
    store.close()
