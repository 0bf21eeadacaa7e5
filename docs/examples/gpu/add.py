"""Adds two lists of 10 million numbers on every GPU: a Numba kernel, run by the Pool.

    python add.py [--size N] [--parts N] [--devices cuda]

Each task gets a part of the two lists. `In` brings it to the GPU of the worker that takes the task, `Out` brings the sum
back into the caller's array, while the worker is at the next task already. Checked against NumPy, bit for bit.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from numba import cuda

import cableway as cw

THREADS = 256


@cuda.jit
def add_kernel(a: Any, b: Any, out: Any) -> None:
    """One thread adds one pair."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


def add(a: Any, b: Any, out: Any) -> None:
    """A task: its arguments are arrays on the worker's own GPU."""
    if out.device == "cpu":  # there is no GPU: Numba's simulator takes NumPy's arrays
        a, b, out = a.numpy(), b.numpy(), out.numpy()
    add_kernel[-(-out.size // THREADS), THREADS](a, b, out)


def parts(size: int, count: int) -> list[slice]:
    """Slices of about the same length that cover size elements."""
    edges = [size * i // count for i in range(count + 1)]
    return [slice(begin, end) for begin, end in zip(edges, edges[1:], strict=False) if begin < end]


def main() -> None:
    """Adds, times, checks."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--size", type=int, default=10_000_000)
    options.add_argument("--parts", type=int, default=16)
    options.add_argument(
        "--devices", default="cuda", help='"auto": without GPUs the CPU (Numba\'s simulator)'
    )
    given = options.parse_args()

    random = np.random.default_rng(1)
    a, b = random.random(given.size), random.random(given.size)
    out = np.empty_like(a)

    begin = time.perf_counter()
    expected = a + b
    cpu_seconds = time.perf_counter() - begin

    tasks = [
        (cw.In(a[part]), cw.In(b[part]), cw.Out(out[part]))
        for part in parts(given.size, given.parts)
    ]
    seconds = []
    with cw.Pool(devices=given.devices) as pool:
        for _ in range(3):  # the first round starts the workers and compiles the kernel
            out[:] = 0
            begin = time.perf_counter()
            pool.starmap(add, tasks, chunksize=1)
            seconds.append(time.perf_counter() - begin)
            if not np.array_equal(out, expected):
                raise SystemExit("WRONG: the sum differs from NumPy's")
        workers = [worker["tasks"] for worker in pool.stats()["workers"]]

    print(f"{given.size:,} pairs in {len(tasks)} tasks, tasks by worker: {workers}")
    print(
        f"first round {seconds[0] * 1e3:.1f} ms (with start and compiling), then {min(seconds[1:]) * 1e3:.1f} ms there and back"
    )
    print(f"NumPy on one core: {cpu_seconds * 1e3:.1f} ms")
    print("equal to NumPy's sum, bit for bit")


if __name__ == "__main__":
    main()
