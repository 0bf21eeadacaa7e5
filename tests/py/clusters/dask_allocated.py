"""Tasks' arrays in shared memory (`cableway.allocate`): what is sent first is not copied, and nobody can tell. test_dask_values.py runs it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from typing import Any

import dask_cluster as c
import distributed
import numpy as np
from waiting import eventually

from cableway._core import numpy_memory

MIB = 1 << 20
N = MIB // 2  # of float64: 4 MiB


def _count_copies() -> None:
    """In a worker: `copies` says how many blocks were written from now on."""
    from cableway._dask import blocks

    original = blocks.copied

    def copied(connection: Any, frame: Any) -> Any:
        c.kept.append("copy")
        return original(connection, frame)

    blocks.copied = copied


def _copies() -> int:
    return c.kept.count("copy")


async def _settle(dask_worker: Any) -> None:
    """Waits until nobody has the worker's data but itself: a task's thread may have its result for a moment longer."""
    from cableway._dask import allocated

    for _ in range(1000):
        if all(
            allocated._references(dask_worker.data, key) == allocated._ALONE
            for key in dask_worker.data
        ):
            return
        await asyncio.sleep(0.005)
    raise AssertionError("somebody has the worker's data")


def _task(client: Any, task: Any, *arguments: Any, workers: list[str]) -> Any:
    """A future whose result nobody has but its worker."""
    found = client.submit(task, *arguments, workers=workers, pure=False)
    distributed.wait(found)
    client.run(_settle, workers=workers)
    return found


def _made(fill: float = 0.0) -> Any:
    return np.arange(N, dtype="f8") + fill


def _sum(x: Any) -> float:
    return float(x.sum())


SUM = N * (N - 1) / 2


def _spoil(x: Any) -> float:
    found = float(x.sum())
    x[...] = 7
    assert float(x.sum()) == 7.0 * N
    return found


def nothing_is_copied() -> None:
    """By whatever route the first reader asks; tasks may write to their argument, which nobody else sees. The data of a worker with a
    limit are another kind of dict.
    """
    for limit in (0, "2GiB"):
        _nothing_is_copied(limit)


def _nothing_is_copied(limit: object) -> None:
    with c.cluster(3, memory_limit=limit) as (client, workers):
        client.run(_count_copies)
        for i, first in enumerate(("worker", "scheduler", "direct")):
            x = _task(client, _made, i, workers=workers[:1])
            if first == "worker":
                got = client.submit(_sum, x, workers=workers[1:2], pure=False).result()
            else:
                got = _sum(client.gather(x, direct=first == "direct"))
            assert got == SUM + i * N
            for w in (workers[0], workers[1], workers[0]):  # each has views of its own
                assert client.submit(_spoil, x, workers=[w], pure=False).result() in (got, 7.0 * N)
            assert client.submit(_sum, x, workers=workers[2:], pure=False).result() == got
            assert client.run(_copies) == dict.fromkeys(workers, 0)
            seen = client.run(
                lambda dask_worker, key=x.key: c.records.mapped_bytes(dask_worker.data[key])
            )
            assert seen == dict.fromkeys(workers, 8 * N), seen
        del x
        assert eventually(lambda: not any(client.run(numpy_memory.used_bytes).values()))
        # What is no array as such is copied, and that would be seen.
        y = client.submit(lambda: [_made()], workers=workers[:1], pure=False)
        assert client.submit(len, y, workers=workers[1:2], pure=False).result() == 1
        assert client.run(_copies)[workers[0]] == 1


def used_memory_is_reused() -> None:
    """Without the setting: the first array is copied, and the next one lies in the memory of that copy."""
    with c.cluster(2) as (client, (first, second)):
        client.run(_count_copies)
        for i in range(6):
            x = _task(client, _made, i, workers=[first])
            assert client.submit(_sum, x, workers=[second], pure=False).result() == SUM + i * N
            assert client.submit(_spoil, x, workers=[first], pure=False).result() == SUM + i * N
            assert client.submit(_sum, x, workers=[second], pure=False).result() == SUM + i * N
            assert client.run(_copies)[first] == 1, (i, client.run(_copies))
            del x
            assert eventually(lambda: client.run(_has_used_memory)[first])


def _has_used_memory() -> bool:
    """Whether an array of a task would find some, in a worker."""
    from cableway import client
    from cableway._core.library import ffi, lib

    shape, dtype = ffi.new("int64_t *", 8 * N), ffi.new("char[]", b"|u1")
    layout = ffi.new("cw_layout *", {"ndim": 1, "itemsize": 1, "shape": shape, "dtype": dtype})
    out = ffi.new("cw_array **")
    found = lib.cw_array_new(client.current().pointer, b"cpu", layout, lib.CW_REUSED, out)
    if found == 0:
        lib.cw_array_close(out[0])
    return bool(found == 0)


def never() -> None:
    """All is copied."""
    with c.cluster(2) as (client, (first, second)):
        client.run(_count_copies)
        for i in range(3):
            x = client.submit(_made, i, workers=[first], pure=False)
            assert client.submit(_sum, x, workers=[second], pure=False).result() == SUM + i * N
            del x
            assert eventually(lambda: client.run(_has_used_memory)[first])
        assert client.run(_copies)[first] == 3


def orders_and_types() -> None:
    """Of all arrays the values, and the order of axes."""
    makes: list[Any] = [
        lambda: np.arange(N, dtype="f8").reshape(2, -1).copy(),
        lambda: np.asfortranarray(np.arange(N, dtype="f8").reshape(2, -1)),
        lambda: np.arange(2 * N, dtype="f8")[::2],
        lambda: np.arange(N, dtype="f8").reshape(2, -1).T,
        lambda: np.array([f"{i:09}" for i in range(300_000)]),
        lambda: np.array([str(i) for i in range(300_000)], object),
        lambda: np.zeros(N, [("a", "i4"), ("b", "f8")]),
        lambda: np.arange(N).astype("M8[s]"),
        lambda: np.ma.masked_less(np.arange(N), 5),
        lambda: [np.arange(N), np.ones(N)],
        lambda: np.broadcast_to(np.arange(N // 8), (8, N // 8)),
        lambda: np.arange(N, dtype=">f8"),
    ]
    with c.cluster(2) as (client, (first, second)):
        for make in makes:
            expected = make()
            x = client.submit(make, workers=[first], pure=False)
            y = client.submit(_described, x, workers=[second], pure=False).result()
            assert y == _described(expected), (y, _described(expected))
            assert y == client.submit(_described, x, workers=[first], pure=False).result()


def _described(x: Any) -> Any:
    if isinstance(x, list):
        return [_described(part) for part in x]
    values = np.ma.getdata(x)
    order = "F" if values.flags.f_contiguous and not values.flags.c_contiguous else "C"
    if values.dtype == object:
        return x.shape, values.tolist()
    return type(x), str(x.dtype), x.shape, order, hashlib.sha256(values.tobytes()).hexdigest()


def _made_and_kept() -> Any:
    c.kept[:] = [_made()]
    return c.kept[0]


def _made_and_part_kept() -> Any:
    x = _made()
    c.kept[:] = [x[5:]]
    return x


def _write_to_kept() -> None:
    c.kept[0][...] = -1


def what_somebody_has_is_copied() -> None:
    """Who keeps the array, or a view of it, and writes there later, is seen by nobody."""
    with c.cluster(2) as (client, (first, second)):
        for make in (_made_and_kept, _made_and_part_kept):
            x = client.submit(make, workers=[first], pure=False)
            assert client.submit(_sum, x, workers=[second], pure=False).result() == SUM
            client.run(_write_to_kept, workers=[first])
            y = client.submit(np.copy, x, workers=[second], pure=False).result()
            assert (y == np.arange(N)).all()
            assert (client.gather(x) == np.arange(N)).all()


def _hold_and_write(x: Any, folder: str) -> float:
    open(f"{folder}/began", "w").close()
    while not os.path.exists(f"{folder}/fetched"):
        time.sleep(0.01)
    x[...] = -1
    return float(x.sum())


def a_running_task_has_its_argument() -> None:
    """Another worker asks for the array in the midst of a task on the maker, which then writes to it."""
    folder = os.getcwd()
    with c.cluster(2, threads_per_worker=2) as (client, (first, second)):
        x = client.submit(_made, workers=[first], pure=False)
        writer = client.submit(_hold_and_write, x, folder, workers=[first], pure=False)
        assert eventually(lambda: os.path.exists("began"))
        assert client.submit(_sum, x, workers=[second], pure=False).result() == SUM
        open("fetched", "w").close()
        assert writer.result() == -1.0 * N
        assert client.submit(_sum, x, workers=[second], pure=False).result() == SUM
        y = client.submit(np.copy, x, workers=[second], pure=False).result()
        assert (y == np.arange(N)).all()


def _forks() -> Any:
    x = _made()
    child = os.fork()
    if child == 0:
        x[...] = -1
        os._exit(0 if (x == -1).all() else 1)
    x[0] = 5
    assert os.waitpid(child, 0)[1] == 0
    assert x[0] == 5 and (x[1:] == np.arange(1, N)).all()
    x[0] = 0
    return x


def tasks_may_fork() -> None:
    """As with private memory, neither sees what the other writes; the array is sent as ever."""
    with c.cluster(2) as (client, (first, second)):
        for _ in range(10):
            x = client.submit(_forks, workers=[first], pure=False)
            assert client.submit(_sum, x, workers=[second], pure=False).result() == SUM
            assert client.submit(_sum, x, workers=[first], pure=False).result() == SUM


def many_at_once() -> None:
    """Many tasks in several threads of several workers, each result read by all; then nothing is left."""
    with c.cluster(3, threads_per_worker=3) as (client, workers):
        for turn in range(4):
            made = [
                client.submit(_made, i, workers=[workers[i % 3]], pure=False) for i in range(30)
            ]
            sums = [client.submit(_sum, x, workers=[w], pure=False) for x in made for w in workers]
            assert client.gather(sums) == [SUM + i * N for i in range(30) for _ in workers], turn
            del made, sums
        assert eventually(lambda: not any(client.run(numpy_memory.used_bytes).values()))
        assert eventually(
            lambda: not any(client.run(lambda: threading.active_count() > 200).values())
        )


def full_memory() -> None:
    """With little shared memory all is right: what has no room there lies in private memory."""
    with c.cluster(2) as (client, (first, second)):
        made = [client.submit(_made, i, workers=[first], pure=False) for i in range(40)]
        sums = [client.submit(_sum, x, workers=[second], pure=False) for x in made]
        assert client.gather(sums) == [SUM + i * N for i in range(40)]


if __name__ == "__main__":
    c.main(globals())
