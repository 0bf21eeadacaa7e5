"""A storm of deaths in groups: members are killed at random points, all others are told within a time, and go on.

    python tests/py/groups/group_storm.py [DEATHS] [SEED] [gpu] [--members N] [--seconds N]

"gpu": in operations on memory of GPUs; the members take turns at those that CUDA sees. Of a group all members but two are
killed, one after the other. Prints, of the slowest survivor of each death, how long it was to be told, and to reform:
the median, the 99th percentile and the slowest. No group begins when the seconds are over: then there are fewer deaths,
and that many are printed. A member that is killed may have a forked child that lives on.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import cuda_support
import numpy as np
from group_support import Member

import cableway as cw

SIZE = 4
LEFT = 2  # members that no group loses
GPUS = cuda_support.gpus_here()
Ways = tuple[Callable[[cw.Group], None], Callable[[cw.Group, int], None]]


def works(g: cw.Group, turn: int) -> None:
    """One operation after the other, of all kinds."""
    small, large, shared = np.ones(3), np.ones(20_000), cw.full(20_000, 1.0)
    while True:
        kind = turn % 8
        turn += 1
        if kind == 0:
            g.barrier()
        elif kind == 1:
            assert g.Allreduce(small)[0] == g.size
        elif kind == 2:
            assert g.Allreduce(large)[-1] == g.size
        elif kind == 3:
            assert g.Allreduce(shared)[-1] == g.size
        elif kind == 4:
            assert g.allreduce(1) == g.size
        elif kind == 5:
            assert g.allgather(g.rank) == list(range(g.size))
        elif kind == 6:
            g.send(g.rank, (g.rank + 1) % g.size)
            assert g.recv((g.rank - 1) % g.size) == (g.rank - 1) % g.size
        else:
            assert g.Alltoall(np.full(g.size, g.rank))[-1] == g.size - 1


def works_on_gpus(g: cw.Group, turn: int) -> None:
    """The same on memory of GPUs."""
    device = f"cuda:{g.rank % GPUS}"
    small, large = (cw.full(n, 1.0, device=device) for n in (3, 60_000))
    result, private = cw.empty(60_000, device=device), np.ones(60_000)
    everybody = np.arange(g.size, dtype="f8")
    while True:
        kind = turn % 8
        turn += 1
        if kind == 0:
            assert on_host(g.Allreduce(small))[0] == g.size
        elif kind == 1:
            assert on_host(g.Allreduce(large, result))[-1] == g.size
        elif kind == 2:
            assert on_host(g.Allgather(large))[:, -1].tolist() == [1.0] * g.size
        elif kind == 3:
            result.copy_from(np.full(60_000, float(g.rank)))
            assert on_host(g.Bcast(result, turn % g.size))[-1] == turn % g.size
        elif kind == 4:  # beside private host memory
            mine = private if g.rank == 0 else large
            found = on_host(g.Gather(mine, None, g.size - 1))
            assert g.rank < g.size - 1 or found.sum() == 60_000 * g.size
        elif kind == 5:
            blocks = cw.asarray(np.full((g.size, 9999), float(g.rank)), device=device)
            assert on_host(g.Alltoall(blocks))[:, -1].tolist() == everybody.tolist()
        elif kind == 6:
            g.Send(large, (g.rank + 1) % g.size)
            assert on_host(g.Recv(result, (g.rank - 1) % g.size))[-1] == 1
        else:
            assert on_host(g.empty(5000, device=device)[g.rank]).size == 5000


def on_host(found: Any) -> Any:
    """As NumPy has it."""
    return found.to("cpu").numpy() if isinstance(found, cw.Array) else found


def ready(g: cw.Group) -> None:
    """What a member does before it may be killed."""


def ready_on_gpus(g: cw.Group) -> None:
    """The same: CUDA takes its time to begin with."""
    x = cw.zeros(3000, device=f"cuda:{g.rank % GPUS}")
    g.Allgather(x)
    g.Allreduce(x)


ON_GPUS = ready_on_gpus, works_on_gpus


def member(pipe: Any, name: str, size: int, rank: int, turn: int, forks: bool, ways: Ways) -> Any:
    """Works until it is told of deaths, and goes on with the rest; says when it was told and when it went on."""
    if forks and os.fork() == 0:
        time.sleep(5)  # outlives its parent, and with it the parent's descriptors
        os._exit(0)
    with cw.Group(name, size, rank, timeout=60) as g:
        ways[0](g)
        pipe.send("begins")
        times = []
        while g.size > LEFT:
            try:
                ways[1](g, turn)
            except cw.GroupBroken:
                told = time.monotonic()
                g.reform(drop_messages=True)  # what was sent is sent again
                turn = 0
                times.append((told, time.monotonic()))
                pipe.send("goes on")
        assert g.allreduce(1) == LEFT
        return times


def one(number: int, chance: random.Random, ways: Ways, size: int) -> list[tuple[float, float]]:
    """A group in which all but two members are killed. Of each death, in seconds: the slowest that was told, and that went on."""
    forks = number % 4 == 0
    turn = chance.randrange(8)
    started = [
        Member(member, f"storm/{number}", size, rank, turn, forks, ways) for rank in range(size)
    ]
    try:
        for each in started:
            assert each.next() == "begins"
        killed = []
        living = list(started)
        while len(living) > LEFT:
            time.sleep(chance.random() * 0.02)
            victim = living.pop(chance.randrange(len(living)))
            os.kill(victim.pid, signal.SIGKILL)
            killed.append(time.monotonic())
            for each in living:
                assert each.next() == "goes on"
            time.sleep(chance.random() * 0.02)
        slowest = [(0.0, 0.0)] * len(killed)
        for each in living:
            times = each.returned()
            assert len(times) == len(killed), times
            for i, (told, on) in enumerate(times):
                before = slowest[i]
                slowest[i] = max(before[0], told - killed[i]), max(before[1], on - told)
        return slowest
    finally:
        for each in started:
            each.end()


def storm(
    deaths: int,
    seed: int,
    ways: Ways = (ready, works),
    size: int = SIZE,
    seconds: float = math.inf,
) -> tuple[list[float], list[float]]:
    """At least so many deaths, in groups of that size, unless the seconds are over: of each, the slowest that was told, and that
    went on. ways: what members do before, and until they are told.
    """
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    found: list[tuple[float, float]] = []
    number = 0
    while len(found) < deaths and time.monotonic() < end:
        found += one(number, chance, ways, size)
        number += 1
    return sorted(told for told, _ in found), sorted(on for _, on in found)


def percentile(times: list[float], share: float) -> float:
    """Of sorted times: so large a share of them is at most this."""
    return times[max(0, math.ceil(len(times) * share) - 1)]


def main() -> None:
    """The storm by itself."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("deaths", nargs="?", type=int, default=1000)
    parser.add_argument("seed", nargs="?", type=int, default=0, help="0: any")
    parser.add_argument("where", nargs="?", choices=("gpu",))
    parser.add_argument("--members", type=int, default=SIZE, help="of each group, 3 or more")
    parser.add_argument("--seconds", type=float, default=math.inf)
    given = parser.parse_args()
    if given.members <= LEFT or given.deaths < 1:
        parser.error(f"a group has at least {LEFT + 1} members, and a storm one death")
    seed = given.seed or int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}", flush=True)
    ways = ON_GPUS if given.where == "gpu" else (ready, works)
    told, on = storm(given.deaths, seed, ways, given.members, given.seconds)
    said = [
        f"{what} after {percentile(times, 0.5) * 1e3:.1f} ms (median), {percentile(times, 0.99) * 1e3:.1f} (99th percentile), "
        f"{times[-1] * 1e3:.1f} (slowest)"
        for what, times in (("told", told), ("reformed", on))
    ]
    print(
        f"{len(told)} deaths ({given.deaths} asked for) in groups of {given.members}: {'; '.join(said)}"
    )


if __name__ == "__main__":
    main()
