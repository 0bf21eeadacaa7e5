"""Queues, side by side with multiprocessing's in one run: one writer, one reader.

Prints one JSON line a measurement, as the other benchmarks do. The candidates alternate; a sample is the rate from the
first item that arrives to the last one; what arrives is checked.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import own_broker, report

import cableway as cw

CONTEXT = multiprocessing.get_context("fork")
Make = Callable[[], Any]


def cpu_seconds() -> float:
    """CPU seconds of this process and of the writers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def write(queue: Any, item: Any, count: int) -> None:
    """A writer's process."""
    for _ in range(count):
        queue.put(item)


def rate(make: Make, item: Any, count: int, good: Callable[[Any], bool]) -> float:
    """Items a second."""
    queue = make()
    writer = CONTEXT.Process(target=write, args=(queue, item, count))
    writer.start()
    found = queue.get()
    begun = time.perf_counter()
    for _ in range(count - 1):
        found = queue.get()
    taken = time.perf_counter() - begun
    assert good(found)
    del found
    writer.join()
    return (count - 1) / taken


def compare(
    bench: str,
    unit: str,
    factor: float,
    rounds: int,
    candidates: list[tuple[str, str, Make, Any, int, Callable[[Any], bool]]],
) -> None:
    """Alternates the candidates: name, how they wait, queue, item, items, check."""
    samples: dict[str, list[float]] = {name: [] for name, *_ in candidates}
    used: dict[str, float] = dict.fromkeys(samples, 0.0)
    for _ in range(rounds):
        for name, _how, make, item, count, good in candidates:
            before = cpu_seconds()
            samples[name].append(rate(make, item, count, good) * factor)
            used[name] += cpu_seconds() - before
    for name, how, *_ in candidates:
        report(bench, name, how, unit, samples[name], used[name])


def bench_small(rounds: int) -> None:
    """Items of 64 bytes, as fast as both ends can."""
    item = os.urandom(64)
    ours, theirs = functools.partial(cw.Queue, 1000), functools.partial(multiprocessing.Queue, 1000)

    def good(found: Any) -> bool:
        return bool(found == item)

    compare(
        "queue 64 B", "1/s", 1, rounds,
        [
            ("cableway.Queue(1000)", "adaptive", ours, item, 100_000, good),
            ("multiprocessing.Queue(1000)", "sleeps", theirs, item, 20_000, good),
            ("cableway.Queue()", "adaptive", cw.Queue, item, 100_000, good),
            ("multiprocessing.Queue()", "sleeps", multiprocessing.Queue, item, 20_000, good),
            ("cableway.SimpleQueue", "adaptive", cw.SimpleQueue, item, 100_000, good),
            ("multiprocessing.SimpleQueue", "sleeps", multiprocessing.SimpleQueue, item, 20_000, good),
        ],
    )  # fmt: skip


def bench_arrays(rounds: int) -> None:
    """Arrays of 16 MiB: NumPy's (one copy each) and ours (none)."""
    array = np.random.default_rng().random(2 << 20)
    shared = cw.asarray(array)
    ours, theirs = functools.partial(cw.Queue, 4), functools.partial(multiprocessing.Queue, 4)

    def good(found: Any) -> bool:
        return bool((np.asarray(found) == array).all())

    compare(
        "queue 16 MiB", "GB/s", array.nbytes / 1e9, rounds,
        [
            ("cableway.Queue(4), ndarray", "adaptive", ours, array, 60, good),
            ("multiprocessing.Queue(4), ndarray", "sleeps", theirs, array, 10, good),
            ("cableway.Queue(4), cableway.Array", "adaptive", ours, shared, 500, good),
        ],
    )  # fmt: skip


def all_at_once(make: Make, nbytes: int, count: int) -> tuple[float, float]:
    """GB/s of putting so many arrays, each made for it, before anybody reads; and of putting and then taking them."""
    queue = make()
    begun = time.perf_counter()
    for i in range(count):
        queue.put(np.full(nbytes, i % 256, "u1"))
    put = time.perf_counter() - begun
    good = sum(int(queue.get()[-1]) == i % 256 for i in range(count))
    taken = time.perf_counter() - begun
    assert good == count
    return nbytes * count / put / 1e9, nbytes * count / taken / 1e9


def bench_waiting(rounds: int) -> None:
    """1 GiB that waits until all of it is put, by a process that is then its reader."""
    candidates = [
        ("cableway.Queue()", cw.Queue),
        ("multiprocessing.Queue()", multiprocessing.Queue),
    ]
    for size, nbytes in (("64 KiB", 1 << 16), ("1 MiB", 1 << 20), ("16 MiB", 1 << 24)):
        put: dict[str, list[float]] = {name: [] for name, _ in candidates}
        both: dict[str, list[float]] = {name: [] for name, _ in candidates}
        for _ in range(rounds):
            for name, make in candidates:
                rates = all_at_once(make, nbytes, (1 << 30) // nbytes)
                put[name].append(rates[0])
                both[name].append(rates[1])
        for name, _ in candidates:
            report(f"queue 1 GiB of {size}, put", name, "", "GB/s", put[name])
            report(f"queue 1 GiB of {size}, put and taken", name, "", "GB/s", both[name])


def main() -> None:
    """Runs all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with own_broker():
        bench_small(options.rounds)
        bench_arrays(options.rounds)
        bench_waiting(options.rounds)


if __name__ == "__main__":
    main()
