"""Memory that a Pool keeps idle: it has a bound, and is given up before this process is refused any."""

from __future__ import annotations

import pytest
from conftest import Script

from cableway._pool_buffers import RETURNED, BlockStore

LIMITED = """
    import os
    os.environ["CABLEWAY_MAX_BYTES"] = str(64 << 20)
    import numpy as np, cableway as cw
    if __name__ == "__main__":
        with cw.Pool(1) as pool:
            assert pool.apply(len, (np.ones(30 << 20, "u1"),)) == 30 << 20
            idle = sum(block.capacity for block in pool._engine._store._lent)
            idle += pool._engine._store._free_bytes
            assert idle >= 30 << 20
            {then}
            print("had")
        pool.join()
"""


@pytest.mark.parametrize(
    "then",
    [
        'assert cw.put("large", np.ones(40 << 20, "u1")).nbytes == 40 << 20',
        'assert pool.apply(len, (np.ones(40 << 20, "u1"),)) == 40 << 20',
    ],
    ids=["put", "task"],
)
def test_idle_memory_is_given_up_before_this_process_is_refused(script: Script, then: str) -> None:
    assert script(LIMITED.format(then=then)).stdout == "had\n"


def test_what_is_kept_idle_has_a_bound_in_bytes() -> None:
    store = BlockStore(1 << 20)
    large = store.take(3 << 20)
    store.untake([large])
    assert store._free == [] and store._free_bytes == 0
    small = [store.take(300 << 10) for _ in range(5)]
    store.untake(small)
    assert sum(block.capacity for block in store._free) == store._free_bytes <= 1 << 20
    assert store._free
    store.close()


def test_a_store_that_has_ended_keeps_nothing_that_comes_back_late() -> None:
    store = BlockStore(1 << 20)
    block = store.take(300 << 10)
    store.close()
    store.untake([block])
    assert store._free == [] and block.array is None


def test_what_has_come_back_counts_as_idle() -> None:
    store = BlockStore(8 << 20)
    block, gone = store.take(300 << 10), store.take(300 << 10)
    for lent in (block, gone):
        lent.lend()
    store.lent([block, gone], None)
    block._word[0] = RETURNED
    assert store.give_up() and block.array is None and gone.array is not None
    assert not store.give_up()
    store.close()
