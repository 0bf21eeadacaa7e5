"""What cableway.dask promises of arrays in GPU memory, one function each; test_dask_gpus.py runs them on the test double of the driver
with stand-ins for CuPy and Numba.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cupy
import dask_cluster as c
import dask_cuda
import numba.cuda
import numpy as np
from dask_cluster import MIB
from distributed import Client, LocalCluster, wait
from distributed.worker import get_data_from_worker
from waiting import eventually

import cableway as cw
from cableway import client as connections
from cableway._core import programs
from cableway._cuda import interop
from cableway._dask import gpu_objects, gpus, settings


def made(count: int, fill: float = 1.0, log: str = "") -> cupy.ndarray:
    """So many numbers on the GPU; a line in the log for each time that they are made."""
    if log:
        with open(log, "a") as lines:
            lines.write("made\n")
    return cupy.array(np.arange(count, dtype="f8") + fill)


def total(x: cupy.ndarray) -> float:
    """Their sum."""
    assert type(x) is cupy.ndarray, x
    return float(x.get().sum())


def total_of(count: int, fill: float = 1.0) -> float:
    """The same of what `made` makes."""
    return count * (count - 1) / 2 + count * fill


def spoiled(x: cupy.ndarray) -> float:
    """The sum that a task sees, before it writes all over its argument."""
    found = total(x)
    x.set(np.full(x.shape, 7.0))
    return found


def counted(dask_worker: Any) -> dict[str, Any]:
    """What a worker has received and keeps."""
    gc.collect()
    return {
        "received": getattr(gpus, "count", 0),
        "viewed": getattr(gpus, "views", 0),
        "on_loop": getattr(gpus, "on_loop", 0),
        "kept": sum(e.kept.gpu_bytes for e in gpu_objects._sent.values() if e.kept is not None),
        "pid": os.getpid(),
        "seen": gpus.seen(),
    }


def count_received() -> None:
    """Counts from now on what is received by handle."""
    original, views = gpus.received, gpus.viewed
    gpus.count = gpus.views = gpus.on_loop = 0

    def received(*arguments: Any) -> Any:
        found = original(*arguments)
        gpus.count += 1
        return found

    def viewed(*arguments: Any) -> Any:
        found = views(*arguments)
        gpus.views += found is not None
        gpus.on_loop += threading.current_thread() is threading.main_thread()
        return found

    gpus.received, gpus.viewed = received, viewed


def status() -> dict[str, Any]:
    """What the broker says."""
    found = connections.current()
    words = [programs.path("cableway"), "status", "--json"]
    where = {**os.environ, "CABLEWAY_DIR": os.path.dirname(found.address)}
    done = subprocess.run(words, env=where, capture_output=True, check=True, timeout=20)
    return dict(json.loads(done.stdout))


def gpu_bytes() -> int:
    """GPU memory that the broker has given out."""
    return int(status()["gauges"]["gpu_bytes"])


@contextlib.contextmanager
def cluster(*masks: str, nannies: bool = False) -> Iterator[tuple[Client, list[str]]]:
    """A cluster with one worker for each mask of GPUs, and the workers' addresses in that order."""
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(LocalCluster(n_workers=0, dashboard_address=None))
        for number, mask in enumerate(masks):
            words = [
                "--name",
                str(number),
                "--nthreads",
                "1",
                "--no-dashboard",
                *([] if nannies else ["--no-nanny"]),
            ]
            words += [
                "--memory-limit",
                "0",
                "--preload",
                "cableway.dask",
                "--preload-nanny",
                "cableway.dask",
            ]
            process = subprocess.Popen(
                [sys.executable, "-m", "distributed.cli.dask_worker", made.scheduler_address, *words],
                env={**os.environ, "CUDA_VISIBLE_DEVICES": mask, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.terminate)
        client = stack.enter_context(Client(made, timeout="120s"))
        client.wait_for_workers(len(masks), timeout=120)
        told = client.scheduler_info(n_workers=-1)["workers"]
        by_name = {str(info["name"]): address for address, info in told.items()}
        client.run(count_received)
        client.amm.stop()  # it drops replicas on GPUs when it likes
        yield client, [by_name[str(number)] for number in range(len(masks))]


def by_handle() -> None:
    """Arrays go by handle, are the reader's own, and what was kept for readers goes."""
    count = 4 * MIB // 8
    with cluster("0", "0", "0") as (client, (a, b, third)):
        x = client.submit(made, count, workers=[a], allow_other_workers=True)
        for w, task in ((b, total), (third, spoiled), (b, total)):
            assert client.submit(task, x, workers=[w], pure=False).result() == total_of(count)
        seen = client.run(counted)
        assert [seen[w]["received"] for w in (a, b, third)] == [0, 1, 1], seen
        assert seen[a]["kept"] + seen[b]["kept"] >= 4 * MIB, seen
        # What the others wrote the maker does not see, nor they what it writes.
        assert client.submit(spoiled, x, workers=[a], pure=False).result() == total_of(count)
        assert client.submit(total, x, workers=[b], pure=False).result() == total_of(count)
        # Each has its own, so Dask's memory manager leaves one of them.
        assert len(client.who_has(x)[x.key]) == 3
        client.amm.run_once()
        assert eventually(lambda: len(client.who_has(x)[x.key]) == 1)
        # Kept as long as the object, and for some seconds after the last reader.
        x.release()
        assert eventually(lambda: all(s["kept"] == 0 for s in client.run(counted).values()))
        assert eventually(lambda: gpu_bytes() == 0), status()["gauges"]
        # What nobody asks for is kept 10 s.
        y = client.submit(made, count, workers=[a])
        client.submit(total, y, workers=[b]).result()
        assert client.run(counted)[a]["kept"] == 4 * MIB
        assert eventually(lambda: client.run(counted)[a]["kept"] == 0, 30)
        assert eventually(lambda: gpu_bytes() == 0), status()["gauges"]


def shared() -> None:
    """With `cableway.gpu-share` the workers of a GPU use one array, which lives as long as one of them has it."""
    count, log = 16 * MIB // 8, Path("log").resolve()
    with cluster("0", "0", "0", "1,0") as (client, (a, b, third, other)):
        x = client.submit(made, count, 1.0, str(log), workers=[a], allow_other_workers=True)
        for w in (b, third, other, a):
            assert client.submit(total, x, workers=[w], pure=False).result() == total_of(count)
        seen = client.run(counted)
        assert [seen[w]["viewed"] for w in (a, b, third, other)] == [0, 1, 1, 0], seen
        assert [seen[w]["received"] for w in (a, b, third, other)] == [0, 0, 0, 1], seen
        assert gpu_bytes() == 16 * MIB, status()["gauges"]
        # A block in memory that the reader has mapped is opened on its event loop, which waits for nothing.
        assert [seen[w]["on_loop"] for w in (b, third, other)] == [0, 0, 0], seen
        assert client.run(fetched, x.key, a, workers=[b])[b] == total_of(count)
        assert client.run(counted, workers=[b])[b]["on_loop"] == 1
        # It is one: what a task writes the others see, and the block outlives its maker and the time for which copies are kept.
        assert client.submit(spoiled, x, workers=[b], pure=False).result() == total_of(count)
        for w in (a, third):
            assert client.submit(total, x, workers=[w], pure=False).result() == 7.0 * count
        os.kill(seen[a]["pid"], signal.SIGKILL)
        assert eventually(lambda: a not in client.who_has(x)[x.key])
        time.sleep(gpu_objects.KEEP_SECONDS + 3)
        y = client.submit(same, x, workers=[b])  # another key of the same memory
        assert client.submit(total, y, workers=[third], pure=False).result() == 7.0 * count
        assert gpu_bytes() == 16 * MIB, status()["gauges"]
        assert c.times_made(log) == 1
        x.release()
        y.release()
        assert eventually(lambda: gpu_bytes() == 0, 30), status()["gauges"]


async def fetched(key: str, maker: str, dask_worker: Any) -> float:
    """The sum of what a worker gets from the maker, which it has already."""
    reply = await get_data_from_worker(dask_worker.rpc, [key], maker, who=dask_worker.address)
    return total(reply["data"][key])


def same(x: cupy.ndarray) -> cupy.ndarray:
    """It."""
    return x


def in_shared_memory(count: int) -> cupy.ndarray:
    """So many numbers in memory of the broker, as `cableway.cupy.use()` lets CuPy have it."""
    found = cupy.asarray(cw.empty(count, "f8", device="cuda:0"))
    found.set(np.arange(count, dtype="f8") + 1.0)
    return found


def sealed(count: int) -> cupy.ndarray:
    """The same in memory that nobody may write."""
    made = in_shared_memory(count)
    cw.put("sealed", made, seal=True)
    made = cw.get("sealed")
    return cupy.asarray(made)


def shared_where_it_lies() -> None:
    """An array that its maker has in memory of the broker is not copied at all."""
    count = 16 * MIB // 8
    with cluster("0", "0", "0") as (client, (a, b, third)):
        x = client.submit(in_shared_memory, count, workers=[a])
        for w in (b, third):
            assert client.submit(total, x, workers=[w], pure=False).result() == total_of(count)
        seen = client.run(counted)
        assert [seen[w]["viewed"] for w in (a, b, third)] == [0, 1, 1], seen
        assert gpu_bytes() == 16 * MIB, status()["gauges"]
        client.submit(spoiled, x, workers=[third], pure=False).result()
        assert client.submit(total, x, workers=[a], pure=False).result() == 7.0 * count
        x.release()
        # What is sealed is copied, since readers may write.
        x = client.submit(sealed, count, workers=[a])
        assert client.submit(spoiled, x, workers=[b]).result() == total_of(count)
        client.run(cw.remove, "sealed", workers=[a])
        x.release()
        assert eventually(lambda: gpu_bytes() == 0, 30), status()["gauges"]


def data_of_dask_cuda() -> None:
    """Workers that keep their data as dask-cuda does, which names a preload for each: what went to host memory is left there until a task
    wants it, and with `cableway.gpu-share` the sender's own copy goes.
    """
    count = 4 * MIB // 8
    data = dask_cuda.DeviceHostFile, {"device_memory_limit": 9 * MIB}
    options = {"preload": ["math"], "preload_argv": ["--create-cuda-context"], "data": data}
    with c.cluster(2, **options) as (client, (a, b)):
        client.amm.stop()
        xs = [client.submit(made, count, float(n), workers=[a]) for n in range(4)]
        wait(xs)
        assert client.run(places, workers=[a])[a] == (2, 2)
        time.sleep(3)  # heartbeats, and looks for what is unused
        assert client.run(places, workers=[a])[a] == (2, 2)
        for n, x in enumerate(xs):
            assert client.submit(total, x, workers=[b]).result() == total_of(count, float(n))
        assert eventually(lambda: client.run(places) == {a: (2, 2), b: (2, 2)}), client.run(places)
        newest = xs[-1].key
        assert client.run(is_block, newest, workers=[a])[a] == settings.shares()
        host = client.submit(c.made, 4, workers=[a])
        assert client.submit(c.total, host, workers=[b]).result() == c.total_of(4)
        assert client.run(c.look)[a]["mapped"][host.key] == 4 * MIB


def places(dask_worker: Any) -> tuple[int, int]:
    """How many objects a worker has on the GPU and in host memory."""
    return len(dask_worker.data.device), len(dask_worker.data.host)


def is_block(key: str, dask_worker: Any) -> bool:
    """Whether an array lies in memory of the broker."""
    return interop.is_shared(dask_worker.data.device[key].data.ptr)


def _kinds() -> dict[str, Any]:
    """Objects of all kinds that go by handle, with numbers that differ."""
    x = np.arange(1024.0).reshape(32, 32)
    on_gpu = cupy.array(x)
    turned = cupy.ndarray((32, 32), "f8", on_gpu.data, (8, 256))
    part = cupy.ndarray((16, 32), "f8", on_gpu.data, (512, 8))
    numba_array = numba.cuda.to_device(x)
    return {
        "C": on_gpu,
        "F": turned,
        "strided": part,
        "f4": cupy.array(x.astype("f4")),
        "numba": numba_array,
        "list": [on_gpu, x, cupy.array(np.empty((0, 3))), "text"],
        "dict": {"a": on_gpu, "b": x, "c": 1},
    }


def _told(obj: Any) -> Any:
    """Its type and values, in what compares."""
    if isinstance(obj, (list, tuple)):
        return [_told(part) for part in obj]
    if isinstance(obj, dict):
        return {key: _told(part) for key, part in obj.items()}
    values = obj.get() if isinstance(obj, cupy.ndarray) else obj
    return type(obj).__name__, np.asarray(values).tolist(), str(getattr(obj, "dtype", ""))


def _kind(name: str) -> Any:
    return _kinds()[name]


def kinds() -> None:
    """All that arrives is as stock Dask has it."""
    with cluster("0", "0") as (client, (a, b)):
        first = client.submit(made, 1 << 10, workers=[a])
        client.submit(total, first, workers=[b]).result()  # both have told of their GPUs

        def by_handle() -> int:
            seen = client.run(counted)[b]
            return int(seen["received"] + seen["viewed"])

        before = by_handle()
        for name, obj in _kinds().items():
            x = client.submit(_kind, name, workers=[a])
            assert client.submit(_told, x, workers=[b]).result() == _told(obj), name
            now = by_handle()
            assert now > before, name
            before = now


def maker_killed() -> None:
    """What another worker has is not made again, and a maker that is killed in the midst hurts nobody."""
    log, count = Path("log").resolve(), MIB // 8
    with cluster("0", "0", "0") as (client, (a, b, third)):
        x = client.submit(made, count, 1.0, str(log), workers=[a], allow_other_workers=True)
        assert client.submit(total, x, workers=[b]).result() == total_of(count)
        os.kill(client.run(os.getpid, workers=[a])[a], signal.SIGKILL)
        assert client.submit(total, x, workers=[third], pure=False).result() == total_of(count)
        assert c.times_made(log) == 1


def killed(rounds: str, seed: str) -> None:
    """A worker is killed while all send each other arrays: right results, and no GPU memory stays."""
    print("seed", seed)
    chance = random.Random(int(seed))
    with cluster(*["0"] * 3, nannies=True) as (client, workers):
        for turn in range(int(rounds)):
            everyone = sorted(c.addresses(client))
            x = client.submit(made, MIB // 8, float(turn), workers=everyone[:1], allow_other_workers=True, retries=1000)  # fmt: skip
            sums = [client.submit(total, x, pure=False, workers=[w], allow_other_workers=True, retries=1000) for w in everyone]  # fmt: skip
            victim = everyone[turn % len(everyone)]
            pid = client.run(os.getpid, workers=[victim])[victim]
            time.sleep(chance.random() * 0.05)
            os.kill(pid, signal.SIGKILL)
            assert client.gather(sums) == [total_of(MIB // 8, float(turn))] * 3
            x.release()
            del sums
            client.wait_for_workers(3, timeout=120)
        assert eventually(lambda: gpu_bytes() == 0, 30), status()["gauges"]


def broker_killed() -> None:
    """Without a broker arrays go as bytes, and by handle again with the next one."""
    count = MIB // 8
    with cluster("0", "0") as (client, (a, b)):
        for turn in range(3):
            x = client.submit(made, count, float(turn), workers=[a])
            assert client.submit(total, x, workers=[b]).result() == total_of(count, float(turn))
            if turn == 0:
                os.kill(status()["broker"]["pid"], signal.SIGKILL)

        def by_handle() -> int:
            seen = client.run(counted)[b]
            return int(seen["received"] + seen["viewed"])

        before = by_handle()

        def again() -> bool:
            x = client.submit(made, count, pure=False, workers=[a])
            assert client.submit(total, x, workers=[b], pure=False).result() == total_of(count)
            return by_handle() > before

        assert eventually(again, 60)


def unseen() -> None:
    """A worker that does not see the GPU, or none, gets bytes; one that sees it beside its own gets handles."""
    count = MIB // 8
    with cluster("0", "1", "1,0") as (client, (a, other, both)):
        x = client.submit(made, count, workers=[a])
        for w, received in ((other, 0), (both, 1)):
            assert client.submit(total, x, workers=[w], pure=False).result() == total_of(count)
            seen = client.run(counted)[w]
            assert seen["received"] == received, seen
            assert len(seen["seen"]) == 1 + received, seen
        assert client.submit(total, x, workers=[a], pure=False).result() == total_of(count)


def full() -> None:
    """Where there is no GPU memory for blocks arrays go as Dask sends them."""
    count = 8 * MIB // 8
    with cluster("0", "0") as (client, (a, b)):
        x = client.submit(made, count, workers=[a])
        assert client.submit(total, x, workers=[b]).result() == total_of(count)
        seen = client.run(counted)
        assert seen[b]["received"] == 0 and seen[a]["kept"] == 0, seen


def full_for_the_reader() -> None:
    """Where the block takes the memory that the reader's copy needs, the reader gets bytes, and the block goes."""
    count = 8 * MIB // 8
    with cluster("0", "0") as (client, (a, b)):
        x = client.submit(made, count, workers=[a])
        assert client.submit(total, x, workers=[b]).result(60) == total_of(count)
        seen = client.run(counted)
        assert seen[b]["received"] == 0 and seen[a]["kept"] == 0, seen


if __name__ == "__main__":
    c.main({name: found for name, found in globals().items() if callable(found)})
