"""Copies between two GPUs through host memory, beside the driver's own copies to and from the host: part of `make bench-gpu`.

CABLEWAY_ROUTE forces the way, so that machines whose GPUs have a link can measure it too: "staged" is this process,
"mover" is cableway-mover. What a staged copy could reach is what both directions do at once, one GPU sending and the
other receiving, the slower of the two; measured in the same run, before and after. Random data, buffers in rotation,
every result checked, bytes counted by route: another way than the forced one fails the run, and so does less than
LEAST of what could be reached, from 64 MiB on here, and from 256 MiB on by the mover, who is asked anew for each copy.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gpu import driver

import cableway as cw

MIB = 1 << 20
LEAST = 0.85
SIZES = (4 * MIB, 64 * MIB, 256 * MIB)  # or as given, in bytes
COUNT = 3  # buffers in rotation


def seconds(action: Callable[[int], object], rounds: int) -> float:
    """The median time of one action; the first two rounds do not count."""
    times = []
    for i in range(rounds + 2):
        begin = time.perf_counter()
        action(i)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def routes() -> dict[str, int]:
    """Bytes by route, as the broker counts them."""
    cw.put("bench/look", 1)  # it reads a client's figures when it hears of it
    program = Path(cw.__file__).parent / "bin" / "cableway"
    told = subprocess.run([program, "status", "--json"], capture_output=True, check=True).stdout
    counters = json.loads(told)["counters"]
    return {name: counters[name] for name in counters if name.startswith("bytes_")}


class Raw:
    """The driver's own copies, from pinned memory: GPU 0 sends, GPU 1 receives."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ends = []
        for gpu in (0, 1):
            driver.enter(gpu)
            self.ends.append((driver.stream(), driver.memory(size), driver.pinned(size)))

    def _begin(self, gpu: int) -> None:
        stream, memory, pinned = self.ends[gpu]
        driver.enter(gpu)
        if gpu == 0:
            driver.copy("DtoH", pinned, memory, self.size, stream)
        else:
            driver.copy("HtoD", memory, pinned, self.size, stream)

    def seconds(self, gpus: tuple[int, ...], rounds: int) -> float:
        """The time until all of them are done."""

        def once(_: int) -> None:
            for gpu in gpus:
                self._begin(gpu)
            for gpu in gpus:
                driver.enter(gpu)
                driver.finish(self.ends[gpu][0])

        return seconds(once, rounds)

    def close(self) -> None:
        """Gives the memory back."""
        for gpu in (0, 1):
            driver.enter(gpu)
            driver.free(self.ends[gpu][1])
            driver.free_pinned(self.ends[gpu][2])


def measure(size: int) -> dict[str, float]:
    """GB/s of ours and of the driver's, for one size."""
    rounds = 40 if size <= 4 * MIB else 10 if size <= 256 * MIB else 4
    source = [
        cw.asarray(np.random.default_rng(i).integers(0, 255, size, "u1"), device="cuda:0")
        for i in range(COUNT)
    ]
    target = [cw.zeros(size, "u1", device="cuda:1") for _ in range(COUNT)]
    raw = Raw(size)
    alone = raw.seconds((0,), rounds), raw.seconds((1,), rounds)
    together = [raw.seconds((0, 1), rounds)]
    before = routes()
    ours = seconds(lambda i: target[i % COUNT].copy_from(source[i % COUNT]), rounds)
    after = routes()
    together.append(raw.seconds((0, 1), rounds))
    raw.close()
    moved = {name: after[name] - before[name] for name in before}
    assert moved["bytes_staged"] == size * (rounds + 2) and not moved["bytes_peer"], moved
    for of, to in zip(source, target, strict=True):
        assert np.array_equal(of.to("cpu").numpy(), to.to("cpu").numpy())
    rate = size / 1e9
    return {
        "ours": rate / ours,
        "out": rate / alone[0],
        "in": rate / alone[1],
        "together": rate / min(together),
    }


def child() -> None:
    """Measures the route of this process's environment."""
    sizes = [int(size) for size in sys.argv[2:]] or SIZES
    print(json.dumps({size: measure(size) for size in sizes}))


def main() -> int:
    """Runs each route in a process and with a broker of its own, and prints the table."""
    if "cuda:1" not in cw.devices():
        print("staged copies: not measured, there is no second GPU")
        return 0
    missed = 0
    print(
        f"{'staged copy between two GPUs':34} {'cableway':>9} {'GPU to host':>12} {'host to GPU':>12} "
        f"{'both at once':>13}  unit  of both"
    )
    for route, who, full in (
        ("staged", "in the caller", 64 * MIB),
        ("mover", "by cableway-mover", 256 * MIB),
    ):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, __file__, "child", *sys.argv[1:]],
                env={**os.environ, "CABLEWAY_ROUTE": route, "CABLEWAY_DIR": folder},
                stdout=subprocess.PIPE,
                check=True,
            )
            program = Path(cw.__file__).parent / "bin" / "cableway"
            subprocess.run(
                [program, "stop", "--yes"],
                env={**os.environ, "CABLEWAY_DIR": folder},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
        for text, it in json.loads(done.stdout).items():
            ratio = it["ours"] / it["together"]
            low = int(text) >= full and ratio < LEAST
            missed += low
            print(
                f"{who + ', ' + str(int(text) // MIB) + ' MiB':34} {it['ours']:9.1f} {it['out']:12.1f} "
                f"{it['in']:12.1f} {it['together']:13.1f}  GB/s  {ratio:6.2f}"
                f"{f'  below {LEAST}' if low else ''}"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child()
    else:
        sys.exit(main())
