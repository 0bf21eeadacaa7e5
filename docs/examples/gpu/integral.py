"""The integral of exp(-x*x - y*y) over a square, on every GPU: two Numba kernels, run by the Pool.

    python integral.py [--points N] [--strips N] [--devices cuda]

The square is cut into strips, a task each; the midpoint rule gives its part of the sum. In the plain kernel each thread adds
up a row and leaves its sum in memory. In the other one the threads of a block share an array (`cuda.shared.array`) and add it up
in halves, so that a block leaves a single number. Both are checked against NumPy's sum over the same points, and against
pi * erf(3) ** 2, which the integral is.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np
from numba import cuda, float64

import cableway as cw

EDGE = 3.0  # the square reaches from -EDGE to EDGE
THREADS = 128  # a power of two: the reduction halves it


@cuda.jit
def rows_kernel(begin: int, points: int, step: float, sums: Any) -> None:
    """A thread a row: the sum over its points."""
    row = cuda.grid(1)
    if row < sums.size:
        x = -EDGE + (begin + row + 0.5) * step
        total = 0.0
        for column in range(points):
            y = -EDGE + (column + 0.5) * step
            total += math.exp(-x * x - y * y)
        sums[row] = total


@cuda.jit
def shared_kernel(begin: int, points: int, step: float, sums: Any) -> None:
    """A block a row: its threads add up every THREADS-th point each, then each other's sums."""
    shared = cuda.shared.array(THREADS, float64)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    x = -EDGE + (begin + row + 0.5) * step
    total = 0.0
    for column in range(thread, points, THREADS):
        y = -EDGE + (column + 0.5) * step
        total += math.exp(-x * x - y * y)
    shared[thread] = total
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if thread < half:
            shared[thread] += shared[thread + half]
        cuda.syncthreads()
        half //= 2
    if thread == 0:
        sums[row] = shared[0]


def strip(kind: str, begin: int, end: int, points: int) -> float:
    """A task: the part of the integral that the rows from begin to end have."""
    step = 2 * EDGE / points
    sums = cuda.device_array(end - begin, np.float64)
    if kind == "plain":
        rows_kernel[-(-sums.size // THREADS), THREADS](begin, points, step, sums)
    else:
        shared_kernel[sums.size, THREADS](begin, points, step, sums)
    return float(sums.copy_to_host().sum()) * step * step


def on_the_cpu(points: int) -> float:
    """The same sum by NumPy. The function is a product, but that would make it too easy."""
    step = 2 * EDGE / points
    middle = -EDGE + (np.arange(points) + 0.5) * step
    return math.fsum(float(np.exp(-x * x - middle * middle).sum()) for x in middle) * step * step


def main() -> None:
    """Integrates, times, checks."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--points", type=int, default=16384, help="along each axis")
    options.add_argument("--strips", type=int, default=64)
    options.add_argument(
        "--devices", default="cuda", help='"auto": without GPUs the CPU (Numba\'s simulator)'
    )
    given = options.parse_args()

    begin = time.perf_counter()
    expected = on_the_cpu(given.points)
    cpu_seconds = time.perf_counter() - begin
    exact = math.pi * math.erf(EDGE) ** 2

    edges = [given.points * i // given.strips for i in range(given.strips + 1)]
    with cw.Pool(devices=given.devices) as pool:
        for kind in ("plain", "shared"):
            tasks = [
                (kind, a, b, given.points) for a, b in zip(edges, edges[1:], strict=False) if a < b
            ]
            seconds = []
            for _ in range(3):  # the first round compiles
                begin = time.perf_counter()
                found = math.fsum(pool.starmap(strip, tasks, chunksize=1))
                seconds.append(time.perf_counter() - begin)
                # Other orders of adding up, and another exp: a part in 10^12. The rule itself is off by far less
                # than the number of points suggests, since the function all but vanishes at the edge.
                if not math.isclose(found, expected, rel_tol=1e-12):
                    raise SystemExit(f"WRONG: {kind} gives {found!r}, NumPy {expected!r}")
                if not math.isclose(found, exact, rel_tol=10.0 / given.points**2):
                    raise SystemExit(f"WRONG: {kind} gives {found!r}, the integral is {exact!r}")
            print(
                f"{kind:6} {found:.12f}  first round {seconds[0] * 1e3:8.1f} ms (with start and compiling), "
                f"then {min(seconds[1:]) * 1e3:.1f} ms"
            )
    print(f"NumPy  {expected:.12f}  {cpu_seconds * 1e3:.1f} ms on one core;  exact {exact:.12f}")


if __name__ == "__main__":
    main()
