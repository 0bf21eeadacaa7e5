"""A version of a model takes another one's place at the same addresses, beside a copy of the same bytes on the GPU.

A graph is captured once, of copies from all over the tree; after each swap it is replayed, and what it copied is looked at.
The test double has no graphs: there the driver copies without one, and the line says so.

    bench_gpu_swap.py [--gib 32] [--bytes N] [--rounds 15]
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from gpu import driver

import cableway as cw
from cableway import array as arrays
from cableway._core.layouts import Layout

SAMPLES, SAMPLE_BYTES = 64, 4096
SWAP_MS, REMAP_MS, TIMES = 2.0, 1.5, 8.0  # what is promised of 32 GiB


def weights(size_bytes: int, value: int) -> cw.Array:
    """Memory of its own, all of that value."""
    made = arrays.new(Layout((size_bytes,), np.dtype(np.uint8)), device="cuda:0", apart=True)
    at = made.__cuda_array_interface__["data"][0]
    stream = driver.stream()
    driver.call(
        "cuMemsetD8Async", ctypes.c_uint64(at), ctypes.c_ubyte(value), ctypes.c_size_t(size_bytes), stream
    )  # fmt: skip
    driver.finish(stream)
    return made


class Samples:
    """Copies of pieces from all over the tree, as a captured graph where the driver has graphs."""

    def __init__(self, low: int, size_bytes: int) -> None:
        self.out = driver.memory(SAMPLES * SAMPLE_BYTES)
        self.stream = driver.stream()
        step = (size_bytes - SAMPLE_BYTES) // (SAMPLES - 1)
        self.sources = [low + i * step for i in range(SAMPLES)]
        self.graph: ctypes.c_void_p | None = None
        try:
            self._capture()
        except AttributeError:  # no such call
            print("# graph: skipped, this driver has none: the copies are submitted each time")

    def _submit(self) -> None:
        for i, source in enumerate(self.sources):
            driver.copy("DtoD", self.out + i * SAMPLE_BYTES, source, SAMPLE_BYTES, self.stream)

    def _capture(self) -> None:
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        instantiate = driver._cuda.cuGraphInstantiateWithFlags
        driver.call("cuStreamBeginCapture_v2", self.stream, 2)  # CU_STREAM_CAPTURE_MODE_RELAXED
        self._submit()
        driver.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        status = instantiate(ctypes.byref(made), graph, ctypes.c_uint64(0))
        if status:
            raise RuntimeError(f"cuGraphInstantiateWithFlags: CUDA error {status}")
        self.graph = made

    def check(self, value: int) -> None:
        """Replays, and looks at all that was copied."""
        if self.graph is None:
            self._submit()
        else:
            driver.call("cuGraphLaunch", self.graph, self.stream)
        driver.finish(self.stream)
        seen = np.zeros(SAMPLES * SAMPLE_BYTES, "u1")
        driver.copy("DtoH", seen.ctypes.data, self.out, seen.nbytes, self.stream)
        driver.finish(self.stream)
        if not (seen == value).all():
            raise AssertionError(f"{value} was swapped in, the graph saw {np.unique(seen)}")


def times(call: Callable[[int], Any], check: Callable[[int], None], rounds: int) -> list[float]:
    """Milliseconds of each round but the first."""
    found = []
    for number in range(rounds + 1):
        begin = time.perf_counter()
        call(number)
        found.append((time.perf_counter() - begin) * 1e3)
        check(number)
    return found[1:]


def row(what: str, found: list[float]) -> float:
    """Prints it; returns the median."""
    middle = statistics.median(found)
    print(f"  {what:<46}{middle:10.3f} ms   least {min(found):.3f}, most {max(found):.3f}")
    return middle


def main() -> int:
    """Runs all and says what is kept of what is promised."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--gib", type=float, default=32)
    parser.add_argument("--bytes", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    size = given.bytes or int(given.gib * (1 << 30))
    driver.enter()
    parts = [weights(size, value) for value in (1, 2)]
    copies = driver.stream()
    lows = [part.__cuda_array_interface__["data"][0] for part in parts]

    def copy(number: int) -> None:
        driver.copy("DtoD", lows[0], lows[1], size, copies)
        driver.finish(copies)

    print(f"# {size} bytes in one part")
    in_place = row("copy on the GPU, in place", times(copy, lambda _: None, given.rounds))
    driver.call("cuMemsetD8Async", ctypes.c_uint64(lows[0]), ctypes.c_ubyte(1), ctypes.c_size_t(size), copies)  # fmt: skip
    driver.finish(copies)
    versions = []
    keeps = []
    for part in parts:
        keeps.append(cw.put("bench/swap", {"w": part}, copy=False))
        versions.append(keeps[-1].version)
    tree = cw.get("bench/swap", swappable=True)
    low = tree["w"].__cuda_array_interface__["data"][0]
    samples = Samples(low, size)
    samples.check(2)

    def swap(number: int) -> None:
        assert tree.swap(version=versions[number % 2])

    def remap(_: int) -> None:
        tree.unmap()
        tree.map()

    swaps = row(
        "swap, graph captured", times(swap, lambda n: samples.check(n % 2 + 1), given.rounds)
    )
    last = given.rounds % 2 + 1
    remaps = row("unmap and map", times(remap, lambda _: samples.check(last), given.rounds))
    assert tree["w"].__cuda_array_interface__["data"][0] == low
    cw.remove("bench/swap")
    print(f"  copy in place / swap: {in_place / swaps:.1f} times")
    if size < 32 << 30:
        print("# promises are of 32 GiB: not looked at")
        return 0
    kept = {
        f"swap of 32 GiB in at most {SWAP_MS} ms": swaps <= SWAP_MS * size / (32 << 30),
        f"{TIMES:g} times faster than a copy in place": in_place / swaps >= TIMES,
        f"unmap and map of 32 GiB in at most {REMAP_MS} ms": remaps <= REMAP_MS * size / (32 << 30),
    }
    for what, is_kept in kept.items():
        print(f"  {what}: {'kept' if is_kept else 'MISSED'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
