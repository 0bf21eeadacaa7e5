"""What cableway.dask promises when workers or the broker are killed, with a seed that is printed (test_dask_deaths.py runs it), when
connections end, and when messages cross (test_dask.py runs these).
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask_cluster as c
import numpy as np
from dask_cluster import MIB
from distributed import Client
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize
from waiting import eventually

import cableway as cw
from cableway._core import idle_memory
from cableway._dask import blocks, comm, family, gpus, memory, node, replies
from cableway._dask.worker import Served

# Dask gives a task up when three of its workers were killed; here each is killed again and again.
RETRIES = 1000


def workers_killed(rounds: str, seed: str) -> None:
    """Each of four workers in turn: no large key that another worker has is computed again, and the store is as before."""
    print("seed", seed)
    chance = random.Random(int(seed))
    log = Path("log").resolve()
    with c.cluster(4) as (client, workers):
        x = client.submit(c.made, 8, str(log), workers=workers[:1], allow_other_workers=True)
        for turn in range(int(rounds)):
            everyone = sorted(c.addresses(client))
            _all_read(client, x, everyone)
            assert c.times_made(log) == 1
            victim = everyone[turn % 4]
            pid = client.run(os.getpid, workers=[victim])[victim]
            sums = [client.submit(c.total, x, pure=False, retries=RETRIES) for _ in range(4)]
            time.sleep(chance.random() * 0.02)
            os.kill(pid, signal.SIGKILL)
            assert client.gather(sums) == [c.total_of(8)] * 4
            assert eventually(lambda: victim not in _known(client)), victim  # noqa: B023
            client.wait_for_workers(4, timeout=120)
            assert c.used() <= 8 * MIB + 9 * MIB, c.used()
        assert c.times_made(log) == 1
    assert eventually(lambda: c.used() < 9 * MIB), c.used()


def _known(client: Client) -> set[str]:
    return set(client.scheduler_info(n_workers=-1)["workers"])


def _all_read(client: Client, x: Any, everyone: list[str]) -> None:
    sums = [
        client.submit(
            c.total, x, workers=[w], allow_other_workers=True, pure=False, retries=RETRIES
        )
        for w in everyone
    ]
    assert client.gather(sums) == [c.total_of(8)] * len(everyone)


def broker_killed(rounds: str, seed: str) -> None:
    """In the midst of transfers, again and again: results are right, and nothing waits for ever."""
    print("seed", seed)
    chance = random.Random(int(seed))
    with c.cluster(4) as (client, workers):
        for turn in range(int(rounds)):
            arrays = [
                client.submit(c.made, 4, fill=4 * turn + i, workers=[w], pure=False)
                for i, w in enumerate(workers)
            ]
            killer = threading.Timer(chance.random() * 0.2, _kill_broker)
            killer.start()
            sums = [
                client.submit(c.total, x, workers=[w], pure=False) for x in arrays for w in workers
            ]
            found = client.gather(sums)
            killer.join()
            assert found == [c.total_of(4, 4 * turn + i) for i in range(4) for _ in workers], found
            del sums, arrays
        # With the broker of now, handles go again, on the connections that are there.
        assert eventually(lambda: _by_handle(client, workers), 20)


def _by_handle(client: Client, workers: list[str]) -> bool:
    x = client.submit(c.made, 4, workers=workers[:1], pure=False)
    sums = [client.submit(c.total, x, workers=[w], pure=False) for w in workers]
    assert client.gather(sums) == [c.total_of(4)] * 4
    return all(seen["mapped"].get(x.key) for seen in client.run(c.look).values())


def _kill_broker() -> None:
    try:
        pid = cw.connect().broker_pid
    except cw.Error:
        return
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


# ---- connections that end, and messages that cross


async def _soon(what: Any, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.05)
    return True


def _nothing_is_held() -> bool:
    gc.collect()
    idle_memory.trim(0)
    return not blocks._private and not memory._collecting and c.used() == 0


def closed_while_written() -> None:
    """A message that could not be written, since the connection had ended: nobody will open its blocks, and they go."""
    asyncio.run(_closed_while_written())


async def _closed_while_written() -> None:
    node.has_data = lambda: True  # as if this process were a worker

    async def serve(server: Any) -> None:
        try:
            await server.read()
        except CommClosedError:
            return

    listener = await listen("tcp://127.0.0.1:0", serve)
    link = await connect(listener.contact_address)
    link.abort()
    try:
        await link.write({"op": "update_data", "data": {"x": to_serialize(c.made(2))}})
    except CommClosedError:
        pass
    else:
        raise AssertionError("it was written")
    assert await _soon(_nothing_is_held), f"{c.used()} bytes are held, of {comm.HOLD_SECONDS} s"
    listener.stop()


class _Worker:
    """What `Served` knows of one."""

    def __init__(self, data: dict[str, Any], nbytes: int) -> None:
        self.data = data
        self.state = SimpleNamespace(tasks={key: SimpleNamespace(nbytes=nbytes) for key in data})


def two_readers_at_once() -> None:
    """Two ask for one list that was never sent, and a task writes to it as soon as it was packed for one of them: both get the first
    bytes, out of one copy. A list takes no weak reference, so that it has no record until the worker's data are told.
    """
    asyncio.run(_two_readers_at_once())


async def _two_readers_at_once() -> None:
    node.has_data = lambda: True
    x = [np.arange(1 << 18, dtype="f8"), "text"]
    worker = _Worker({"x": x}, x[0].nbytes)
    served = Served(worker)
    both, asked = threading.Event(), []
    pack, offload = family.pack, replies.offload
    packed: list[Any] = []

    def pack_and_write(*arguments: Any) -> Any:
        assert both.wait(20)  # nobody's reply is ready before both were asked for
        made = pack(*arguments)
        packed.append(made)
        x[0][:] = 7
        return made

    def counted(*arguments: Any) -> Any:
        asked.append(1)
        if len(asked) == 2:
            both.set()
        return offload(*arguments)

    async def serve(server: Any) -> None:
        server.worker = served
        try:
            await server.read()
            await server.write({"status": "OK", "data": {"x": to_serialize(worker.data["x"])}})
            await server.read()
        except CommClosedError:
            return

    family.pack, replies.offload = pack_and_write, counted
    listener = await listen("tcp://127.0.0.1:0", serve)

    async def ask() -> float:
        link = await connect(listener.contact_address)
        await link.write("please")
        found = (await link.read())["data"]["x"]
        await link.write("OK")
        await link.close()
        return float(found[0].sum())

    expected = float(x[0].sum())
    assert await asyncio.gather(ask(), ask()) == [expected] * 2
    assert len(packed) == 1, "it was packed twice"
    assert float(worker.data["x"][0].sum()) == expected
    listener.stop()


def told_while_it_looked() -> None:
    """A process that opens the driver of its GPUs, which takes a second, is told in the meantime that its peer takes no handles any more:
    the message that it is about to write has none.
    """
    asyncio.run(_told_while_it_looked())


async def _told_while_it_looked() -> None:
    node.has_data = lambda: True
    looking, seen = threading.Event(), threading.Event()

    def look() -> None:
        gpus._seen = []
        looking.set()
        assert seen.wait(20)

    come: list[Any] = []

    async def serve(server: Any) -> None:
        await server.write("first")  # nothing to look for yet
        await asyncio.sleep(2 * comm.LOOK_SECONDS)
        gpus.must_look, gpus.look = lambda: gpus._seen is None, look
        reads = asyncio.create_task(server.read())
        writes = asyncio.create_task(server.write({"x": to_serialize(c.made(2))}))
        assert await _soon(looking.is_set)
        come.append(await reads)
        seen.set()
        await writes

    listener = await listen("tcp://127.0.0.1:0", serve)
    link = await connect(listener.contact_address)
    assert await link.read() == "first"
    assert await _soon(looking.is_set)
    gpus._seen, link._look_again = [], 0.0
    node.distrust(link.peer_address)
    await link.write("none, please")
    x = (await link.read())["x"]
    assert come == ["none, please"]
    assert c.records.mapped_bytes(x) == 0
    assert float(x.sum()) == c.total_of(2)
    await link.close()
    listener.stop()


if __name__ == "__main__":
    c.main(globals())
