"""Copies of GPU arrays beside the driver's own and NCCL's. A wrong route fails the run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gpu import driver
from gpu.rows import (
    MIB,
    affordable,
    alternated,
    missing,
    note,
    note_rates,
    seconds,
    size_name,
)

import cableway as cw

COUNT = 3  # buffers in rotation


def _random(size: int, seed: int) -> np.ndarray[Any, Any]:
    return np.frombuffer(np.random.default_rng(seed).bytes(size), "u1")


def host_copies(size: int) -> None:
    """To a GPU and back, from memory of ours and from the driver's pinned memory; and within the GPU."""
    stream = driver.stream()
    source = [cw.asarray(_random(size, i)) for i in range(COUNT)]
    target = [cw.empty(size, "u1", device="cuda:0") for _ in range(COUNT)]
    back = [cw.zeros(size, "u1") for _ in range(COUNT)]
    rounds = {1 * MIB: 200, 64 * MIB: 100}.get(size, 40)
    pinned = [driver.pinned(size) for _ in range(COUNT)]
    memory = [driver.memory(size) for _ in range(COUNT)]

    def raw(kind: str, to: list[int], of: list[int]) -> Callable[[int], None]:
        def once(i: int) -> None:
            driver.copy(kind, to[i % COUNT], of[i % COUNT], size, stream)
            driver.finish(stream)

        return once

    def ours(to: list[cw.Array], of: list[cw.Array]) -> Callable[[int], object]:
        return lambda i: to[i % COUNT].copy_from(of[i % COUNT])

    come = alternated(ours(target, source), raw("HtoD", memory, pinned), rounds)
    go = alternated(ours(back, target), raw("DtoH", pinned, memory), rounds)
    for of, to in zip(source, back, strict=True):
        assert np.array_equal(of.numpy(), to.numpy())
    other = [cw.empty(size, "u1", device="cuda:0") for _ in range(COUNT)]
    shifted = memory[1:] + memory[:1]
    within = alternated(ours(other, target), raw("DtoD", shifted, memory), rounds)
    assert np.array_equal(other[0].to("cpu").numpy(), source[0].numpy())
    for at in memory:
        driver.free(at)
    for at in pinned:
        driver.free_pinned(at)
    name = size_name(size)
    note_rates(f"host to GPU, {name}", size, come, "driver, pinned")
    note_rates(f"GPU to host, {name}", size, go, "driver, pinned")
    note_rates(f"within a GPU, {name}", size, within, "driver")


def many(size: int, count: int, gpu: int) -> None:
    """Many small copies from GPU 0: one call of ours, one for each, and the driver's."""
    stream = driver.stream()
    values = _random(size * count, 7).reshape(count, size)
    of, to = (
        cw.asarray(values, device="cuda:0"),
        cw.zeros((count, size), "u1", device=f"cuda:{gpu}"),
    )
    pairs = [(to[i], of[i]) for i in range(count)]
    ours = seconds(lambda _: cw.copy(pairs), 10) * 1e6 / count
    assert np.array_equal(to.to("cpu").numpy(), values)
    loop = seconds(lambda _: [a.copy_from(b) for a, b in pairs], 3) * 1e6 / count
    if gpu:
        far, near = driver.peers(size * count, 1)[::-1]
        target, source = far[0], near[0]
    else:
        target, source = driver.memory(size * count), driver.memory(size * count)

    def bare(_: int) -> None:
        for i in range(count):
            driver.copy("DtoD", target + i * size, source + i * size, size, stream)
        driver.finish(stream)

    def at_once(to: int, of: int) -> float:
        """Microseconds a copy by one call of the driver's between these addresses."""
        steps = range(0, size * count, size)
        batch = driver.Batch([to + step for step in steps], [of + step for step in steps], size)

        def once(_: int) -> None:
            batch.submit(stream)
            driver.finish(stream)

        return seconds(once, 10) * 1e6 / count

    what = f"{count} copies of {size_name(size)}, {'GPU to GPU' if gpu else 'within a GPU'}, each"
    note(what, ours, "ours, one by one", loop, "us")
    note(what, ours, "driver, no waits between", seconds(bare, 5) * 1e6 / count, "us")
    lie = [w.__cuda_array_interface__["data"][0] for w in (to, of)]
    try:
        note(what, ours, "driver, one call", at_once(target, source), "us")
        note(what, ours, "driver, one call, memory of ours", at_once(*lie), "us")
    except RuntimeError as error:
        missing("the driver's call for many copies", error)
    driver.free(target)
    driver.free(source)


