"""What cableway.dask promises, one function each; test_dask.py runs them. Values, memory, who gets bytes."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import dask
import dask_cluster as c
import numpy as np
from dask_cluster import MIB
from distributed import Client, Security, worker_client
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize
from waiting import eventually

import cableway as cw
from cableway._core import idle_memory
from cableway._dask import blocks, comm, family, memory, node, records


def one_copy() -> None:
    """An array on four workers is one copy, whatever tasks write to it, and stays though its maker is killed."""
    log = Path("log").resolve()
    with c.cluster(dashboard_address=":0") as (client, workers):
        before = client.run(c.look)
        x = client.submit(c.made, 32, str(log), workers=workers[:1], allow_other_workers=True)
        small = client.submit(c.made, 1 / 1024, workers=workers[:1])
        sums = [client.submit(c.total, x, workers=[w], pure=False) for w in workers]
        assert client.gather(sums) == [c.total_of(32)] * 4
        assert c.used() <= 1.15 * 32 * MIB + 9 * MIB, c.used()  # and the slabs' own
        for w, seen in client.run(c.look).items():
            assert seen["mapped"][x.key] == 32 * MIB, seen
            assert seen["private"] - before[w]["private"] <= 20 * MIB, (w, before[w], seen)
        # What came by handle says nothing of the network.
        assert {*client.run(lambda dask_worker: dask_worker.bandwidth).values()} == {100e6}
        page = json.load(urllib.request.urlopen(_page(client, "cableway.json")))
        assert {row["worker"] for row in page["workers"]} == set(workers)
        assert b"store limit" in urllib.request.urlopen(_page(client, "cableway")).read()
        # Dask's memory manager keeps them, and drops replicas of what is small.
        client.replicate([small])
        assert len(client.who_has(small)[small.key]) == 4
        mapped = lambda: len(  # noqa: E731
            [row for row in _rows(client) if row["mapped_bytes"] >= 32 * MIB]
        )
        assert eventually(lambda: mapped() == 4)  # the workers' heartbeats have told
        client.amm.run_once()
        assert eventually(lambda: len(client.who_has(small)[small.key]) == 1)
        assert len(client.who_has(x)[x.key]) == 4
        # Each worker but one writes to its argument; the last one reads the first bytes from one of those.
        for w in workers[:3]:
            spoiled = client.submit(c.spoiled, x, workers=[w], pure=False).result()
            assert spoiled == c.total_of(32)
        one = workers[1]
        for w in (workers[0], *workers[2:]):
            os.kill(before[w]["pid"], signal.SIGKILL)
        assert eventually(lambda: len(client.who_has(x)[x.key]) == 1)
        client.wait_for_workers(4, timeout=120)
        other = next(w for w in c.addresses(client) if w != one)
        assert client.submit(c.total, x, workers=[other], pure=False).result() == c.total_of(32)
        assert c.times_made(log) == 1
    assert eventually(lambda: c.used() < 9 * MIB), c.used()


def _page(client: Client, path: str) -> str:
    return client.dashboard_link.replace("/status", f"/{path}")


def _rows(client: Client) -> list[dict[str, Any]]:
    found = json.load(urllib.request.urlopen(_page(client, "cableway.json")))
    return list(found["workers"])


def _again(x: Any) -> Any:
    x[:] = 7
    return x


def kinds() -> None:
    """What Dask serializes with large frames comes as it was, on views where its library takes them."""
    import pandas as pd
    import pyarrow as pa
    import scipy.sparse

    n = 1 << 16
    plain = np.arange(n, dtype="f8")
    fixed = plain.copy()
    fixed.flags.writeable = False
    values: dict[str, Any] = {
        "plain": plain,
        "read-only": fixed,
        "fortran": np.asfortranarray(plain.reshape(256, 256)),
        "strided": plain[::2],
        "broadcast": np.broadcast_to(plain, (3, n)),
        "structured": np.zeros(n, dtype=[("a", "f4"), ("b", "i8")]),
        "dates": plain.astype("M8[s]"),
        "masked": np.ma.masked_array(plain, mask=plain > 5),
        "objects": np.array([*map(str, range(9)), None], dtype=object),
        "bytes": bytes(n),
        "frame": pd.DataFrame({"a": plain, "b": np.arange(n), "c": ["x"] * n}),
        "series": pd.Series(plain, name="s"),
        "table": pa.table({"a": plain, "b": [str(i) for i in range(n)]}),
        "sparse": scipy.sparse.random(4096, 4096, density=2e-3, format="csr"),
        "list": [plain, "text", plain + 1],
        "dict": {"a": plain, "b": 3},
        "empty": np.empty((0, 3)),
    }
    views = {
        "plain",
        "read-only",
        "fortran",
        "strided",
        "structured",
        "dates",
        "frame",
        "series",
        "table",
        "sparse",
    }
    kept = []
    with c.cluster(2) as (client, workers):
        for name, value in values.items():
            x = client.submit(lambda v: v, value, key=f"x-{name}", workers=workers[:1])
            got = client.submit(_described, x, pure=False, workers=workers[1:]).result()
            here = client.submit(_described, x, pure=False, workers=workers[:1]).result()
            assert got == here, (name, got, here)
            kept.append(x)
        for seen in client.run(c.look).values():
            assert all(seen["mapped"].get(f"x-{name}", 1) for name in views), seen
        # A task that returns its argument, after it wrote to it: two keys of one object.
        x = client.submit(c.made, 1, workers=workers[:1], key="x-first")
        y = client.submit(_again, x, workers=workers[1:], key="y-second")
        assert client.submit(c.total, y, workers=workers[:1], pure=False).result() == 7 * (MIB // 8)
        z = client.submit(c.total, x, workers=workers[:1], pure=False)
        assert z.result() == c.total_of(1)
        # What a task names in cableway is a copy of what it sees, and no part of the block.
        assert client.submit(_named, x, workers=workers[1:], pure=False).result() == [7.0, 5.0]


def _named(x: Any) -> list[float]:
    x[0] = 7
    w = cw.put("dask-named", x)
    w[0] = 5
    return [float(x[0]), float(w[0])]


def _described(value: Any) -> Any:
    """What tells a value from others; of arrays also how they lie, and whether they may be written to."""
    import hashlib
    import pickle

    if isinstance(value, (list, tuple)):
        return [*map(_described, value)]
    if isinstance(value, dict):
        return {key: _described(part) for key, part in value.items()}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        raw = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        mask = np.ma.getmaskarray(value).sum() if isinstance(value, np.ma.MaskedArray) else 0
        return type(value).__name__, value.shape, value.dtype.str, value.flags.writeable, raw, mask
    if type(value).__module__.startswith("scipy"):
        return _described([value.data, value.indices, value.indptr])
    if type(value).__module__.startswith("pyarrow"):
        return value.to_pydict()
    if type(value).__module__.startswith("pandas"):
        return value.to_json()
    return hashlib.sha256(pickle.dumps(value)).hexdigest()


def others_get_bytes() -> None:
    """A worker without cableway, or of another broker, has the same results; so has a client that reads directly."""
    # Else Dask keeps a key in one memory of the three, and may do so before we have looked.
    keeps_all = dask.config.set({"distributed.scheduler.active-memory-manager.start": False})
    with keeps_all, c.cluster(2) as (client, workers):
        plain = _worker(
            client, DASK_DISTRIBUTED__WORKER__PRELOAD="[]", DASK_DISTRIBUTED__NANNY__PRELOAD="[]"
        )
        folder = Path("other").resolve()
        folder.mkdir(mode=0o700)
        apart = _worker(
            client, CABLEWAY_DIR=str(folder), DASK_DISTRIBUTED__WORKER__PRELOAD='["cableway.dask"]'
        )
        try:
            client.wait_for_workers(4, timeout=120)
            x = client.submit(
                np.ones, MIB, workers=workers[:1]
            )  # tasks that import nothing of ours
            everyone = [*client.run(_mapped)]
            sums = [client.submit(np.sum, x, workers=[w], pure=False) for w in everyone]
            assert client.gather(sums) == [float(MIB)] * 4
            others = [w for w in everyone if w not in workers]
            there = [client.submit(np.full, MIB, 3.0, workers=[w], pure=False) for w in others]
            sums = [
                client.submit(np.sum, y, workers=[w], pure=False) for y in there for w in everyone
            ]
            assert client.gather(sums) == [3.0 * MIB] * 8
            mapped = client.run(_mapped, x.key)
            assert [mapped[w] for w in workers] == [8 * MIB] * 2, mapped
            assert sorted(mapped[w] for w in others) == [-1, 0], mapped
        finally:
            for process in (plain, apart):
                process.terminate()
                process.wait(60)
            subprocess.run(
                ["cableway", "stop", "--yes", "--force"],
                env={**os.environ, "CABLEWAY_DIR": str(folder)},
                check=False,
            )
        direct = client.gather(x, direct=True)
        assert records.mapped_bytes(direct) == 8 * MIB
        direct[:] = 3
        assert client.submit(np.sum, x, workers=workers[1:], pure=False).result() == MIB
        mine = c.made(8)
        sent = client.scatter(mine, direct=True, workers=workers[:1])
        mine[:] = 3
        sums = [client.submit(c.total, sent, workers=[w], pure=False) for w in workers]
        assert client.gather(sums) == [c.total_of(8)] * 2


def _mapped(key: str = "", *, dask_worker: Any) -> int:
    """Bytes of a worker's object that lie in shared memory; -1: it has no cableway."""
    records = sys.modules.get("cableway._dask.records")
    return records.mapped_bytes(dask_worker.data.get(key)) if records is not None else -1


