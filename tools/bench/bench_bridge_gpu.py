"""An array from a GPU of one node to a GPU of another across the bridge, beside its parts alone: part of `make bench-gpu`.

    bench_bridge_gpu.py --build BUILD [--smoke | --explain [--streams 1,2,4,8] [--sizes 16,256,1024]]

Loopback figures: both nodes are on this machine, on its first and last GPU, so that copies, encryption and sockets
share cores. The parts, measured in the same run: the driver's copy to and from pinned host memory, OpenSSL's blocking
loops in C on as many threads as the bridge has streams, and plain sockets on as many. The promise is LEAST of the
slowest of them. Random data, arrays in rotation, every result checked. --smoke: small, and prints no figure: for the
test double, whose figures say nothing. --explain: in about 40 s where the time goes, by streams and threads
(bridge/explain.py), and no promise.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

from bridge.explain import explain
from bridge.nodes import Nodes, Owner, areas, nodes, random_bytes
from bridge.rivals import Loop, closing
from gpu import driver
from measure import MIB, in_turn

import cableway as cw

LEAST = 0.8
SIZES = (16 * MIB, 256 * MIB, 1024 * MIB)


class Get:
    """Ours: a get of a name that is new to this node, onto this node's GPU."""

    def __init__(self, made: Nodes, owner: Owner, size: int, device: str) -> None:
        self.owner, self.size, self.device, self.next = owner, size, device, 0
        self.nodes = made
        owner.make(size, device="cuda:0")

    def sample(self, turn: int) -> tuple[float, float]:
        """Seconds until the array is on the GPU."""
        self.next += 1
        name, number = f"new/{self.size}/{self.next}", turn % areas(self.size)
        self.owner.name(self.size, number, name)
        begun = time.perf_counter()
        with cw.get(f"//b/{name}", device=self.device) as array:
            took = time.perf_counter() - begun
            if array.device != self.device:
                raise RuntimeError(f"the array is on {array.device}")
            if not (array.to("cpu").numpy() == random_bytes(self.size, number)).all():
                raise RuntimeError("wrong bytes")
        self.owner.remove(name)
        return took, 0


class Copy:
    """The driver's copy of so many bytes, from or to pinned memory."""

    def __init__(self, kind: str, gpu: int, size: int) -> None:
        self.kind, self.gpu, self.size = kind, gpu, size
        driver.enter(gpu)
        self.stream, self.memory, self.pinned = (
            driver.stream(),
            driver.memory(size),
            driver.pinned(size),
        )

    def sample(self, turn: int) -> tuple[float, float]:
        """Until it is done."""
        driver.enter(self.gpu)
        ends = (self.pinned, self.memory) if self.kind == "DtoH" else (self.memory, self.pinned)
        begun = time.perf_counter()
        driver.copy(self.kind, *ends, self.size, self.stream)
        driver.finish(self.stream)
        return time.perf_counter() - begun, 0

    def close(self) -> None:
        """Gives the memory back."""
        driver.enter(self.gpu)
        driver.free(self.memory)
        driver.free_pinned(self.pinned)


def measure(made: Nodes, owner: Owner, size: int, streams: int, rounds: int) -> dict[str, float]:
    """GB/s of ours and of each part; the first is ours."""
    last = len([device for device in cw.devices() if device.startswith("cuda:")]) - 1
    ours = Get(made, owner, size, f"cuda:{last}")
    copies = {"GPU to host": Copy("DtoH", 0, size), "host to GPU": Copy("HtoD", last, size)}
    loops: list[Loop] = []
    if (made.build / "tools/bench/programs/bench_tls").exists():
        keys = made.root / "a" / "node"
        loops = [Loop(made.build, keys, kind, streams, size) for kind in ("tls", "plain")]
    with closing(list(loops)):
        for loop in loops:
            loop.ready(size)
        found = in_turn(
            rounds,
            [("cableway", ours.sample)]
            + [(name, part.sample) for name, part in copies.items()]
            + [(loop.name, loop.sample) for loop in loops],
        )
    for part in copies.values():
        part.close()
    owner.drop(size)
    return {
        name: statistics.median(size / took / 1e9 for took, _ in samples)
        for name, samples in found.items()
    }


def main() -> int:
    """Prints the table; 1 if a promise was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--explain", action="store_true")
    parser.add_argument("--streams", default="1,2,4,8", help="with --explain")
    parser.add_argument("--sizes", default="16,256,1024", help="with --explain: MiB")
    options = parser.parse_args()
    build = options.build.resolve()
    if "cuda:0" not in cw.devices():
        print("across the bridge: not measured, there is no GPU")
        return 0
    if not os.access(build / "cableway-bridge", os.X_OK):
        print(f"across the bridge: not measured, there is no {build / 'cableway-bridge'}")
        return 0
    if options.explain:
        counts, mibs = (
            [int(word) for word in text.split(",")] for text in (options.streams, options.sizes)
        )
        explain(build, counts, [mib * MIB for mib in mibs])
        return 0
    streams = 1 if options.smoke else max(1, min(8, len(os.sched_getaffinity(0)) // 4))
    missed = 0
    with nodes(build, "a", "b", streams=streams) as made, cw.connect(made.root / "a"):
        owner = Owner(made, "b")
        for size in (MIB,) if options.smoke else SIZES:
            it = measure(made, owner, size, streams, 1 if options.smoke else 7)
            if options.smoke:
                print("across the bridge: ran, with", ", ".join(it))
                continue
            rate = it.pop("cableway")
            slowest = min(it, key=lambda name: it[name])
            low = rate < LEAST * it[slowest]
            missed += low
            print(f"GPU to GPU across the bridge, loopback, {streams} streams, {size // MIB} MiB: {rate:.2f} GB/s; "
                  + ", ".join(f"{name} {value:.2f}" for name, value in it.items())
                  + f"; {rate / it[slowest]:.2f} of the slowest{f', below {LEAST}' if low else ''}")  # fmt: skip
        owner.close()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
