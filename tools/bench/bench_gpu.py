"""GPU arrays beside what they are made of and what users pick today: `make bench-gpu`.

Every figure stands beside its peer of the same run: the driver's own calls for copies and imports, torch's Queue for
passing arrays on. Random data, buffers in rotation, every result is checked.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gpu_driver as driver
import numpy as np

import causeway as cw

sys.path.insert(0, str(Path(__file__).parent))
MIB = 1 << 20
ROWS: list[tuple[str, float, str, float, str]] = []


def seconds(action: Callable[[int], object], rounds: int) -> float:
    """The median time of one action; the first two rounds do not count."""
    times = []
    for i in range(rounds + 2):
        begin = time.perf_counter()
        action(i)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def row(what: str, ours: float, peer: str, theirs: float, unit: str) -> None:
    """Notes a line of the table."""
    ROWS.append((what, ours, peer, theirs, unit))


def host_copies(size: int) -> None:
    """To a GPU and back, from memory of ours and from the driver's pinned memory."""
    stream, count = driver.stream(), 3
    source = [
        cw.asarray(np.random.default_rng(i).integers(0, 255, size, "u1")) for i in range(count)
    ]
    target = [cw.empty(size, "u1", device="cuda:0") for _ in range(count)]
    back = [cw.zeros(size, "u1") for _ in range(count)]
    rounds = 20 if size <= 64 * MIB else 8

    def raw(kind: str, to: list[int], of: list[int]) -> float:
        def once(i: int) -> None:
            driver.copy(kind, to[i % count], of[i % count], size, stream)
            driver.finish(stream)

        return seconds(once, rounds)

    pinned, memory = (
        [driver.pinned(size) for _ in range(count)],
        [driver.memory(size) for _ in range(count)],
    )
    theirs_in, theirs_out = raw("HtoD", memory, pinned), raw("DtoH", pinned, memory)
    ours_in = seconds(lambda i: target[i % count].copy_from(source[i % count]), rounds)
    ours_out = seconds(lambda i: back[i % count].copy_from(target[i % count]), rounds)
    for of, to in zip(source, back, strict=True):
        assert np.array_equal(of.numpy(), to.numpy())
    other = [cw.empty(size, "u1", device="cuda:0") for _ in range(count)]
    ours_same = seconds(lambda i: other[i % count].copy_from(target[i % count]), rounds)
    theirs_same = raw("DtoD", memory[1:] + memory[:1], memory)
    assert np.array_equal(other[0].to("cpu").numpy(), source[0].numpy())
    for at in memory:
        driver.free(at)
    name = f"{size // MIB} MiB"
    row(
        f"host to GPU, {name}",
        size / ours_in / 1e9,
        "driver, pinned",
        size / theirs_in / 1e9,
        "GB/s",
    )
    row(
        f"GPU to host, {name}",
        size / ours_out / 1e9,
        "driver, pinned",
        size / theirs_out / 1e9,
        "GB/s",
    )
    row(f"within a GPU, {name}", size / ours_same / 1e9, "driver", size / theirs_same / 1e9, "GB/s")


def routes() -> dict[str, int]:
    """Bytes by route, as the broker counts them."""
    cw.put("bench/look", 1)  # it reads a client's figures when it hears of it
    program = Path(cw.__file__).parent / "bin" / "causeway"
    told = subprocess.run([program, "status", "--json"], capture_output=True, check=True).stdout
    counters = json.loads(told)["counters"]
    return {name: counters[name] for name in counters if name.startswith("bytes_")}


