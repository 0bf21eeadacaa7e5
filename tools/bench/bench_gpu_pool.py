"""A Pool over GPUs beside what users have today: `make bench-gpu`. With --smoke tiny, to see that it runs.

    overhead   what a call with a 64 MiB tensor costs, beside torch.multiprocessing.Pool
    overlap    tasks whose copy takes as long as their kernel, beside one after the other, and beside plain Pool code
    scaling    tasks of 10 ms on all GPUs, beside one
    idle       what a Pool that has nothing to do takes

Every result is checked, and the bytes that went by each route are counted: a byte that goes another way fails the run
(at its end, since the other figures are worth something all the same).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
from gpu import pool_tasks as tasks

import cableway as cw

MIB = 1 << 20
ROWS: list[tuple[str, str, str, str]] = []
FAULTS: list[str] = []  # what fails the run


def row(what: str, target: str, found: str, met: bool | None = None) -> None:
    """Notes a line of the table."""
    ROWS.append((what, target, found, {None: "", True: "yes", False: "NO"}[met]))


def seconds(action: Callable[[], object], rounds: int) -> float:
    """The median time of one action, after one that does not count."""
    action()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def same(found: object, wanted: object) -> None:
    """A wrong result ends the run."""
    if found != wanted:
        raise SystemExit(f"wrong results: {found!r}, not {wanted!r}")


# ---- bytes by route


def status() -> Any:
    """What the broker tells."""
    cw.put("bench/look", 1)  # the broker reads a client's figures when it hears of it
    program = Path(cw.__file__).parent / "bin" / "cableway"
    told = subprocess.run([program, "status", "--json"], capture_output=True, check=True).stdout
    return json.loads(told)


class Moved:
    """Bytes that went by each route within the `with`, in which all workers have to end."""

    def __enter__(self) -> Moved:
        self._before = status()
        return self

    def __exit__(self, *_: object) -> None:
        end = time.monotonic() + 20
        while len(status()["clients"]) > len(self._before["clients"]) and time.monotonic() < end:
            time.sleep(0.02)
        now, was = status()["counters"], self._before["counters"]
        changed = {name: now[name] - was[name] for name in now if name.startswith("bytes_")}
        self.routes = {name[6:]: nbytes for name, nbytes in changed.items() if nbytes}


def by_these_routes(moved: Moved, wanted: dict[str, int]) -> None:
    """Bytes that went otherwise are a line of the table, and fail the run."""
    for route in sorted({*moved.routes, *wanted}):
        found, right = moved.routes.get(route, 0), wanted.get(route, 0)
        if found != right:
            row(f"bytes {route}", f"{right:,}", f"{found:,}", False)
            FAULTS.append(route)


def closed(pool: Any) -> None:
    """Ends a Pool in peace."""
    pool.close()
    pool.join()


# ---- what a task costs


def overhead(sizes: dict[str, int]) -> None:
    """A map over arrays that lie on the GPU: time a task beyond the function's own, ours and torch's."""
    try:
        import torch
    except ImportError:
        torch = None  # type: ignore[assignment]
    nbytes, count, rounds = sizes["tensor"], sizes["tensors"], sizes["rounds"]
    arrays = [cw.full(nbytes, i + 1, "u1", device="cuda:0") for i in range(count)]
    found = {"arrays": by_pool(arrays, nbytes, rounds, tasks.size)}
    theirs = theirs_new = 0.0
    if torch is not None:
        found["arrays, tensors in the function"] = by_pool(
            arrays, nbytes, rounds, tasks.size_by_torch
        )
        found["tensors"] = by_pool(
            tensors_of_ours(nbytes, count), nbytes, rounds, tasks.size_by_torch
        )
        found["torch's own tensors"] = by_pool(
            tensors_of_torch(nbytes, count), nbytes, rounds, tasks.size_by_torch
        )
        found["torch's own tensors, another one each time"] = by_pool_anew(nbytes, rounds)
        theirs, theirs_new = torch_overhead(nbytes, count, rounds)
    for what, took in found.items():
        text = f"{took * 1e6:.1f} us a task"
        peer = theirs_new if what.endswith("each time") else theirs
        if peer:
            text += f", torch.multiprocessing {peer * 1e6:.0f}: {peer / took:.1f} times"
        met = peer / took >= 10 if peer and peer is theirs else None
        row(f"map over {nbytes // MIB or nbytes / MIB:g} MiB {what}", ">= 10 times less", text, met)


def by_pool(given: list[Any], nbytes: int, rounds: int, function: Callable[[Any], int]) -> float:
    """Seconds a task of a Pool."""
    count = len(given)
    with Moved() as moved, cw.Pool(devices="cuda:0") as pool:
        if function is tasks.size_by_torch:
            wanted = [nbytes * (i + 1) for i in range(count)]
            same(pool.map(tasks.total_by_torch, given, chunksize=1), wanted)

        def ours() -> None:
            same(pool.map(function, given * 4, chunksize=1), [nbytes] * count * 4)

        took = seconds(ours, rounds) / (4 * count)
        closed(pool)
    by_these_routes(moved, {})
    return took - seconds(lambda: [function(x) for x in given], 9) / count


def tensors_of_ours(nbytes: int, count: int) -> list[Any]:
    """Tensors of torch's in memory of cableway's."""
    import torch

    import cableway.torch

    with cableway.torch.use():
        made = [
            torch.full((nbytes,), i + 1, dtype=torch.uint8, device="cuda") for i in range(count)
        ]
    torch.cuda.synchronize()
    return made


def tensors_of_torch(nbytes: int, count: int) -> list[Any]:
    """Tensors in memory of torch's own."""
    import torch

    made = [torch.full((nbytes,), i + 1, dtype=torch.uint8, device="cuda") for i in range(count)]
    torch.cuda.synchronize()
    return made


