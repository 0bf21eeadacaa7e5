"""What cableway.dask promises of values: the first bytes on every route, and objects as stock Dask has them. test_dask_values.py runs it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

MIB = 1 << 20
N = MIB // 4  # of float64: 2 MiB


def _stock() -> bool:
    return os.environ.get("STOCK") == "1"


if not _stock():
    import dask_cluster as c
    from waiting import eventually

    import cableway as cw
    from cableway._dask import blocks, names


# ---- the first bytes, on every route


def _array() -> Any:
    return np.arange(N, dtype="f8")


def _list() -> Any:
    return [np.arange(N, dtype="f8"), "text", np.ones(N)]


def _dict() -> Any:
    return {"a": np.arange(N, dtype="f8"), "b": 3}


def _frame() -> Any:
    import pandas as pd

    return pd.DataFrame({"a": np.arange(N, dtype="f8")})


def _masked() -> Any:
    return np.ma.masked_array(np.arange(N, dtype="f8"), mask=np.arange(N) > 5)


def _arrays_of(x: Any) -> list[Any]:
    if isinstance(x, (list, dict)):
        parts = x.values() if isinstance(x, dict) else x
        return [part for part in parts if isinstance(part, np.ndarray)]
    return [x.to_numpy(copy=False)] if hasattr(x, "to_numpy") else [x]


def _sums(x: Any) -> list[float]:
    return [float(np.asarray(part).sum()) for part in _arrays_of(x)]


def _spoil(x: Any) -> list[float]:
    found = _sums(x)
    for part in _arrays_of(x):
        while not part.flags.writeable:  # pandas gives out read-only views of what it may write to
            part = part.base
        part[...] = 7
    assert _sums(x) == [7.0 * N for _ in _arrays_of(x)], _sums(x)
    return found


def first_bytes() -> None:
    """What tasks write in place after the first sending, whichever route it took, nobody else sees: not by the scheduler, not direct,
    not on another worker; and a key that returns its argument is another one.
    """
    with c.cluster(3) as (client, workers):
        for make in (_array, _list, _dict, _frame, _masked):
            for first in ("scheduler", "worker", "direct"):
                for where in (0, 1):
                    _check(client, workers, make, first, where)
        # Two keys of one object, on a worker that wrote to it.
        x = client.submit(_array, workers=workers[:1], key="x-of-two")
        y = client.submit(_again, x, workers=workers[1:2], key="y-of-two")
        assert client.submit(_sums, y, workers=workers[2:], pure=False).result() == [7.0 * N]
        os.kill(client.run(os.getpid)[workers[0]], 9)
        assert eventually(lambda: workers[0] not in client.scheduler_info(n_workers=-1)["workers"])
        assert _sums(x.result()) == _sums(_array())
        assert _sums(y.result()) == [7.0 * N]


def _again(x: Any) -> Any:
    x[:] = 7
    return x


def _check(client: Any, workers: list[str], make: Any, first: str, where: int) -> None:
    x = client.submit(make, workers=workers[:1], pure=False)
    expected, what = _sums(make()), (make.__name__, first, where)
    if first == "worker" or where == 1:
        got = client.submit(_sums, x, workers=workers[1:2], pure=False).result()
    else:
        got = _sums(client.gather(x, direct=first == "direct"))
    assert got == expected, (what, got)
    assert client.submit(_spoil, x, workers=[workers[where]], pure=False).result() == expected
    for turn in range(2):
        for route in ("scheduler", "direct"):
            got = _sums(client.gather(x, direct=route == "direct"))
            assert got == expected, (what, route, turn, got)
    got = client.submit(_sums, x, workers=workers[2:], pure=False).result()
    assert got == expected, (what, got)


def first_bytes_from_disk() -> None:
    """The same of what was spilled and read again in between."""
    with c.cluster(2, memory_limit="2GiB") as (client, workers):
        for make in (_array, _list, _masked):
            x = client.submit(make, workers=workers[:1], pure=False)
            assert client.submit(_sums, x, workers=workers[1:], pure=False).result() == _sums(
                make()
            )
            client.submit(_spoil, x, workers=workers[:1], pure=False).result()
            assert client.run(_spilled, x.key, workers=workers[:1])[workers[0]] == x.key
            got = _sums(client.gather(x))
            assert got == _sums(make()), (make.__name__, got)
            client.submit(_spoil, x, workers=workers[:1], pure=False).result()
            got = _sums(client.gather(x))
            assert got == _sums(make()), (make.__name__, got)


def _spilled(key: str, dask_worker: Any) -> Any:
    while key in dask_worker.data.fast:
        assert dask_worker.data.evict() != -1
    return key if key in dask_worker.data.disk else None


# ---- objects as stock Dask has them


class _Recorded(np.ndarray):
    """A subclass with an attribute."""


def _plain() -> Any:
    return np.arange(N, dtype="f8")


def _fixed() -> Any:
    fixed = _plain()
    fixed.flags.writeable = False
    return fixed


def _records() -> Any:
    return np.zeros(N, dtype=[("a", "f4"), ("b", "i8")])


def _memmap() -> Any:
    memmap = np.memmap("mapped", dtype="f8", mode="w+", shape=(N,))
    memmap[:] = _plain()
    return memmap


def _subclass() -> Any:
    recorded = _plain().view(_Recorded)
    recorded.unit = "m"
    return recorded


def _series() -> Any:
    import pandas as pd

    series = pd.Series(_plain(), name="s")
    series.attrs["unit"] = "m"
    return series


def _table() -> Any:
    import pandas as pd

    return pd.DataFrame({"a": _plain(), "b": _plain().astype("i4"), "c": ["x"] * N})


def _sparse() -> Any:
    import scipy.sparse

    return scipy.sparse.random(4096, 4096, density=2e-2, format="csr", random_state=1)


KINDS: dict[str, Any] = {
    "plain": _plain,
    "fixed": _fixed,
    "records": _records,
    "recarray": lambda: _records().view(np.recarray),
    "aligned": lambda: np.zeros(N, dtype=np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    "memmap": _memmap,
    "masked": lambda: np.ma.masked_array(
        _plain(), mask=_plain() > 5, hard_mask=True, fill_value=3.0
    ),
    "matrix": lambda: np.asmatrix(_plain().reshape(-1, 64).copy()),
    "subclass": _subclass,
    "strided": lambda: np.arange(2 * N, dtype="f8")[::2],
    "reversed": lambda: _plain()[::-1],
    "fortran": lambda: np.asfortranarray(_plain().reshape(-1, 64)),
    "transposed": lambda: _plain().reshape(8, 64, -1).transpose(1, 2, 0),
    "window": lambda: np.arange(N + 128, dtype="f8").reshape(-1, 64)[1:-1, :-1],
    "broadcast": lambda: np.broadcast_to(_plain(), (3, N)),
    "big-endian": lambda: _plain().astype(">f8"),
    "series": _series,
    "frame": _table,
    "sparse": _sparse,
    "list": lambda: [_plain(), _plain()[::2].copy()],
    "tuple": lambda: (_plain(), "text"),
    "bytearray": lambda: bytearray(2 * MIB),
    "bytes": lambda: bytes(2 * MIB),
}


def _described(x: Any) -> Any:
    """What a program can tell of an object: type, shape, how it lies in memory, flags, attributes, values."""
    if isinstance(x, (list, tuple)):
        return [type(x).__name__, *map(_described, x)]
    if isinstance(x, np.ndarray):
        raw = hashlib.sha256(np.ascontiguousarray(np.ma.getdata(x)).tobytes()).hexdigest()
        found = [
            type(x).__name__,
            list(x.shape),
            list(x.strides),
            repr(x.dtype),
            x.dtype.isalignedstruct,
        ]
        found += [x.flags.writeable, x.flags.c_contiguous, x.flags.f_contiguous, raw]
        found.append(getattr(x, "unit", None))
        if isinstance(x, np.ma.MaskedArray):
            found += [int(x.mask.sum()), x.hardmask, float(x.fill_value)]
        if isinstance(x, np.memmap):
            found += [str(x.mode), x.offset]
        return found
    if type(x).__module__.startswith("scipy"):
        return [type(x).__name__, *map(_described, (x.data, x.indices, x.indptr))]
    if type(x).__module__.startswith("pandas"):
        parts = [x] if x.ndim == 1 else [x[name] for name in x]
        numbers = [_described(part.to_numpy()) for part in parts if part.dtype.kind in "fi"]
        return [
            type(x).__name__,
            dict(x.attrs),
            repr(x.index),
            [str(part.dtype) for part in parts],
            numbers,
        ]
    return [type(x).__name__, x if isinstance(x, str) else hashlib.sha256(x).hexdigest()]


def _kind(name: str) -> Any:
    return KINDS[name]()


def as_stock() -> None:
    """Prints what a reader, a second one, the client and the maker see of each kind of object, after it was sent."""
    from distributed import Client, LocalCluster

    options: dict[str, Any] = {
        "threads_per_worker": 1,
        "dashboard_address": None,
        "memory_limit": 0,
    }
    with LocalCluster(n_workers=3, **options) as made, Client(made, timeout="120s") as client:
        client.wait_for_workers(3, timeout=120)
        client.amm.stop()  # of stock Dask: it may drop the maker's object, and keep a reader's
        workers = [*client.run(os.getpid)]
        found = {}
        for name in KINDS:
            x = client.submit(_kind, name, workers=workers[:1])
            maker, *readers = (
                [client.submit(_described, x, workers=[w], pure=False).result() for _ in range(2)]
                for w in workers
            )
            maker.append(client.submit(_described, x, workers=workers[:1], pure=False).result())
            found[name] = [maker, readers, _described(client.gather(x)), maker[0] == maker[-1]]
        print(json.dumps(found))


def as_stock_has_them() -> None:
    """Runs `as_stock` with stock Dask and with ours, and compares."""
    file, here = str(Path(__file__).resolve()), Path.cwd()
    found = []
    for stock in ("1", "0"):
        folder = here / f"stock-{stock}"
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, file, "as_stock"],
            env={**os.environ, "STOCK": stock},
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found.append(json.loads(done.stdout.splitlines()[0]))
    stock, ours = found
    worse = {name: (stock[name], ours[name]) for name in stock if ours[name] != stock[name]}
    assert not worse, json.dumps(worse, indent=1)
    assert all(kind[-1] for kind in stock.values())


# ---- event loops


class _Pickled:
    """Large, and no buffer: it says whether it was opened where an event loop runs, which it would keep from all else."""

    def __init__(self) -> None:
        self.data = os.urandom(12 * MIB)
        self.on_loop = False

    def __sizeof__(self) -> int:
        return len(self.data)

    def __reduce__(self) -> Any:
        return _opened, (self.data,)


def _opened(data: bytes) -> _Pickled:
    import asyncio

    made = object.__new__(_Pickled)
    made.data, made.on_loop = data, True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        made.on_loop = False
    return made


def off_the_loop() -> None:
    """What takes long to unpickle is not opened on a worker's event loop, though its message is small."""
    with c.cluster(2) as (client, workers):
        x = client.submit(_Pickled, workers=workers[:1], pure=False)
        seen = client.submit(lambda x: (len(x.data), x.on_loop), x, workers=workers[1:]).result()
        assert seen == (12 * MIB, False), seen
        assert c.used() > 0