def peer_copies(size: int, theirs_nccl: float) -> None:
    """From one GPU to another: beside the driver with peer access, and beside NCCL. A wrong route fails the run."""
    count, rounds = 3, 200 if size <= MIB else 20
    source = [
        cw.asarray(np.random.default_rng(i).integers(0, 255, size, "u1"), device="cuda:0")
        for i in range(count)
    ]
    target = [cw.empty(size, "u1", device="cuda:1") for _ in range(count)]
    before = routes()
    ours = seconds(lambda i: target[i % count].copy_from(source[i % count]), rounds)
    after = routes()
    assert after["bytes_peer"] - before["bytes_peer"] == size * (rounds + 2), (before, after)
    assert after["bytes_staged"] == before["bytes_staged"]
    for of, to in zip(source, target, strict=True):
        assert np.array_equal(of.to("cpu").numpy(), to.to("cpu").numpy())
    near, far = driver.peers(size, count)
    stream = driver.stream()

    def raw(i: int) -> None:
        driver.copy("DtoD", far[i % count], near[i % count], size, stream)
        driver.finish(stream)

    theirs = seconds(raw, rounds)
    for at in near + far:
        driver.free(at)
    name = f"{size // 1024} KiB" if size < MIB else f"{size // MIB} MiB"
    row(
        f"GPU to GPU, {name}", size / ours / 1e9, "driver, peer access", size / theirs / 1e9, "GB/s"
    )
    if theirs_nccl:
        row(f"GPU to GPU, {name}", ours * 1e6, "NCCL send and recv", theirs_nccl * 1e6, "us")


def nccl_rank(rank: int, sizes: list[int], out: object) -> None:
    """One of the two processes of nccl()."""
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", NCCL_NVLS_ENABLE="0")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    for size in sizes:
        x = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")

        def once(_: int, x: object = x) -> None:
            (dist.send if rank == 0 else dist.recv)(x, 1 - rank)
            torch.cuda.synchronize()

        dist.barrier()
        taken = seconds(once, 30)
        if rank == 0:
            out.put((size, taken))  # type: ignore[attr-defined]
    dist.destroy_process_group()


