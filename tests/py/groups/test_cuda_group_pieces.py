"""Many bytes between the GPUs of a group: what comes in pieces, and what stays on a GPU beside what comes. Runs in `make test-more`."""

from __future__ import annotations

from typing import Any

import cuda_support
import numpy as np
import pytest
from group_operations import same
from group_support import outcomes

import cableway as cw

cuda_support.require()
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
gpus = cuda_support.for_module(devices=2)

PIECES_FROM = (256 << 20) // 4  # elements; PIECES_BYTES of gpu_reduce.c


@pytest.mark.timeout(300)
@pytest.mark.parametrize("more", [0, 12_345])
def test_a_reduction_in_pieces_has_every_element(more: int) -> None:
    def pieces(g: cw.Group, _pipe: Any) -> None:
        count = PIECES_FROM + more
        device = f"cuda:{g.rank % cuda_support.gpus_here()}"
        values = [np.arange(count, dtype="u4") * (7 + 6 * i) + i for i in range(g.size)]
        x = cw.asarray(values[g.rank], device=device)
        out = cw.zeros(count, "u4", device=device)
        for _ in range(2):
            same(g.Allreduce(x, out), values[0] + values[1])
            out.copy_from(np.zeros(count, "u4"))
        found = g.Reduce(x, out, "max", 1)
        if g.rank == 1:
            same(found, np.maximum(*values))
        same(x, values[g.rank])

    outcomes("pieces", 2, pieces, timeout=120)


@pytest.mark.timeout(300)
def test_fewer_bytes_and_blocks_of_a_scatter_have_every_element() -> None:
    def blocks(g: cw.Group, _pipe: Any) -> None:
        device = f"cuda:{g.rank % cuda_support.gpus_here()}"
        for count in (PIECES_FROM - 1, 2 * PIECES_FROM):
            values = [np.arange(count, dtype="u4") * (3 + i) for i in range(g.size)]
            x = cw.asarray(values[g.rank], device=device)
            if count % 2:
                same(g.Allreduce(x), values[0] + values[1])
            else:
                same(g.Reduce_scatter(x), (values[0] + values[1]).reshape(2, -1)[g.rank])

    outcomes("blocks", 2, blocks, timeout=120)


@pytest.mark.parametrize("count", [1 << 18, (1 << 20) + 1])
@pytest.mark.parametrize("begin", [0, 1])
def test_a_gpus_own_block_goes_beside_the_others(count: int, begin: int) -> None:
    def blocks(g: cw.Group, _pipe: Any) -> None:
        device = f"cuda:{g.rank % cuda_support.gpus_here()}"
        g.Allreduce(cw.zeros(1000, "f4", device=device))  # its kernels are loaded
        values = [np.random.default_rng(i).random(2 * count + 1, "f4") for i in range(g.size)]
        x = cw.asarray(values[g.rank], device=device)[begin : begin + 2 * count]
        sent = [one[begin : begin + 2 * count].reshape(2, count) for one in values]
        out = cw.full(2 * count + 1, -1.0, "f4", device=device)
        for _ in range(3):
            same(g.Alltoall(x, out[begin : begin + 2 * count]), [one[g.rank] for one in sent])
            same(out[2 * count if begin == 0 else 0], -1.0)  # nothing beside it
            same(g.Allgather(x[:count], out[begin : begin + 2 * count]), [one[0] for one in sent])
            out.copy_from(np.full(2 * count + 1, -1.0, "f4"))

    outcomes("own blocks", 2, blocks, timeout=60)