# ---- memory and settings


def memory_goes_back() -> None:
    """With CABLEWAY_CACHE_BYTES=0, what Dask releases is free within some seconds: of a worker, and of a client that scattered."""
    with c.cluster(2) as (client, workers):
        for turn in range(3):
            x = client.submit(c.made, 16, fill=turn, workers=workers[:1])
            assert client.submit(c.total, x, workers=workers[1:]).result() == c.total_of(16, turn)
            y = client.scatter(c.made(16), direct=True, workers=workers[:1])
            assert client.submit(c.total, y, workers=workers[1:]).result() == c.total_of(16)
            assert c.used() >= 32 * MIB, c.used()
            del x, y
            assert eventually(lambda: c.used() < MIB, 10), c.used()


def comes_back() -> None:
    """After the broker's death, the connections that are there carry handles again within 10 s; none is closed for it (but those on
    which a handle of the dead broker was under way, and there is none here). What was sent before keeps its first bytes.
    """
    import signal

    with c.cluster(2) as (client, workers):
        for turn in range(3):
            assert eventually(lambda: _by_handle(client, workers), 10), turn  # noqa: B023
            before = client.run(_connections)
            x = client.submit(c.made, 2, fill=turn, workers=workers[:1], pure=False)
            for w in reversed(workers):
                assert client.submit(c.spoiled, x, workers=[w], pure=False).result() == c.total_of(
                    2, turn
                )
            pid = c.node.connection().broker_pid
            os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            assert eventually(lambda: not any(client.run(_has_broker, pid).values()), 10), turn  # noqa: B023
            while not _by_handle(client, workers):
                assert time.monotonic() < began + 10, turn
                time.sleep(0.1)
            assert c.node.connection().broker_pid != pid
            print(f"by handle again after {time.monotonic() - began:.1f} s")
            after = client.run(_connections)
            assert all(set(before[w]) <= set(after[w]) for w in workers), (before, after)
            for direct in (False, True):  # what was sent before goes out of the new broker's memory
                got = client.gather(x, direct=direct)
                assert c.total(got) == c.total_of(2, turn)
                assert bool(c.records.mapped_bytes(got)) == direct