def _worker(client: Client, **environment: str) -> subprocess.Popen[bytes]:
    """`dask worker` of its own."""
    words = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        client.scheduler.address,
        "--nthreads",
        "1",
        "--no-nanny",
        "--no-dashboard",
    ]
    return subprocess.Popen(
        words,
        env={**os.environ, "PYTHONPATH": os.path.dirname(__file__), **environment},
        stderr=subprocess.DEVNULL,
    )


def by_tls() -> None:
    """Over tls, handles go as over tcp."""
    with c.cluster(2, security=Security.temporary(), protocol="tls://") as (client, workers):
        x = client.submit(c.made, 8, workers=workers[:1])
        assert client.submit(c.spoiled, x, workers=workers[1:]).result() == c.total_of(8)
        assert client.submit(c.total, x, workers=workers[:1]).result() == c.total_of(8)
        assert all(seen["mapped"][x.key] == 8 * MIB for seen in client.run(c.look).values())


def full_store() -> None:
    """Where shared memory is full (CABLEWAY_MAX_BYTES is 64 MiB here) the rest goes as bytes."""
    with c.cluster(2) as (client, workers):
        arrays = [
            client.submit(c.made, 24, fill=i, workers=workers[i % 2 : i % 2 + 1]) for i in range(6)
        ]
        for _ in range(2):
            sums = [
                client.submit(c.total, x, workers=[w], pure=False) for x in arrays for w in workers
            ]
            assert client.gather(sums) == [c.total_of(24, i) for i in range(6) for _ in workers]
        assert c.used() <= 64 * MIB
        mapped = [sum(seen["mapped"].values()) for seen in client.run(c.look).values()]
        assert all(0 < count <= 64 * MIB for count in mapped), mapped


