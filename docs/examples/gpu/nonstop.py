"""A kernel that never ends and takes its jobs from a ring in shared memory, beside plain launches, graphs and an armed stream.

    python nonstop.py [--rounds N]

One process owns the kernel. Any process that has the ring gives it jobs: a job is 32 bytes and one store, and whoever pushes needs no
CUDA. The times of one job of one block are printed, each the median of N, and every result is checked.

Look at the last rows before you build on this: what a job gains against a launch is small, and while the kernel runs, every other
process of that GPU waits for time slices, milliseconds for a kernel of microseconds. An *armed stream* gives most of the gain and costs
the others nothing: wait, kernel and a mark are given to the stream ahead, and a store by any process lets the next one begin.

The rules that the script follows:
  - The kernel has a process of its own, never a Pool's worker, and everything is loaded before it starts: a first launch would wait
    behind it for ever.
  - It leaves by itself when nobody has pushed for IDLE_MS milliseconds, and at the word `STOP`.
  - It knows a fixed table of functions. All its blocks are on the GPU at once (here: one).
  - The ring has one producer. A job's words are written first, and TAIL, the one store that publishes it, last.
  - Who pushes waits with a bound, and looks whether the owner is still there: the ring's name goes with its process.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import queue
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import cableway as cw

TAIL, DONE, STOP, JOBS = 0, 8, 16, 32  # words of the ring; jobs of four words each
SLOTS = 64
ADD, DOUBLE = 0, 1  # the functions
N = 1024
IDLE_MS = 2000
PATIENCE_S = 30.0

SOURCE = r"""
typedef unsigned long long u64;
__device__ u64 load(const u64 *p) { u64 v; asm volatile("ld.acquire.sys.u64 %0,[%1];" : "=l"(v) : "l"(p) : "memory"); return v; }
__device__ void store(u64 *p, u64 v) { asm volatile("st.release.sys.u64 [%0],%1;" :: "l"(p), "l"(v) : "memory"); }
__device__ void work(u64 what, float *y, u64 n) {
    for (u64 i = threadIdx.x; i < n; i += blockDim.x)
        y[i] = what == ADD ? y[i] + 1 : 2 * y[i];
}
extern "C" __global__ void once(u64 *ring, float *y, u64 k) { /* the job of number k */
    const u64 *job = ring + JOBS + 4 * (k % SLOTS);
    work(job[0], y, job[1]);
}
extern "C" __global__ void busy(long long cycles) { long long t = clock64(); while (clock64() - t < cycles); }
extern "C" __global__ void nonstop(u64 *ring, float *y, u64 k, long long idle_cycles) {
    __shared__ u64 what, n;
    __shared__ int goes_on;
    for (;; k++) {
        if (!threadIdx.x) {
            long long since = clock64();
            goes_on = 1;
            while (goes_on && load(ring + TAIL) <= k)
                if (load(ring + STOP) || clock64() - since > idle_cycles)
                    goes_on = 0;
            what = load(ring + JOBS + 4 * (k % SLOTS));
            n = load(ring + JOBS + 4 * (k % SLOTS) + 1);
        }
        __syncthreads();
        if (!goes_on)
            return;
        work(what, y, n);
        __threadfence_system();
        __syncthreads();
        if (!threadIdx.x)
            store(ring + DONE, k + 1);
    }
}
"""


def compiled(cupy: Any) -> Any:
    """The kernels, with this script's numbers."""
    numbers = {"TAIL": TAIL, "DONE": DONE, "STOP": STOP, "JOBS": JOBS, "SLOTS": SLOTS, "ADD": ADD}
    defines = tuple(f"-D{name}={number}" for name, number in numbers.items())
    return cupy.RawModule(code=SOURCE, options=("--std=c++14", *defines))


def push(ring: np.ndarray, what: int) -> None:
    """Gives the kernel a job, and waits until it is done. Needs no CUDA."""
    k = int(ring[TAIL])
    slot = JOBS + 4 * (k % SLOTS)
    ring[slot], ring[slot + 1] = what, N
    ring[TAIL] = k + 1
    end = 0.0
    while ring[DONE] <= k:
        now = time.monotonic()
        end = end or now + PATIENCE_S
        if now > end:
            alive = "nonstop/ring" in cw.names()
            raise TimeoutError(
                f"a job took more than {PATIENCE_S} s; the owner is {'there' if alive else 'gone'}"
            )