def by_pool_anew(nbytes: int, rounds: int) -> float:
    """Seconds a call of a Pool with a tensor that torch has just made, beyond making it and the function's own."""
    import torch

    with Moved() as moved, cw.Pool(devices="cuda:0") as pool:
        took = seconds(
            lambda: same(pool.map(tasks.size_by_torch, [new(nbytes)]), [nbytes]), 5 * rounds
        )
        copied = pool.stats()["lent"]["copied"]
        closed(pool)
    by_these_routes(moved, {})
    same(copied, 0)
    took -= seconds(lambda: tasks.size_by_torch(new(nbytes)), 5 * rounds)
    torch.cuda.empty_cache()
    return took


def new(nbytes: int) -> Any:
    """A tensor of torch's own."""
    import torch

    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def torch_overhead(nbytes: int, count: int, rounds: int) -> tuple[float, float]:
    """Seconds a task of torch.multiprocessing.Pool: of a map over tensors, and of a call with a new one."""
    import torch
    import torch.multiprocessing as tm

    tensors = tensors_of_torch(nbytes, count)
    with tm.get_context("spawn").Pool(1) as pool:
        same(
            pool.map(tasks.total_by_torch, tensors, chunksize=1),
            [nbytes * (i + 1) for i in range(count)],
        )

        def theirs() -> None:
            same(pool.map(tasks.size_by_torch, tensors * 4, chunksize=1), [nbytes] * count * 4)

        took = seconds(theirs, max(2, rounds // 2)) / (4 * count)
        took_new = seconds(
            lambda: same(pool.map(tasks.size_by_torch, [new(nbytes)]), [nbytes]), 5 * rounds
        )
        closed(pool)
    took -= seconds(lambda: [tasks.size_by_torch(x) for x in tensors], 9) / count
    took_new -= seconds(lambda: tasks.size_by_torch(new(nbytes)), 5 * rounds)
    torch.cuda.empty_cache()
    return took, took_new


# ---- copies beside kernels


def overlap(sizes: dict[str, int]) -> None:
    """Tasks whose copy takes as long as their kernel."""
    nbytes, each, count = sizes["input"], sizes["inputs"], sizes["tasks"]
    host = [cw.full(nbytes, i + 1, "u1") for i in range(each)]
    wanted = [(i % each + 1,) * 2 for i in range(count)]
    with Moved() as moved, cw.Pool(devices="cuda:0") as pool:

        def copies() -> None:
            pool.map(tasks.size, [cw.In(x) for x in host], chunksize=each)

        copy = seconds(copies, 5) / each
        words = pool.apply(tasks.words_for, (copy,))
        given = [(cw.In(host[i % each]), words) for i in range(count)]

        def one_after_the_other() -> None:
            same([pool.apply(tasks.compute, args) for args in given], wanted)

        def overlapped() -> None:
            same(pool.starmap(tasks.compute, given, chunksize=1), wanted)

        serial, ours = seconds(one_after_the_other, 3), seconds(overlapped, 3)
        kernel = seconds(lambda: pool.map(tasks.spend, [words] * count, chunksize=count), 3)
        closed(pool)
    by_these_routes(moved, {"to_gpu": nbytes * (6 * each + 8 * count)})
    row(
        f"{count} tasks, {nbytes // MIB or nbytes / MIB:g} MiB each",
        "",
        f"copy {copy * 1e3:.2f} ms, kernel {kernel / count * 1e3:.2f} ms each",
    )
    row(
        "overlap, beside one after the other",
        ">= 1.7 times",
        f"{ours / count * 1e3:.2f} ms a task, {serial / count * 1e3:.2f}: {serial / ours:.2f} times",
        serial / ours >= 1.7,
    )
    plain = plain_pool(nbytes, each, count, words, wanted)
    row(
        "overlap, beside plain Pool code with shared_memory",
        "",
        f"{plain / count * 1e3:.2f} ms a task: {plain / ours:.2f} times",
    )


def plain_pool(nbytes: int, each: int, count: int, words: int, wanted: list[Any]) -> float:
    """Seconds for the same tasks by multiprocessing.Pool."""
    blocks = [shared_memory.SharedMemory(create=True, size=nbytes) for _ in range(each)]
    try:
        for i, block in enumerate(blocks):
            np.frombuffer(block.buf, "u1")[:nbytes] = i + 1
        given = [(blocks[i % each].name, nbytes, words) for i in range(count)]
        with multiprocessing.get_context("spawn").Pool(1) as pool:

            def plain() -> None:
                same(pool.starmap(tasks.compute_named, given, chunksize=1), wanted)

            took = seconds(plain, 3)
            closed(pool)
    finally:
        for block in blocks:
            block.unlink()
    return took


def there_and_back(sizes: dict[str, int]) -> None:
    """NumPy arrays that go to the GPU and come back."""
    nbytes, count = sizes["numpy"], sizes["tasks"]
    arrays = [np.full(nbytes, 1, "u1") for _ in range(4)]
    with Moved() as moved, cw.Pool(devices="cuda:0") as pool:
        words = pool.apply(tasks.words_for, (0.002 if nbytes >= MIB else 0.00001,))

        def one_after_the_other() -> None:
            for i in range(count):
                same(pool.apply(tasks.compute, (cw.InOut(arrays[i % 4]), words)), (1, 1))

        def overlapped() -> None:
            for _ in range(count // 4):
                given = [(cw.InOut(x), words) for x in arrays]
                same(pool.starmap(tasks.compute, given, chunksize=1), [(1, 1)] * 4)

        serial, ours = seconds(one_after_the_other, 3), seconds(overlapped, 3)
        closed(pool)
    by_these_routes(moved, {"to_gpu": 8 * count * nbytes, "from_gpu": 8 * count * nbytes})
    for x in arrays:
        same(bool((x == 1).all()), True)
    row(
        f"InOut of {nbytes // MIB or nbytes / MIB:g} MiB of NumPy's, beside one after the other",
        "",
        f"{ours / count * 1e3:.2f} ms a task, {serial / count * 1e3:.2f}: {serial / ours:.2f} times",
    )


# ---- several GPUs


def scaling(sizes: dict[str, int]) -> None:
    """Tasks of 10 ms, on one GPU and on all."""
    gpus = [name for name in cw.devices() if name != "cpu"]
    took = {}
    with Moved() as moved:
        for some in (gpus[:1], gpus):
            with cw.Pool(devices=some) as pool:
                words = max(
                    pool.map(tasks.words_for, [sizes["task_us"] / 1e6] * len(some), chunksize=1)
                )
                count = sizes["each"] * len(gpus)

                def run(pool: Any = pool, words: int = words, count: int = count) -> None:
                    same(pool.map(tasks.spend, [words] * count), [words] * count)

                took[len(some)] = seconds(run, 3) / words
                closed(pool)
    by_these_routes(moved, {})
    one, every = took[1], took[len(gpus)]
    if len(gpus) == 1:
        row("tasks of 10 ms on several GPUs", ">= 0.95 of their number", "one GPU here", None)
        return
    row(
        f"tasks of 10 ms on {len(gpus)} GPUs, beside one",
        f">= {0.95 * len(gpus):.1f} times",
        f"{one / every:.2f} times",
        one / every >= 0.95 * len(gpus),
    )


# ---- nothing to do


def cpu_seconds(pids: list[int]) -> float:
    """What processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def gpu_use() -> str:
    """What nvidia-smi says of all GPUs; "" where there is none."""
    try:
        told = subprocess.run(
            ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return ", ".join(told.split())


def idle(sizes: dict[str, int]) -> None:
    """A Pool that has worked, and then has nothing to do."""
    with cw.Pool(devices="cuda") as pool:
        xs = [np.zeros(1000) for _ in range(8)]
        pool.map(tasks.size, [cw.In(x) for x in xs], chunksize=1)
        time.sleep(0.5)
        pids = [figure["pid"] for figure in pool.stats()["workers"]] + [os.getpid()]
        before = cpu_seconds(pids)
        time.sleep(sizes["idle_ms"] / 1000)
        used = cpu_seconds(pids) - before
        gpu = gpu_use()
    share = used / (sizes["idle_ms"] / 1000)
    row(
        f"idle: {len(pids)} processes' CPU, the GPUs' use",
        "none",
        f"{100 * share:.1f} % of a core" + (f", {gpu} %" if gpu else ""),
        share < 0.02 and not gpu.strip("0, "),
    )


REAL = {
    "tensor": 64 * MIB, "tensors": 16, "rounds": 9, "input": 256 * MIB, "inputs": 4, "tasks": 24, "numpy": 64 * MIB,
    "task_us": 10_000, "each": 30, "idle_ms": 2000,
}  # fmt: skip
SMOKE = {
    "tensor": 1 << 16, "tensors": 4, "rounds": 2, "input": 1 << 16, "inputs": 2, "tasks": 4, "numpy": 1 << 16,
    "task_us": 10, "each": 4, "idle_ms": 200,
}  # fmt: skip


def main() -> None:
    """Runs all and prints the table. Missed targets are shown, and change nothing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: whether it runs")
    known = {part.__name__: part for part in (overhead, overlap, there_and_back, scaling, idle)}
    parser.add_argument("parts", nargs="*", choices=[[], *known], help="all, if none is named")
    given = parser.parse_args()
    sizes = SMOKE if given.smoke else REAL
    begin = time.perf_counter()
    for part in [known[name] for name in given.parts or known]:
        try:
            part(sizes)
        except (Exception, SystemExit):  # the others' figures are worth something all the same
            traceback.print_exc()
            row(part.__name__, "", "FAILED, see above", False)
            FAULTS.append(part.__name__)
    print(f"{'what':62} {'target':24} {'met':4} found")
    for what, target, found, met in ROWS:
        print(f"{what:62} {target:24} {met:4} {found}")
    print(f"{time.perf_counter() - begin:.0f} s on {len(cw.devices()) - 1} GPUs")
    sys.exit(bool(FAULTS))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