def budgets(mib: str, limit: str) -> None:
    """Six arrays in shared memory do not count for a worker's limit: nothing was ever spilled, paused or started again."""
    nbytes = int(mib) * MIB
    with c.cluster(4, memory_limit=limit) as (client, workers):
        before = client.run(c.look)
        arrays = []
        for i in range(6):
            arrays.append(client.submit(c.made, int(mib), fill=i, workers=workers[:1]))
            sums = [client.submit(c.total, arrays[-1], workers=[w], pure=False) for w in workers]
            assert client.gather(sums) == [c.total_of(int(mib), i)] * 4
        for w, seen in client.run(c.look).items():
            assert len(seen["mapped"]) >= 6, seen
            assert sum(seen["mapped"].values()) == 6 * nbytes, seen
            assert (seen["spilled"], seen["pid"]) == (0, before[w]["pid"])
        assert not any(client.run(_written).values())
        changes = [
            event["status"]
            for w in workers
            for _, event in client.get_events(w)
            if event.get("action") == "worker-status-change"
        ]
        assert "paused" not in changes, changes


def _written(dask_worker: Any) -> list[Any]:
    """What its data have written to disk."""
    return [what for what in dask_worker.data.cumulative_metrics if "disk-write" in what]


def spills_when_shared_memory_is_short() -> None:
    """Above 70 % of the node's shared memory (80 MiB here) workers spill what lies there; it comes back when it is needed."""
    with c.cluster(2, memory_limit="2GiB") as (client, workers):
        arrays = []
        for i in range(4):
            arrays.append(client.submit(c.made, 16, fill=i, workers=workers[:1]))
            assert client.submit(c.total, arrays[-1], workers=workers[1:]).result() == c.total_of(
                16, i
            )
        assert eventually(lambda: sum(seen["spilled"] for seen in client.run(c.look).values()) > 0)
        assert eventually(lambda: c.used() <= 0.7 * 80 * MIB)
        sums = [client.submit(c.total, x, workers=[w], pure=False) for x in arrays for w in workers]
        assert client.gather(sums) == [c.total_of(16, i) for i in range(4) for _ in workers]