def median_us(do: Callable[[], None], rounds: int) -> float:
    """Microseconds of one call, the median."""
    for _ in range(20):
        do()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        do()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def own(device: int, rounds: int, told: Any) -> None:
    """The process that owns the kernel: it measures what else there is, and then starts it."""
    import cupy

    cupy.cuda.Device(device).use()
    module = compiled(cupy)
    once, nonstop = module.get_function("once"), module.get_function("nonstop")
    shared = cw.put("nonstop/ring", np.zeros(JOBS + 4 * SLOTS, "u8"))
    ring = shared.numpy()
    cupy.cuda.runtime.hostRegister(
        ring.ctypes.data, ring.nbytes, 2
    )  # the GPU reads it where it lies
    y = cupy.zeros(N, "f4")
    stream = cupy.cuda.Stream(non_blocking=True)
    at, block = np.uint64(ring.ctypes.data), (256,)
    added = 0

    def launch() -> None:
        nonlocal added
        once((1,), block, (at, y, np.uint64(0)), stream=stream)
        stream.synchronize()
        added += 1

    ring[JOBS], ring[JOBS + 1] = ADD, N
    told.put(("launch and synchronise", median_us(launch, rounds)))
    with stream:
        stream.begin_capture()
        once((1,), block, (at, y, np.uint64(0)))
        graph = stream.end_capture()

    def replay() -> None:
        nonlocal added
        graph.launch(stream)
        stream.synchronize()
        added += 1

    told.put(("graph launch and synchronise", median_us(replay, rounds)))

    driver = ctypes.CDLL("libcuda.so.1")
    pointer, word = ctypes.c_void_p(stream.ptr), ctypes.c_uint64

    def arm(k: int) -> None:
        driver.cuStreamWaitValue64_v2(pointer, word(ring.ctypes.data + 8 * TAIL), word(k + 1), 0)
        once((1,), block, (at, y, np.uint64(k)), stream=stream)
        driver.cuStreamWriteValue64_v2(pointer, word(ring.ctypes.data + 8 * DONE), word(k + 1), 0)

    armed = rounds + 20
    times = []
    for k in range(armed):
        arm(k)
        begin = time.perf_counter()
        push(ring, ADD)
        times.append(time.perf_counter() - begin)
        added += 1
    told.put(("push to an armed stream", statistics.median(times[20:]) * 1e6))
    stream.synchronize()
    assert (y.get() == added).all(), (y.get(), added)

    clock = cupy.cuda.Device(device).attributes["ClockRate"]  # cycles a millisecond
    y[:] = 0
    cupy.cuda.runtime.deviceSynchronize()
    nonstop((1,), block, (at, y, np.uint64(armed), np.int64(IDLE_MS * clock)), stream=stream)
    told.put(
        ("push to the non-stop kernel, its own process", median_us(lambda: push(ring, ADD), rounds))
    )
    told.put(None)  # it runs, and others push
    stream.synchronize()  # until it is told to stop, or nobody pushes any more
    told.put((float(y[0]), float(y[-1])))
    cupy.cuda.runtime.hostUnregister(ring.ctypes.data)


def beside(device: int, rounds: int, told: Any) -> None:
    """Another process of that GPU: how long a kernel of some 10 us takes there."""
    import cupy

    cupy.cuda.Device(device).use()
    busy = compiled(cupy).get_function("busy")

    def launch() -> None:
        busy((1,), (32,), (np.int64(20_000),))
        cupy.cuda.runtime.deviceSynchronize()

    told.put(median_us(launch, rounds))


def main() -> None:
    """Runs all of it, and checks the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000, help="of each (default: %(default)s)")
    parser.add_argument(
        "--device", type=int, default=0, help="number of the GPU (default: %(default)s)"
    )
    options = parser.parse_args()
    device, rounds = options.device, options.rounds
    spawn = multiprocessing.get_context("spawn")
    told, others = cw.Queue(), cw.Queue()
    alone = spawn.Process(target=beside, args=(device, rounds, others), daemon=True)
    alone.start()
    kernel_alone = others.get(timeout=120)
    alone.join()

    owner = spawn.Process(target=own, args=(device, rounds, told), daemon=True)
    owner.start()
    rows = []
    while (row := told.get(timeout=120)) is not None:
        rows.append(row)
    ring = cw.get("nonstop/ring").numpy()
    rows.append(
        (
            "push to the non-stop kernel, a process without CUDA",
            median_us(lambda: push(ring, ADD), rounds),
        )
    )
    other = spawn.Process(target=beside, args=(device, min(rounds, 200), others), daemon=True)
    other.start()
    while True:  # so that the kernel does not leave
        push(ring, ADD)
        try:
            kernel_beside = others.get(timeout=0.05)
            break
        except queue.Empty:
            continue
    other.join()
    pushed = int(ring[TAIL]) - (rounds + 20)
    push(ring, DOUBLE)
    ring[STOP] = 1
    first, last = told.get(timeout=120)
    owner.join()
    rows.append(("another process's kernel of some 10 us, alone", kernel_alone))
    rows.append(("the same beside the non-stop kernel", kernel_beside))
    for what, taken in rows:
        print(f"{what:55} {taken:9.1f} us")
    assert first == last == 2 * pushed, f"WRONG: {first}, {last} in place of {2 * pushed}"
    print(f"{pushed + 1} jobs of the non-stop kernel are right")


if __name__ == "__main__":
    main()
