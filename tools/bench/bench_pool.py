"""What a task costs: the Pool and the Executor beside their peers, in one run, with as many workers.

Tasks do nothing; their results are checked. Candidates alternate, all with their workers alive; a sample is the time of
many calls, the first of which finds workers awake or asleep as they are (*hot*), or of one call after a pause of
0.1 s in which everybody fell asleep. CPU seconds are those of this process, the peer's own processes, and our broker.

Peers sleep while they wait, and ours spins for about the price of one wake-up before it sleeps (*adaptive*): that is
part of why it is faster, it costs CPU, and the CPU seconds beside each row show how much.

How near the parent is to its own limit (`share`), with no-ops in apply_async and in map with chunksize=1:
- *completed* is the rate of tasks given and collected, with all workers at work.
- *submit alone* is the rate of apply_async while every worker is stopped (SIGSTOP): nobody answers, nothing is
  collected, the parent does nothing but submit. It is no rate at which a task could be completed, as somebody has to
  collect its result.
- *own share* is what the parent alone would reach if workers took no time: N tasks, by the parent's time to submit
  them (workers stopped), plus its CPU time while the workers, let go, work them off and its helper thread takes the
  results, plus its time in the get() that follow. A helper that spins while it waits counts as busy in the middle
  part, which makes this rate lower than it is, and completed by own share higher; with enough workers it never waits.
Each begins with a round that does not count, and a full look of Python's garbage collector. After a fork the first such
look writes to every page that this process shares with its workers, so that the kernel copies them all: whichever round
it falls into takes twice to four times as long.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import peers
from measure import alternate, broker, cpu_of, family, own_broker, report, skipped
from peers import Futures, Loky, Mpire, OurExecutor, Ours, Peer, Ray, Standard
from tasks import nothing

POOLS = [Standard, Mpire, Ours]
EXECUTORS = [
    Futures,
    Loky,
    OurExecutor,
    Ray,
]  # Ray last: a fork after it inherits its signal handlers
AFTER = "after 0.1 s"


def check(found: list[Any], expected: list[Any]) -> None:
    """What came back is what was sent."""
    assert found == expected, "a result is wrong or missing"


def compare(bench: str, call: str, running: list[Peer], rounds: int, count: int) -> None:
    """One call of each peer, on count tasks with random numbers; the row is the time of one task."""
    numbers = [random.getrandbits(30) for _ in range(count)]
    if call.startswith("imap_un"):
        numbers.sort()
    candidates, meters = [], {}
    for peer in running:
        method = getattr(peer, call, None)
        if method is None:
            continue

        def many(method: Callable[..., Any] = method) -> None:
            check(method(nothing, numbers), numbers)

        def each(method: Callable[..., Any] = method) -> None:
            check([method(nothing, number) for number in numbers], numbers)

        candidates.append((peer.name, each if call == "apply" else many))
        meters[peer.name] = peer.cpu
    rows = alternate(rounds, 1, candidates, meters, 0.1 if count == 1 else 0)
    tell(bench, rows, running, 1e6 / count)


def tell(
    bench: str, rows: dict[str, tuple[list[float], float]], running: list[Peer], scale: float
) -> None:
    """Prints the rows of one comparison."""
    hows = {peer.name: "sleeps" if bench.endswith(AFTER) else peer.how for peer in running}
    for name, (samples, cpu) in rows.items():
        report(bench, name, hows[name], "us", [sample * scale for sample in samples], cpu)


def bench_dispatch(rounds: int, workers: int) -> None:
    """Every way to give a task, for pools and for executors."""
    groups: list[tuple[str, list[type[Peer]], list[tuple[str, str, int]]]] = [
        (
            "pool",
            POOLS,
            [
                ("apply", "apply", 100),
                (f"apply, {AFTER}", "apply", 1),
                ("map, chunksize=1", "map_one_by_one", 2000),
                ("map, default chunks", "map_chunks", 50_000),
                ("imap", "imap", 1000),
                ("imap_unordered", "imap_unordered", 1000),
                ("apply_async, 1,000 at once", "burst", 1000),
            ],
        ),
        (
            "executor",
            EXECUTORS,
            [
                ("submit and result", "apply", 100),
                (f"submit and result, {AFTER}", "apply", 1),
                ("submit, 1,000 at once", "burst", 1000),
                ("map", "map_one_by_one", 1000),
            ],
        ),
    ]
    for group, kinds, cases in groups:
        with peers.opened(kinds, workers) as (running, lacking):
            for why in lacking:
                skipped(group, why)
            for title, call, count in cases:
                compare(f"{group} {title}", call, running, rounds, count)


# ---- how near the parent is to its limit


def settle(pids: list[int]) -> None:
    """Waits until these processes take as good as no CPU any more; what polls now and then is no matter."""
    before = -1.0
    for _ in range(200):
        now = cpu_of(pids)
        if now - before < 0.002:
            return
        before = now
        time.sleep(0.05)
    raise TimeoutError("the workers did not come to rest within 10 s")


def all_of(peer: Peer, what: int) -> None:
    """A signal to every worker."""
    for pid in peer.pids:
        os.kill(pid, what)


def share_of_parent(rounds: int, workers: int, count: int) -> None:
    """Completed tasks a second by what the parent alone could do; see above."""
    numbers = list(range(count))
    with peers.opened([Standard, Ours], workers) as (running, _):
        for peer in running:
            pool: Any = peer.pool
            ways: list[tuple[str, Callable[[], Any], Callable[[Any], list[Any]]]] = [
                (
                    "apply_async",
                    lambda pool=pool: [pool.apply_async(nothing, (n,)) for n in numbers],
                    lambda calls: [call.get() for call in calls],
                ),
                (
                    "map, chunksize=1",
                    lambda pool=pool: pool.map_async(nothing, numbers, chunksize=1),
                    lambda call: call.get(),
                ),
            ]
            for way, submit, collect in ways:
                completed, alone, own = [], [], []
                check(collect(submit()), numbers)
                gc.collect()
                for _ in range(rounds):
                    begun = time.perf_counter()
                    check(collect(submit()), numbers)
                    completed.append(count / (time.perf_counter() - begun))
                    all_of(peer, signal.SIGSTOP)
                    begun = time.perf_counter()
                    calls = submit()
                    submitted = time.perf_counter() - begun
                    mine = cpu_of([os.getpid()])
                    all_of(peer, signal.SIGCONT)
                    settle([os.getpid(), *peer.pids])
                    between = cpu_of([os.getpid()]) - mine
                    begun = time.perf_counter()
                    check(collect(calls), numbers)
                    collected = time.perf_counter() - begun
                    alone.append(count / submitted)
                    own.append(count / (submitted + between + collected))
                rates = {"completed": completed, "submit alone": alone, "own share": own}
                if way != "apply_async":
                    del rates["submit alone"]  # one call for all of them
                for title, samples in rates.items():
                    how = peer.how if title == "completed" else ""
                    report("share", f"{peer.name}, {way}: {title}", how, "1/s", samples)


# ---- what idle pools take


def idle(kind: type[Peer], workers: int) -> None:
    """Uses a pool in a process of its own, then does nothing until its input ends."""
    with peers.opened([kind], workers) as (running, _):
        for peer in running:
            for number in range(20):
                peer.apply(nothing, number)
            print("idle", flush=True)
            sys.stdin.readline()


def bench_idle(seconds: float, workers: int) -> None:
    """CPU of a process with a pool that was used, of all that it started, and of the broker, while nobody asks.

    Each peer has a process and a broker of its own; all are idle at the same time.
    """
    with contextlib.ExitStack() as stack:
        running = []
        for kind in [*POOLS, *EXECUTORS]:
            why = peers.missing(kind)
            if why:
                skipped("idle pool", why)
                continue
            folder = stack.enter_context(own_broker())
            command = [sys.executable, __file__, "--idle", kind.__name__, "--workers", str(workers)]
            child = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            assert child.stdin and child.stdout
            stack.callback(child.stdin.close)
            if child.stdout.readline() == "idle\n":
                running.append((kind, child.pid, str(folder)))
            else:
                skipped("idle pool", f"{kind.name}: did not start")
        time.sleep(1.5)
        pids = {kind: [*family(pid), *broker(folder)] for kind, pid, folder in running}
        begun = time.perf_counter()
        before = {pid: cpu_of([pid]) for mine in pids.values() for pid in mine}
        time.sleep(seconds)
        for kind, mine in pids.items():
            used = sum(max(cpu_of([pid]) - before[pid], 0) for pid in mine)  # one may have ended
            report(
                "idle pool", kind.name, "sleeps", "%", [100 * used / (time.perf_counter() - begun)]
            )


def main() -> None:
    """Runs all of them, with a broker in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--part", default="", help="dispatch, share or idle alone")
    parser.add_argument("--idle", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.idle:
        idle(getattr(peers, options.idle), options.workers)
        return
    parts: dict[str, Callable[[], None]] = {
        "dispatch": functools.partial(bench_dispatch, options.rounds, options.workers),
        "share": functools.partial(
            share_of_parent, max(options.rounds // 3, 9), options.workers, 5000
        ),
        "idle": functools.partial(bench_idle, options.seconds, options.workers),
    }
    for name, part in parts.items():
        if options.part in name:
            with own_broker():
                part()


if __name__ == "__main__":
    main()
