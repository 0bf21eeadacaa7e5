"""All operations of a group on buffers, beside what NumPy computes, wherever the elements lie."""

from __future__ import annotations

import itertools
from typing import Any

import cuda_support
import numpy as np

import cableway as cw

__all__ = ["COUNTS", "everything", "host", "place", "same", "values"]

# Elements of float64: in the call, in a few pieces, in many.
COUNTS = [0, 1, 20, 21, 1000, 40_000, 200_003]


def values(rank: int, count: int, dtype: Any = "f8") -> np.ndarray[Any, Any]:
    """What a member has."""
    return (np.arange(count) % 97 * (rank + 1) + rank).astype(dtype)


def place(data: Any, where: str, rank: int) -> Any:
    """The same elements in memory of a kind; on GPUs: "gpu" (one for all), "gpus" (two), "gpu part", "beside" (the others in host
    memory), "library" (of a GPU library).
    """
    if where == "private" or (where == "mixed" and rank % 2):
        return data
    if where == "beside" and rank % 3:
        return cw.asarray(data) if rank % 3 == 1 else data
    if where == "library":
        import gpu_standins

        return gpu_standins.make(gpu_standins.CupyArray, data)
    device = "cpu"
    if where in ("gpu", "gpu part", "beside", "gpus"):
        device = f"cuda:{rank % cuda_support.gpus_here()}" if where == "gpus" else "cuda:0"
    if where in ("part", "gpu part"):
        whole = np.empty(data.size + 7, data.dtype)
        whole[3 : 3 + data.size] = data.ravel()
        return cw.asarray(whole, device=device)[3 : 3 + data.size]
    return cw.asarray(data, device=device)


def host(found: Any) -> Any:
    """Elements, wherever they lie, as NumPy has them."""
    if isinstance(found, cw.Array):
        return found.to("cpu").numpy()
    return found.host() if hasattr(found, "host") else np.asarray(found)


def same(found: Any, expected: Any) -> None:
    """Compares elements, whatever their shapes."""
    np.testing.assert_array_equal(host(found).ravel(), np.asarray(expected).ravel())


def everything(g: cw.Group, _pipe: Any, where: str, counts: Any = COUNTS) -> int:
    """Each operation, of so many elements; how many the group has completed."""
    n, rank = g.size, g.rank
    for count, root in itertools.product(counts, {0, n - 1}):
        all_values = [values(i, count) for i in range(n)]
        mine = place(all_values[rank], where, rank)
        room = place(np.full(count, -1.0), where, rank)
        wide = place(np.full(n * count, -1.0), where, rank)
        total = sum(all_values)

        same(g.Allreduce(mine, room), total)
        same(g.Allreduce(mine), total)
        same(g.Allreduce(room, room, "max"), total)  # in place
        found = g.Reduce(mine, room, "min", root)
        same(found if rank == root else [], np.min(all_values, axis=0) if rank == root else [])

        data = place(all_values[root] if rank == root else np.zeros(count), where, rank)
        same(g.Bcast(data, root), all_values[root])

        found = g.Gather(mine, wide, root)
        same(found if rank == root else [], np.concatenate(all_values) if rank == root else [])
        same(g.Allgather(mine, wide), np.concatenate(all_values))

        blocks = [values(i, n * count).reshape(n, count) for i in range(n)]
        mine = place(blocks[rank].ravel(), where, rank)
        same(g.Scatter(mine if rank == root else None, room, root), blocks[root][rank])
        same(g.Reduce_scatter(mine, room), sum(blocks)[rank])
        same(g.Alltoall(mine, wide), [blocks[i][rank] for i in range(n)])
        same(g.Alltoall(mine, mine), [blocks[i][rank] for i in range(n)])  # in place
        same(mine, [blocks[i][rank] for i in range(n)])
        g.barrier()
    return g.completed