def nccl(sizes: list[int]) -> dict[int, float]:
    """Seconds of an NCCL send and receive between two processes; empty where there is no PyTorch."""
    try:
        import torch.multiprocessing as tm
    except ImportError:
        return {}
    context = tm.get_context("spawn")
    out = context.SimpleQueue()
    ranks = [context.Process(target=nccl_rank, args=(rank, sizes, out)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = dict(out.get() for _ in sizes)
    for process in ranks:
        process.join()
    return found


CHILD = """if True:
    import json, statistics, sys, time, causeway as cw
    cw.zeros(1, device="cuda:0")
    times = []
    for i in range(12):
        begin = time.perf_counter()
        w = cw.get(f"bench/{i}")
        times.append(time.perf_counter() - begin)
        assert w[0].to("cpu").item() == i
    known = []
    for i in range(300):
        begin = time.perf_counter()
        w = cw.get("bench/3")
        known.append(time.perf_counter() - begin)
    print(json.dumps([statistics.median(times[1:]), statistics.median(known)]))
"""


def imports(size: int) -> None:
    """The first sight of a slab, and of an array in a slab that is known."""
    kept = [cw.put(f"bench/{i}", cw.full(size, i, "u1", device="cuda:0")) for i in range(12)]
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    first, known = json.loads(done.stdout)
    fds = [driver.export(size) for _ in range(12)]
    times = []
    for fd in fds:
        begin = time.perf_counter()
        driver.map_fd(fd, size)
        times.append(time.perf_counter() - begin)
        os.close(fd)
    raw = statistics.median(times[1:])
    row(
        f"first get of a slab, {size // MIB} MiB",
        first * 1e6,
        "driver: import and map",
        raw * 1e6,
        "us",
    )
    row("get of an array in a known slab", known * 1e6, "", 0.0, "us")
    for i in range(12):
        cw.remove(f"bench/{i}")
    del kept


def answer(there: cw.Queue, back: cw.Queue) -> None:
    """The other process of passing()."""
    back.put(None)
    while (w := there.get()) is not None:
        back.put(w.shape)


PING = """if True:
    import sys, causeway as cw, gpu_driver as driver
    driver.enter()
    s = driver.stream()
    there, back = cw.get("ping/there"), cw.get("ping/back")
    for _ in range(int(sys.argv[1])):
        with there.reading(s.value), back.writing(s.value, whole=True):
            pass
    driver.finish(s)
"""


def ping(rounds: int) -> None:
    """Two processes' streams wait for each other's writes in turn; the CPUs only submit."""
    there = cw.put("ping/there", cw.zeros(64, "u1", device="cuda:0"))
    back = cw.put("ping/back", cw.zeros(64, "u1", device="cuda:0"))
    stream = driver.stream()
    with there.writing(stream.value, whole=True):
        pass
    here = str(Path(__file__).resolve().parent)  # where the child finds gpu_driver
    path = os.pathsep.join([here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    child = subprocess.Popen(
        [sys.executable, "-c", PING, str(rounds)], env={**os.environ, "PYTHONPATH": path}
    )
    times = []
    for _ in range(rounds - 1):
        begin = time.perf_counter()
        with back.reading(stream.value), there.writing(stream.value, whole=True):
            pass
        times.append(time.perf_counter() - begin)
    driver.finish(stream)
    if child.wait():
        raise SystemExit("the other process of ping() has failed")
    row("one reading and one writing, submitted", statistics.median(times) * 1e6, "", 0.0, "us")
    for name in ("ping/there", "ping/back"):
        cw.remove(name)


def answer_torch(there: object, back: object) -> None:
    """The same with torch's queues."""
    import torch

    torch.zeros(1, device="cuda")
    back.put(None)  # type: ignore[attr-defined]
    while (w := there.get()) is not None:  # type: ignore[attr-defined]
        back.put(tuple(w.shape))  # type: ignore[attr-defined]
        del w


def passing(size: int) -> None:
    """An array to another process through a queue, and a word back; both sides hot."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    there, back = cw.Queue(), cw.Queue()
    child = context.Process(target=answer, args=(there, back))
    child.start()
    back.get()
    same = cw.full(size, 1, "u1", device="cuda:0")
    fresh = [cw.full(size, i, "u1", device="cuda:0") for i in range(23)]

    def turn(w: cw.Array) -> None:
        there.put(w)
        assert back.get() == (size,)

    ours_same = seconds(lambda _: turn(same), 200)
    for w in fresh:
        turn(w)  # the slab is known
    ours_fresh = seconds(lambda i: turn(fresh[i % len(fresh)][:]), 60)
    there.put(None)
    child.join()
    theirs = passing_torch(size, context)
    name = f"{size // MIB} MiB"
    row(
        f"to another process and back, the same array, {name}",
        ours_same * 1e6,
        "torch Queue",
        theirs[0],
        "us",
    )
    row(
        f"to another process and back, another array, {name}",
        ours_fresh * 1e6,
        "torch Queue",
        theirs[1],
        "us",
    )


def passing_torch(size: int, context: object) -> tuple[float, float]:
    """Microseconds for the same array and for another one; 0 where there is no torch."""
    try:
        import torch
        import torch.multiprocessing as tm
    except ImportError:
        return 0.0, 0.0
    context = tm.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    child = context.Process(target=answer_torch, args=(there, back))
    child.start()
    back.get()
    same = torch.ones(size, dtype=torch.uint8, device="cuda")
    fresh = [torch.ones(size, dtype=torch.uint8, device="cuda") for _ in range(23)]
    torch.cuda.synchronize()

    def turn(w: object) -> None:
        there.put(w)
        back.get()

    times = (seconds(lambda _: turn(same), 60), seconds(lambda i: turn(fresh[i % 23]), 20))
    there.put(None)
    child.join()
    return times[0] * 1e6, times[1] * 1e6


def main() -> None:
    """Runs all and prints the table."""
    driver.enter()
    imports(300 * MIB)  # so large that each has a slab of its own
    for size in (1 * MIB, 64 * MIB, 512 * MIB):
        host_copies(size)
    for size in (1 * MIB, 256 * MIB):
        passing(size)
    if "cuda:1" in cw.devices():
        sizes = [4 << 10, 64 << 10, 1 * MIB, 64 * MIB, 1024 * MIB]
        theirs = nccl(sizes)
        for size in sizes:
            peer_copies(size, theirs.get(size, 0.0))
    ping(500)
    print(f"{'what':58} {'causeway':>10}  {'peer':24} {'figure':>10}  unit  ratio")
    for what, ours, peer, theirs, unit in ROWS:
        ratio = f"{ours / theirs:6.2f}" if theirs else ""
        print(f"{what:58} {ours:10.1f}  {peer:24} {theirs:10.1f}  {unit:5} {ratio}")


if __name__ == "__main__":
    main()
