"""Large NumPy arrays to workers and back: our Pool beside its peers, in one run, with as many workers.

- *there and back*: apply with an array of 64 MiB; the worker looks at it and gives one of 64 MiB back (one that it
  has and changes, the argument itself, or a new one).
- *there*: apply with an array of 64 MiB that nobody has sent before, by turns; the worker looks at every page.
- *one array, 100 tasks*: a call in which 100 tasks get the same array of 64 MiB, one by one (chunksize=1).

The last has plain ways (the array is an argument as any other) and, where a peer's manual names one, its best way to
share an array: Ray's object store, mpire's shared_objects (a new pool for each call), joblib's memory maps (loky
behind joblib.Parallel), and a cableway.Array; there the first call counts too, since a plain one takes long. Data are random, what comes back is checked, and seconds are those of the call.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import peers
import tasks
from measure import MIB, all_cpu, alternate, own_broker, report, skipped
from peers import Futures, Mpire, Ours, Peer, Ray, Standard

TASKS = 100


@dataclass
class Candidate:
    """A way to do it, and how its CPU seconds are counted."""

    name: str
    how: str
    call: Callable[[], None]
    cpu: Callable[[], float]


def compare(
    bench: str, rounds: int, candidates: list[Candidate], pause: float = 0, warm: bool = True
) -> None:
    """Alternates them; rows in ms."""
    calls = [(one.name, one.call) for one in candidates]
    meters = {one.name: one.cpu for one in candidates}
    rows = alternate(rounds, 1, calls, meters, pause, warm)
    for one in candidates:
        samples, cpu = rows[one.name]
        how = "sleeps" if pause else one.how
        report(bench, one.name, how, "ms", [sample * 1e3 for sample in samples], cpu)


def bench_there_and_back(rounds: int, workers: int, size: int) -> None:
    """Pool.apply with an argument and a result of size bytes."""
    generator = np.random.default_rng(2)
    sources = [generator.random(size // 8) for _ in range(3)]
    tasks.prepare(size, 3)
    assert tasks.RESULT is not None
    made = tasks.RESULT.copy()

    def call(peer: Peer, work: Callable[[np.ndarray], np.ndarray]) -> Callable[[], None]:
        turn = 0

        def once() -> None:
            nonlocal turn
            source = sources[turn % 3]
            turn += 1
            back = peer.apply(work, source)
            if work is tasks.swap:
                assert back[0] == source[::512].sum()
                assert np.array_equal(back[1::4093], made[1::4093])
            else:
                more = 1.0 if work is tasks.add else 0.0
                assert np.array_equal(back[::4093], source[::4093] + more)

        return once

    with peers.opened([Standard, Ours], workers, tasks.prepare, (size, 3)) as (running, _):
        for title, work, pause in (
            ("new result", tasks.swap, 0),
            ("new result, after 0.1 s", tasks.swap, 0.1),
            ("echo", tasks.echo, 0),
            ("x + 1", tasks.add, 0),
        ):
            compare(
                f"pool {size // MIB} MiB there and back, {title}",
                rounds,
                [Candidate(peer.name, peer.how, call(peer, work), peer.cpu) for peer in running],
                pause,
            )


def bench_there(rounds: int, workers: int, size: int) -> None:
    """An argument of size bytes; the result is a number."""
    generator = np.random.default_rng(5)
    sources = [generator.random(size // 8) for _ in range(3)]
    sums = [tasks.glance(source) for source in sources]
    bench = f"pool {size // MIB} MiB there"

    def call(peer: Peer) -> Callable[[], None]:
        turn = 0

        def once() -> None:
            nonlocal turn
            turn += 1
            assert peer.apply(tasks.glance, sources[turn % 3]) == sums[turn % 3]

        return once

    with peers.opened([Standard, Futures, Mpire, Ours, Ray], workers) as (running, lacking):
        for why in lacking:
            skipped(bench, why)
        candidates = [Candidate(peer.name, peer.how, call(peer), peer.cpu) for peer in running]
        compare(bench, rounds, candidates)


# ---- the same array to many tasks


def check(found: list[float], array: np.ndarray) -> None:
    """Every task has looked at its part."""
    assert found == [tasks.glance_at(array, number) for number in range(TASKS)]


def shared_ways(peer: Peer, array: np.ndarray, workers: int) -> list[Candidate]:
    """How this peer shares one array, other than as a plain argument."""
    found: list[tuple[str, Callable[[], Any]]] = []
    if isinstance(peer, Ours):
        import cableway as cw

        held = cw.asarray(array)

        def by_handle() -> Any:
            return peer.starmap(glance_at_shared, [(held, number) for number in range(TASKS)])

        found.append(("a cableway.Array, made before", by_handle))
    if isinstance(peer, Ray):

        def by_store() -> Any:
            reference = peer.pool.put(array)
            return peer.starmap(tasks.glance_at, [(reference, n) for n in range(TASKS)])

        found.append(("ray.put in the call", by_store))
    if isinstance(peer, Mpire):
        from mpire import WorkerPool

        def by_fork() -> Any:
            with WorkerPool(workers, start_method="fork", shared_objects=array) as pool:
                return pool.map(tasks.glance_at, range(TASKS), chunk_size=1)

        found.append(("shared_objects, a new pool a call", by_fork))
    return [
        Candidate(f"{peer.name}, {title}", peer.how, lambda way=way: check(way(), array), peer.cpu)
        for title, way in found
    ]


def glance_at_shared(array: Any, number: int) -> float:
    """`tasks.glance_at` for a cableway.Array."""
    return tasks.glance_at(array.numpy(), number)


def bench_one_array(rounds: int, workers: int, size: int) -> None:
    """100 tasks that get the same array of size bytes."""
    array = np.random.default_rng(6).random(size // 8)
    bench = f"pool one array of {size // MIB} MiB, {TASKS} tasks"
    items = [(array, number) for number in range(TASKS)]
    with peers.opened([Standard, Futures, Mpire, Ours, Ray], workers) as (running, lacking):
        for why in lacking:
            skipped(bench, why)
        candidates: list[Candidate] = []
        for peer in running:
            if isinstance(peer, (Standard, Futures)) and not isinstance(peer, Mpire):

                def plain(peer: Any = peer) -> None:
                    check(peer.starmap(tasks.glance_at, items), array)

                candidates.append(Candidate(peer.name, peer.how, plain, peer.cpu))
            candidates += shared_ways(peer, array, workers)
        if not peers.missing(peers.Loky):
            import joblib

            def by_joblib() -> None:
                calls = (joblib.delayed(tasks.glance_at)(array, number) for number in range(TASKS))
                check(joblib.Parallel(n_jobs=workers, backend="loky", batch_size=1)(calls), array)

            candidates.append(Candidate("loky, joblib's memory map", "sleeps", by_joblib, all_cpu))
        compare(bench, rounds, candidates, warm=False)


def main() -> None:
    """Runs all of them, with a broker in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with own_broker():
        bench_there_and_back(options.rounds, options.workers, 64 * MIB)
        bench_there(options.rounds, options.workers, 64 * MIB)
        bench_one_array(3, options.workers, 64 * MIB)


if __name__ == "__main__":
    main()