def _has_broker(pid: int) -> bool:
    """Whether the process takes this broker for alive."""
    from cableway import client

    found = client.known()
    return found is not None and not found.lost and found.broker_pid == pid


def _connections(dask_worker: Any) -> list[str]:
    """Those that its pool has to workers, whether in use or not."""
    pool = dask_worker.rpc
    return sorted(
        f"{comm.local_address}-{comm.peer_address}"
        for comms in (*pool.available.values(), *pool.occupied.values())
        for comm in comms
        if not comm.closed() and comm.peer_address != dask_worker.scheduler.address
    )


def _by_handle(client: Any, workers: list[str]) -> bool:
    x = client.submit(c.made, 2, workers=workers[:1], pure=False)
    assert client.submit(c.total, x, workers=workers[1:], pure=False).result() == c.total_of(2)
    direct = client.gather(x, direct=True)
    assert c.total(direct) == c.total_of(2)
    seen = client.run(c.look)
    return all(seen[w]["mapped"].get(x.key) for w in workers) and bool(
        c.records.mapped_bytes(direct)
    )


def told() -> None:
    """A broker that cannot start is told of once a process, with what is wrong; values are right (CABLEWAY_MAX_BYTES=64MiX here)."""
    with c.cluster(2, silence_logs=False) as (client, workers):
        for turn in range(2):
            x = client.submit(c.made, 2, fill=turn, workers=workers[:1])
            assert client.submit(c.total, x, workers=workers[1:]).result() == c.total_of(2, turn)
            assert c.total(client.gather(x, direct=True)) == c.total_of(2, turn)
            time.sleep(6)  # it is tried again


