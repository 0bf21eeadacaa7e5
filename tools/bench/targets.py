"""What is promised, and what is compared with what: the lines of the benchmarks' tables.

No target compares what spins with what sleeps without saying so: ours is *adaptive* (it spins for about the price of
one wake-up, then sleeps), and the peers sleep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Row:
    """One measurement: the median of its samples, in unit."""

    bench: str
    name: str
    how: str
    unit: str
    median: float
    p10: float
    p90: float
    samples: int
    cpu_seconds: float | None


@dataclass
class Target:
    """One line of the table: what is promised, what was found."""

    what: str
    promised: str
    found: str
    met: bool | None  # None: not measured


def number(value: float) -> str:
    """Three digits that count."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


class Results:
    """Rows by bench and name."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = {(row.bench, row.name): row for row in rows}

    def median(self, bench: str, name: str) -> float | None:
        """The median of a row, None if it is not there."""
        row = self.rows.get((bench, name))
        return row.median if row else None

    def ratio(self, bench: str, one: str, other: str) -> float | None:
        """One median by another."""
        above, below = self.median(bench, one), self.median(bench, other)
        return above / below if above is not None and below else None


def target(what: str, promised: str, found: float | None, text: str, met: bool) -> Target:
    """A line of the table."""
    return Target(
        what, promised, "not measured" if found is None else text, None if found is None else met
    )


def at_most(what: str, limit: float, found: float | None, unit: str = "x") -> Target:
    """A promise of at most so much."""
    text = "" if found is None else f"{number(found)} {unit}"
    return target(
        what, f"at most {limit:g} {unit}", found, text, found is not None and found <= limit
    )


def at_least(what: str, limit: float, found: float | None, unit: str = "x") -> Target:
    """A promise of at least so much."""
    text = "" if found is None else f"{number(found)} {unit}"
    return target(
        what, f"at least {limit:g} {unit}", found, text, found is not None and found >= limit
    )


POOL, MP_POOL = "cableway.Pool", "multiprocessing.Pool"
EXECUTOR, MP_EXECUTOR = "cableway.Executor", "ProcessPoolExecutor"
SEARCHES = ("short fits on digits", "51 MiB of pixels")
SHARES = [
    ("apply_async", "own share"),
    ("apply_async", "submit alone"),
    ("map, chunksize=1", "own share"),
]
ADAPTIVE = "multiprocessing.Pool (sleeps) by ours (adaptive)"


def targets(results: Results, workers: int, cores: int) -> list[Target]:
    """What is promised."""
    return [
        *_of_memory(results),
        *_of_pools(results, 20 if workers < 16 else 10),
        *_of_starts(results),
        *_of_parent(results, workers, cores),
        *_of_others(results),
    ]


def _of_memory(results: Results) -> list[Target]:
    ratio, median = results.ratio, results.median
    words, ours = "two words, spin loop, no payload", "our ring, adaptive wait"
    few, many = "get+close, 100 names, in turn", "get+close, 100,000 names, 100 in turn"
    return [
        at_most("64 B round trip, both run: our ring by a bare spin loop on two words", 2, ratio("ring", ours, words)),
        at_most("the same by ck_ring with the same adaptive wait", 1, ratio("ring", ours, "ck_ring, the same adaptive wait")),
        at_most("the same, both spun on", 1, ratio("ring", "our ring, spun on", "ck_ring, spun on")),
        at_most("warm get+close in C, 100 names", 1000, median("get", few), "ns"),
        at_most("warm get+close in C, 100,000 names", 1000, median("get", many), "ns"),
        at_most("100,000 names by 100 names", 1.3, ratio("get", many, few)),
        at_least("Python get+close: SharedMemory attach by ours", 5, ratio("python get", "SharedMemory attach+close", "cableway get+close")),
        at_least("put of 256 MiB by memcpy into mapped memory", 0.8, ratio("put", "put 256 MiB, slab there already", "memcpy 256 MiB into mapped, touched memory")),
    ]  # fmt: skip


def _of_pools(results: Results, apply: int) -> list[Target]:
    ratio = results.ratio
    return [
        at_least(f"apply of a no-op, hot: {ADAPTIVE}", apply, ratio("pool apply", MP_POOL, POOL)),
        at_least("the same after 0.1 s of sleep", 3, ratio("pool apply, after 0.1 s", MP_POOL, POOL)),
        at_least(f"map of no-ops, chunksize=1: {ADAPTIVE}", 5, ratio("pool map, chunksize=1", MP_POOL, POOL)),
        at_least("map of no-ops, default chunks: the same (0.05 is within the spread)", 0.95, ratio("pool map, default chunks", MP_POOL, POOL)),
        *[
            at_least(f"Executor, {title}: ProcessPoolExecutor (sleeps) by ours (adaptive)", 20, ratio(f"executor {title}", MP_EXECUTOR, EXECUTOR))
            for title in ("submit and result", "submit, 1,000 at once", "map")
        ],
        at_least("64 MiB to a worker: multiprocessing.Pool by ours", 10, ratio("pool 64 MiB there", MP_POOL, POOL)),
        at_least("64 MiB to a worker and 64 MiB back: the same", 10, ratio("pool 64 MiB there and back, new result", MP_POOL, POOL)),
        at_least("one array of 64 MiB to 100 tasks: the same", 50, ratio("pool one array of 64 MiB, 100 tasks", MP_POOL, POOL)),
    ]  # fmt: skip


def _of_starts(results: Results) -> list[Target]:
    fork = "cableway.Pool, fork, 16 workers"
    return [
        at_most(f"16 workers ready, from the second Pool on: ours by {method} by ours by fork", 1.5, results.ratio("start", f"cableway.Pool, {method}, 16 workers", fork))
        for method in ("spawn", "forkserver")
    ] + [
        at_most(f"a killed worker's successor is ready, {method}", 1000, results.median("start", f"cableway.Pool, {method}, a killed worker's successor"), "ms")
        for method in ("fork", "spawn", "forkserver")
    ]  # fmt: skip


def _of_parent(results: Results, workers: int, cores: int) -> Iterator[Target]:
    """How near to the parent's limit; a target only where there is a core for each of 16 workers."""
    enough = workers >= 16 and cores >= 16
    for way, limit in SHARES:
        found = results.ratio("share", f"{POOL}, {way}: completed", f"{POOL}, {way}: {limit}")
        what = f"{way}, {workers} workers: tasks completed a second by the parent's {limit}"
        line = at_least(what, 0.9, found)
        if not enough and found is not None:
            line.met = None
            line.promised += " at 16 workers on 16 cores"
        yield line