def handles() -> None:
    """Of connections: what is held until the answer, what becomes of a handle whose block is gone, and for how long."""
    asyncio.run(_handles())


async def _handles() -> None:
    node.has_data = lambda: True  # as if this process were a worker
    replies: list[Any] = []

    async def serve(server: Any) -> None:
        while True:
            try:
                request = await server.read()
            except CommClosedError:
                return
            await server.write({"x": to_serialize(replies[0])})
            if request == "and let go":
                server.unanswered.clear()
                gc.collect()

    replies.append(c.made(2))
    listener = await listen("tcp://127.0.0.1:0", serve)
    address = listener.contact_address

    async def ask(link: Any, what: str) -> Any:
        await link.write(what)
        return (await link.read())["x"]

    link = await connect(address)
    x = await ask(link, "please")
    assert records.mapped_bytes(x) == 2 * MIB
    x[:] = 7
    assert float((await ask(link, "please")).sum()) == c.total_of(2)
    del x
    # The block went before the handle was opened.
    await link.write("and let go")
    try:
        await link.read()
    except CommClosedError as error:
        assert "a handle could not be opened" in str(error), error
    else:
        raise AssertionError("it was opened")
    assert link.closed()
    link = await connect(address)
    for mapped in (0, 2 * MIB):  # bytes for 30 s, and handles afterwards, on the same connection
        x = await ask(link, "please")
        assert float(x.sum()) == c.total_of(2)
        assert records.mapped_bytes(x) == mapped
        node._distrusted.update(dict.fromkeys(node._distrusted, 0.0))
    await link.close()
    # A scheduler unpacks nothing, so it gets bytes; and who asks for a serializer has it.
    link = await connect(address, deserialize=False)
    await link.write("please")
    assert "cableway" not in str((await link.read())["x"].header)
    await link.close()
    del x
    # Nothing is held when the peer does not answer, but until the timer.
    comm.HOLD_SECONDS = 0.2
    link = await connect(address)
    x = await ask(link, "please")
    del x
    gc.collect()
    for _ in range(200):
        await asyncio.sleep(0.05)
        if _nothing_is_held():
            break
    else:
        raise AssertionError(f"{c.used()} bytes are held")
    # Beyond so many views there are copies.
    blocks.PRIVATE_VIEWS_MAX = 0
    x = await ask(link, "please")
    assert float(x.sum()) == c.total_of(2)
    assert not blocks._private
    await link.close()
    listener.stop()
    try:
        family.dumps(c.made(2), None)
    except NotImplementedError:
        pass
    else:
        raise AssertionError("without a peer there are no handles")


def _nothing_is_held() -> bool:
    """Whether the process has no view, looks for no block any more, and has given back all that it kept for its next blocks."""
    if blocks._private or memory._collecting:
        return False
    idle_memory.trim(0)
    return c.used() == 0


def work_in_a_task() -> None:
    """A task that is a client itself, as with worker_client, and hands its arrays on."""
    with c.cluster(2) as (client, workers):
        x = client.submit(c.made, 4, workers=workers[:1])
        got = client.submit(_nested, x, workers=workers[1:]).result()
        assert got == [c.total_of(4), 2 * c.total_of(4)]


def _nested(x: Any) -> list[float]:
    with worker_client() as client:
        one, two = client.scatter([x, x * 2])
        return list(client.gather([client.submit(c.total, one), client.submit(c.total, two)]))


def other_preloads() -> None:
    """Workers that are given preloads of their own have cableway, too: with nannies and without, whoever names them, with and without
    words for each.
    """
    for name in ("own_preload", "other_preload"):
        Path(f"{name}.py").write_text(PRELOAD)
    sys.path.insert(0, os.getcwd())
    for options in (
        {"preload": ["own_preload"]},
        {"preload": "own_preload", "preload_argv": ["--word"]},
        {"preload": ("own_preload", "other_preload"), "preload_argv": [["--word"], []]},
        {"preload": ["cableway.dask", "own_preload"]},
        {"preload": ["own_preload"], "processes": False},
    ):
        with c.cluster(1, **options) as (client, _):
            ((plugins, told),) = client.run(_preloaded).values()
            assert "cableway" in plugins, options
            assert told, options


PRELOAD = """
def dask_setup(server):
    server.told = True
"""


def _preloaded(dask_worker: Any) -> tuple[list[str], bool]:
    return list(dask_worker.plugins), dask_worker.told


if __name__ == "__main__":
    c.main(globals())
