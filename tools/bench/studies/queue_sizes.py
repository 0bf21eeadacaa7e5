"""Queues by the size of an item, beside multiprocessing's in one run, alternated: medians in microseconds an item.

    python queue_sizes.py [ROUNDS]

    lock step  one process puts and takes (SimpleQueue; up to 60,000 bytes, which the standard library's pipe holds)
    ahead      a writer of its own runs up to 16 items ahead (Queue), its start included
    echo       there and back between two processes (Queue)

The bytes are random; the writer goes through four buffers. What arrives is compared at the end of each sample.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import own_broker

import cableway as cw

FORK = multiprocessing.get_context("fork")
LOCK_STEP_MAX = 60_000
BYTES = (4_000, 16_000, 17_000, 32_768, 60_000, 131_072)
ARRAYS = (4096, 16384, 32768, 49152, 65536, 131072, 262144, 524288, 1 << 20, 16 << 20)


def buffers(kind: str, nbytes: int) -> list[Any]:
    """Four random items."""
    random = np.random.default_rng(nbytes)
    if kind == "bytes":
        return [random.bytes(nbytes) for _ in range(4)]
    return [random.integers(0, 256, nbytes, dtype="u1") for _ in range(4)]


def check(found: Any, wanted: Any) -> None:
    """Ends the run where something else came than was sent."""
    assert bytes(found) == bytes(wanted)


def lock_step(queue: Any, items: list[Any], count: int) -> float:
    """Seconds for count items."""
    began = time.perf_counter()
    for i in range(count):
        queue.put(items[i % 4])
        found = queue.get()
    seconds = time.perf_counter() - began
    check(found, items[(count - 1) % 4])
    return seconds


def put_all(queue: Any, items: list[Any], count: int) -> None:
    """The writer."""
    for i in range(count):
        queue.put(items[i % 4])


def ahead(queue: Any, items: list[Any], count: int) -> float:
    """Seconds for count items."""
    writer = FORK.Process(target=put_all, args=(queue, items, count))
    began = time.perf_counter()
    writer.start()
    for _ in range(count):
        found = queue.get()
    seconds = time.perf_counter() - began
    writer.join()
    check(found, items[(count - 1) % 4])
    return seconds


def send_back(there: Any, back: Any) -> None:
    """The echo."""
    while (item := there.get()) is not None:
        back.put(item)


def echo(there: Any, back: Any, items: list[Any], count: int) -> float:
    """Seconds for count items."""
    other = FORK.Process(target=send_back, args=(there, back))
    other.start()
    there.put(items[0])
    back.get()
    began = time.perf_counter()
    for i in range(count):
        there.put(items[i % 4])
        found = back.get()
    seconds = time.perf_counter() - began
    there.put(None)
    other.join()
    check(found, items[(count - 1) % 4])
    return seconds


def row(kind: str, nbytes: int, rounds: int) -> str:
    """The line of one size."""
    items = buffers(kind, nbytes)
    few, many = max(4, min(400, (16 << 20) // nbytes)), max(12, min(600, (64 << 20) // nbytes))
    samples: dict[tuple[str, int], list[float]] = {}
    libraries: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
        ("multiprocessing", multiprocessing.SimpleQueue, multiprocessing.Queue),
        ("cableway", cw.SimpleQueue, cw.Queue),
    ]
    for _ in range(rounds):
        for name, simple, queue in libraries:
            if nbytes <= LOCK_STEP_MAX:
                samples.setdefault((name, 0), []).append(lock_step(simple(), items, few) / few)
            samples.setdefault((name, 1), []).append(ahead(queue(), items, many) / many)
            samples.setdefault((name, 2), []).append(echo(queue(), queue(), items, few) / few)
    cells = []
    for way in range(3):
        if ("cableway", way) not in samples:
            cells.append(f"{'':>9} {'':>9} {'':>5}")
            continue
        theirs = statistics.median(samples["multiprocessing", way]) * 1e6
        ours = statistics.median(samples["cableway", way]) * 1e6
        cells.append(f"{theirs:9.1f} {ours:9.1f} {theirs / ours:5.2f}")
    return f"{kind:5} {nbytes:9} | " + " | ".join(cells)


def main() -> None:
    """Prints the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    way = f"{'theirs':>9} {'ours':>9} {'times':>5}"
    print(f"{'':5} {'bytes':>9} | {'lock step':^25} | {'ahead':^25} | {'echo':^25}")
    print(f"{'':5} {'':9} | {way} | {way} | {way}")
    with own_broker():
        for kind, sizes in (("bytes", BYTES), ("array", ARRAYS)):
            for nbytes in sizes:
                print(row(kind, nbytes, rounds), flush=True)


if __name__ == "__main__":
    main()
