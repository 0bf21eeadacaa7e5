"""How long until the workers of a new Pool are ready: ours beside multiprocessing.Pool, in every start method.

Seconds from the call of Pool until each worker has run its initializer, which writes one byte into a FIFO. The Pools
take turns in one run, and each is ended before the next begins; what ends them is not measured. The first Pool of
a start method pays for a server's start, ours or multiprocessing's forkserver: it stands in a row of its own, and comes
from new interpreters, one for each sample. CPU seconds are those of the parent, its server and all workers.

The script imports what a script of numerical Python does (NumPy, and cableway with it), and so does each worker.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from measure import all_cpu, own_broker, report

import cableway

METHODS = ("fork", "spawn", "forkserver")
LIBRARIES = ("cableway", "multiprocessing")


def tell(path: str) -> None:
    """Initializer: this worker is ready."""
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, np.ones(1, "u1").tobytes())
    os.close(fd)


def start(library: str, method: str, workers: int) -> tuple[float, float]:
    """Seconds and CPU seconds until the workers of a Pool are ready."""
    context = multiprocessing.get_context(method)
    with tempfile.TemporaryDirectory(prefix="cableway-bench-") as folder:
        path = f"{folder}/ready"
        os.mkfifo(path)
        fd = os.open(path, os.O_RDWR)
        used, begun = all_cpu(), time.perf_counter()
        pool: Any = (
            cableway.Pool(workers, tell, (path,), context=context)
            if library == "cableway"
            else context.Pool(workers, tell, (path,))
        )
        ready = 0
        while ready < workers:
            ready += len(os.read(fd, workers))
        seconds = time.perf_counter() - begun
        cpu = all_cpu() - used
        pool.terminate()
        pool.join()
        os.close(fd)
    return seconds, cpu


def first(library: str, method: str, workers: int) -> tuple[float, float]:
    """The same for the first Pool of a new interpreter."""
    command = [sys.executable, __file__, "--first", library, method, "--workers", str(workers)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600)
    seconds, cpu = json.loads(done.stdout)
    return seconds, cpu


def bench_first(rounds: int, workers: int) -> None:
    """New interpreters."""
    kinds = [(library, method) for library in LIBRARIES for method in METHODS]
    found: dict[tuple[str, str], list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for turn in range(rounds):
        for kind in kinds[:: -1 if turn % 2 else 1]:
            found[kind].append(first(*kind, workers))
    for kind in kinds:
        show(*kind, f"first {workers} workers", found[kind])


def bench_next(rounds: int, rounds_slow: int, workers: int) -> None:
    """From the second Pool on; the slow ones take fewer turns."""
    kinds = [(library, method) for library in LIBRARIES for method in METHODS]
    found: dict[tuple[str, str], list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for kind in kinds:
        start(*kind, workers)
    for turn in range(rounds):
        for kind in kinds[:: -1 if turn % 2 else 1]:
            slow = kind[0] == "multiprocessing" and kind[1] != "fork"
            if not slow or turn < rounds_slow:
                found[kind].append(start(*kind, workers))
    for kind in kinds:
        show(*kind, f"{workers} workers", found[kind])


def bench_replaced(rounds: int) -> None:
    """From the death of one of two workers, by SIGKILL, until its successor has run its initializer."""
    for method in METHODS:
        with tempfile.TemporaryDirectory(prefix="cableway-bench-") as folder:
            path = f"{folder}/ready"
            os.mkfifo(path)
            fd = os.open(path, os.O_RDWR)
            context = multiprocessing.get_context(method)
            samples = []
            with cableway.Pool(2, tell, (path,), context=context) as pool:
                ready = 0
                while ready < 2:
                    ready += len(os.read(fd, 2))
                for _ in range(rounds):
                    pid = pool.stats()["workers"][0]["pid"]
                    begun = time.perf_counter()
                    os.kill(pid, signal.SIGKILL)
                    os.read(fd, 1)
                    samples.append(time.perf_counter() - begun)
                    time.sleep(0.1)  # one that dies at its start would count as such
            os.close(fd)
            report("start", f"cableway.Pool, {method}, a killed worker's successor", "sleeps", "ms", [s * 1e3 for s in samples])  # fmt: skip


def show(library: str, method: str, what: str, samples: list[tuple[float, float]]) -> None:
    """A row, in ms."""
    report(
        "start",
        f"{library}.Pool, {method}, {what}",
        "sleeps",
        "ms",
        [seconds * 1e3 for seconds, _ in samples],
        sum(cpu for _, cpu in samples),
    )


def main() -> None:
    """Runs all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rounds-slow", type=int, default=5, help="of the first, and of what takes seconds")  # fmt: skip
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--first", nargs=2, metavar=("LIBRARY", "METHOD"), help="once, as JSON")
    options = parser.parse_args()
    if options.first:
        print(json.dumps(start(*options.first, options.workers)))
        return
    with own_broker():
        cableway.names()  # starts the broker
        bench_first(options.rounds_slow, options.workers)
        bench_next(options.rounds, options.rounds_slow, options.workers)
        bench_replaced(options.rounds)
        multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
        cableway.connect().close()


if __name__ == "__main__":
    main()