def names_go_with_blocks() -> None:
    """A name for other nodes ends when its block goes, without anybody who looks or names another one; also in a forked process."""
    assert _names_go(), cw.names()
    block = _named_block()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if _names_go(block.name) else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert cw.names("dask/") == [block.name]
    del block
    assert eventually(lambda: cw.names("dask/") == [])


def _named_block() -> Any:
    connection = c.node.connection()
    assert connection is not None
    block = blocks.copied(connection, b"some bytes")
    assert names.named(block) in cw.names("dask/")
    return block


def _names_go(*others: str) -> bool:
    for _ in range(3):
        _named_block()
    return eventually(lambda: cw.names("dask/") == [*others])


# ---- settings


def a_bad_setting_after_the_import() -> None:
    """The default counts, and data go by handle."""
    for bad in ("much", 0, [1]):
        wrong = {"cableway.threshold": bad, "cableway.gpu-share": "often"}
        with c.dask.config.set(wrong), c.cluster(2) as (client, (first, second)):
            x = client.submit(_array, workers=[first])
            assert client.submit(np.sum, x, workers=[second]).result(timeout=60) == N * (N - 1) / 2
            seen = client.run(
                lambda dask_worker, key=x.key: c.records.mapped_bytes(dask_worker.data[key])
            )
            assert seen == {first: 8 * N, second: 8 * N}, seen


if __name__ == "__main__":
    if _stock():
        as_stock()
    else:
        c.main(globals())