def _of_others(results: Results) -> list[Target]:
    ratio, median = results.ratio, results.median
    return [
        at_least("joblib, no-ops in batches of 1: loky (sleeps) by ours (adaptive)", 5, ratio("joblib no-op, batches of 1", "loky", "cableway")),
        *[
            line
            for title in SEARCHES
            for line in (
                at_least(f"GridSearchCV, {title}: loky by ours", 1, ratio(f"joblib GridSearchCV, {title}", "loky", "cableway")),
                at_most(f"GridSearchCV, {title}, peak memory: ours by loky", 1, ratio(f"joblib GridSearchCV, {title}, peak memory", "cableway", "loky")),
            )
        ],
        at_least("Queue, 64-byte items a second, one writer, one reader: ours (adaptive) by multiprocessing.Queue (sleeps)", 5, ratio("queue 64 B", "cableway.Queue()", "multiprocessing.Queue()")),
        at_least("Queue, 16 MiB NumPy arrays, bytes a second: the same", 20, ratio("queue 16 MiB", "cableway.Queue(4), ndarray", "multiprocessing.Queue(4), ndarray")),
        at_least("Queue, 16 MiB cableway.Arrays, bytes a second: the same", 20, ratio("queue 16 MiB", "cableway.Queue(4), cableway.Array", "multiprocessing.Queue(4), ndarray")),
        at_most("idle broker: CPU", 0.1, median("idle", "broker: CPU over 10 s"), "%"),
        at_most("idle Pool after use (parent, workers, broker): CPU", 0.1, median("idle pool", POOL), "%"),
        at_most("idle Executor after use: CPU", 0.1, median("idle pool", EXECUTOR), "%"),
        at_most("broker: resident with 100 names", 8, median("idle", "broker: resident, 100 names"), "MiB"),
    ]  # fmt: skip


