"""A storm of deaths in groups: members are killed at random points, all others are told within a time, and go on.

    python tests/py/groups/group_storm.py [DEATHS] [SEED]

Prints how long the slowest one was to be told, and to reform. A member that is killed may have a forked child that lives on.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import numpy as np
from group_support import Member

import cableway as cw

SIZE = 4


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


def member(pipe: Any, name: str, rank: int, turn: int, forks: bool) -> Any:
    """Works until it is told of deaths, and goes on with the rest; says when it was told and when it went on."""
    if forks and os.fork() == 0:
        time.sleep(5)  # outlives its parent, and with it the parent's descriptors
        os._exit(0)
    with cw.Group(name, SIZE, rank, timeout=60) as g:
        pipe.send("begins")
        times = []
        while g.size > 2:
            try:
                works(g, turn)
            except cw.GroupBroken:
                told = time.monotonic()
                g.reform()
                turn = 0
                times.append((told, time.monotonic()))
        assert g.allreduce(1) == 2
        return times


def one(number: int, chance: random.Random) -> tuple[float, float]:
    """A group in which two members are killed. The slowest that was told, and that went on, in seconds."""
    forks = number % 4 == 0
    turn = chance.randrange(8)
    started = [Member(member, f"storm/{number}", rank, turn, forks) for rank in range(SIZE)]
    try:
        for each in started:
            assert each.next() == "begins"
        killed = []
        living = list(started)
        for _ in range(2):
            time.sleep(chance.random() * 0.02)
            victim = living.pop(chance.randrange(len(living)))
            os.kill(victim.pid, signal.SIGKILL)
            killed.append(time.monotonic())
            time.sleep(0.1 + chance.random() * 0.02)
        slow_told, slow_on = 0.0, 0.0
        for each in living:
            times = each.returned()
            assert len(times) == 2, times
            for died, (told, on) in zip(killed, times, strict=True):
                slow_told, slow_on = max(slow_told, told - died), max(slow_on, on - told)
        return slow_told, slow_on
    finally:
        for each in started:
            each.end()


def storm(deaths: int, seed: int) -> tuple[list[float], list[float]]:
    """So many deaths; the slowest of each group."""
    chance = random.Random(seed)
    told, on = [], []
    for number in range(deaths // 2):
        a, b = one(number, chance)
        told.append(a)
        on.append(b)
    return sorted(told), sorted(on)


def main() -> None:
    """The storm by itself."""
    deaths = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}", flush=True)
    told, on = storm(deaths, seed)
    for what, times in (("told", told), ("reformed", on)):
        median, last = times[len(times) // 2], times[-1]
        print(
            f"{deaths} deaths: {what} after {median * 1e3:.1f} ms (median of the slowest), {last * 1e3:.1f} ms (slowest)"
        )


if __name__ == "__main__":
    main()