def routes() -> dict[str, int]:
    """Bytes by route, as the broker counts them."""
    cw.put("bench/look", 1)  # it reads a client's figures when it hears of it
    program = Path(cw.__file__).parent / "bin" / "cableway"
    told = subprocess.run([program, "status", "--json"], capture_output=True, check=True).stdout
    counters = json.loads(told)["counters"]
    return {name: counters[name] for name in counters if name.startswith("bytes_")}


def peer_copies(size: int, theirs_nccl: float | None) -> None:
    """From one GPU to another: beside the driver with peer access, and beside NCCL."""
    rounds = 200 if size <= MIB else 60
    source = [cw.asarray(_random(size, i), device="cuda:0") for i in range(COUNT)]
    target = [cw.empty(size, "u1", device="cuda:1") for _ in range(COUNT)]
    near, far = driver.peers(size, COUNT)
    stream = driver.stream()

    def raw(i: int) -> None:
        driver.copy("DtoD", far[i % COUNT], near[i % COUNT], size, stream)
        driver.finish(stream)

    before = routes()
    found = alternated(lambda i: target[i % COUNT].copy_from(source[i % COUNT]), raw, rounds)
    after = routes()
    assert after["bytes_peer"] - before["bytes_peer"] == size * (rounds + 2), (before, after)
    assert after["bytes_staged"] == before["bytes_staged"]
    for of, to in zip(source, target, strict=True):
        assert np.array_equal(of.to("cpu").numpy(), to.to("cpu").numpy())
    for at in near + far:
        driver.free(at)
    name = f"GPU to GPU, {size_name(size)}"
    note_rates(name, size, found, "driver, peer access")
    if theirs_nccl:
        note(name, found[0].median * 1e6, "NCCL send and recv", theirs_nccl * 1e6, "us")


def nccl_rank(rank: int, sizes: list[int], out: Any) -> None:
    """One of the two processes of nccl()."""
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", NCCL_NVLS_ENABLE="0")
    torch.cuda.set_device(rank)
    gpu = torch.device("cuda", rank)  # said, so that NCCL need not guess
    dist.init_process_group("nccl", rank=rank, world_size=2, device_id=gpu)
    for size in sizes:
        x = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")

        def once(_: int, x: object = x) -> None:
            (dist.send if rank == 0 else dist.recv)(x, 1 - rank)
            torch.cuda.synchronize()

        dist.barrier()
        taken = seconds(once, 30)
        if rank == 0:
            out.put((size, taken))
    dist.destroy_process_group()


def nccl(sizes: list[int]) -> dict[int, float]:
    """Seconds of an NCCL send and receive between two processes; empty where there is no PyTorch."""
    try:
        import torch.multiprocessing as tm
    except ImportError as error:
        missing("NCCL", error)
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


def between_gpus() -> None:
    """All of two GPUs."""
    sizes = list(affordable(4 << 10, 64 << 10, 1 * MIB, 64 * MIB, 1024 * MIB))
    theirs = nccl(sizes)
    for size in sizes:
        peer_copies(size, theirs.get(size))
    many(4 << 10, 1000, 1)


def on_one_gpu() -> None:
    """All of one GPU."""
    for size in affordable(1 * MIB, 64 * MIB, 512 * MIB):
        host_copies(size)
    many(4 << 10, 1000, 0)