# Ours, theirs; more is better for rates. What waits in another way than ours says so in its row.
RIVALS = [
    ("ring", "our ring, adaptive wait", "two words, spin loop, no payload"),
    ("ring", "our ring, adaptive wait", "ck_ring, the same adaptive wait"),
    ("ring", "our ring, spun on", "two words, spin loop, no payload"),
    ("ring", "our ring, spun on", "ck_ring, spun on"),
    ("ring", "our ring after sleep", "ck_ring after sleep, same wait"),
    ("ring", "our ring after sleep", "pipe after sleep"),
    ("ping after sleep", "cw_ping, the broker", "socketpair, 64 bytes"),
    ("get", "get+close, 100,000 names, 100 in turn", "get+close, 100 names, in turn"),
    ("get", "get+close, 100,000 names, one name", "get+close, 100 names, one name"),
    ("put", "put 256 MiB, slab there already", "memcpy 256 MiB into mapped, touched memory"),
    ("put", "put 256 MiB, first touch (a new slab)", "memcpy 256 MiB, first touch"),
    ("python get", "cableway get+close", "SharedMemory attach+close"),
    ("python get", "cableway get, ndarray, close", "SharedMemory attach, ndarray, close"),
    ("queue 64 B", "cableway.Queue()", "multiprocessing.Queue()"),
    ("queue 64 B", "cableway.Queue(1000)", "multiprocessing.Queue(1000)"),
    ("queue 64 B", "cableway.SimpleQueue", "multiprocessing.SimpleQueue"),
    ("queue 16 MiB", "cableway.Queue(4), ndarray", "multiprocessing.Queue(4), ndarray"),
    ("bridge 64 B", "cableway, a get of a new name", "OpenSSL, ping-pong in C"),
    ("bridge 64 B", "cableway, a get of a fresh replica", "cableway, a get of a local name"),
    ("bridge 64 B, CPU", "cableway, a get of a new name", "OpenSSL, ping-pong in C"),
    *[
        ("bridge streams 256 MiB", f"cableway, streams {count}", f"OpenSSL, blocking loop in C{threads}")
        for count, threads in ((1, ""), (2, ", 2 threads"), (4, ", 4 threads"))
    ],
    *[
        ("start", f"cableway.Pool, {how}, {which}16 workers", f"multiprocessing.Pool, {how}, {which}16 workers")
        for how in ("fork", "spawn", "forkserver")
        for which in ("", "first ")
    ],
]  # fmt: skip
# In these benches, whose names begin so, each row of ours has every other row as its rival.
PEERS = ("pool ", "executor ", "joblib ", "idle pool", "bridge get ", "bridge 256 peers")
OURS = ("cableway",)

# Why ours is slower, by bench and rival; a case that is not here has no cause that is known.
CAUSES = {
    ("ring", "two words, spin loop, no payload"): "a record is framed, copied and checked; two words carry nothing",
    ("get", "get+close, 100 names, in turn"): "100,000 names do not fit into the nearest cache",
    ("get", "get+close, 100 names, one name"): "100,000 names do not fit into the nearest cache",
    ("start", "multiprocessing.Pool, fork, 16 workers"): "memory for the tasks is made, and each worker says that it is ready",
    ("start", "multiprocessing.Pool, fork, first 16 workers"): "the first Pool of a process imports the package's modules",
    ("idle pool", MP_POOL): "within what a wake-up a second of the helper thread takes",
    ("idle pool", MP_EXECUTOR): "within what a wake-up a second of the helper thread takes",
    ("idle pool", "loky"): "within what a wake-up a second of the helper thread takes",
}  # fmt: skip


def rivals(results: Results) -> Iterator[tuple[str, str, str]]:
    """All pairs that were measured: bench, ours, theirs."""
    for pair in RIVALS:
        if (pair[0], pair[1]) in results.rows:
            yield pair
    for bench, ours in results.rows:
        if not (bench.startswith(PEERS) and ours.startswith(OURS)):
            continue
        for other, theirs in results.rows:
            if other == bench and not theirs.startswith((*OURS, "joblib's own share")):
                yield bench, ours, theirs


def slower(results: Results, causes: dict[tuple[str, str], str] = CAUSES) -> list[str]:
    """Where ours takes longer than what it was measured against, and why."""
    found = []
    for bench, ours, theirs in rivals(results):
        ratio = results.ratio(bench, ours, theirs)
        if ratio is None:
            continue
        if results.rows[bench, ours].unit.endswith("/s"):
            ratio = 1 / ratio
        if ratio > 1.05:  # less is within the spread
            cause = causes.get((bench, theirs), "the cause is not known")
            found.append(
                f"{bench}: {ours} takes {number(ratio)} times what {theirs} takes: {cause}"
            )
    return found
