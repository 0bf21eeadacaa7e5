"""A storm of deaths in groups: members are killed at random points, all others are told within a time, and go on.

    python tests/py/groups/group_storm.py [DEATHS] [SEED] [gpu]

"gpu": in operations on memory of GPUs; the members take turns at those that CUDA sees. Prints how long the slowest one was to be told, and to reform. A member that is killed may have a forked child that lives on.
"""

from __future__ import annotations

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


def member(pipe: Any, name: str, rank: int, turn: int, forks: bool, ways: Ways) -> Any:
    """Works until it is told of deaths, and goes on with the rest; says when it was told and when it went on."""
    if forks and os.fork() == 0:
        time.sleep(5)  # outlives its parent, and with it the parent's descriptors
        os._exit(0)
    with cw.Group(name, SIZE, rank, timeout=60) as g:
        ways[0](g)
        pipe.send("begins")
        times = []
        while g.size > 2:
            try:
                ways[1](g, turn)
            except cw.GroupBroken:
                told = time.monotonic()
                g.reform(drop_messages=True)  # what was sent is sent again
                turn = 0
                times.append((told, time.monotonic()))
                pipe.send("goes on")
        assert g.allreduce(1) == 2
        return times


def one(number: int, chance: random.Random, ways: Ways) -> tuple[float, float]:
    """A group in which two members are killed. The slowest that was told, and that went on, in seconds."""
    forks = number % 4 == 0
    turn = chance.randrange(8)
    started = [Member(member, f"storm/{number}", rank, turn, forks, ways) for rank in range(SIZE)]
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
            for each in living:
                assert each.next() == "goes on"
            time.sleep(chance.random() * 0.02)
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


def storm(deaths: int, seed: int, ways: Ways = (ready, works)) -> tuple[list[float], list[float]]:
    """So many deaths; the slowest of each group. ways: what members do before, and until they are told."""
    chance = random.Random(seed)
    told, on = [], []
    for number in range(deaths // 2):
        a, b = one(number, chance, ways)
        told.append(a)
        on.append(b)
    return sorted(told), sorted(on)


def main() -> None:
    """The storm by itself."""
    deaths = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0  # 0: any
    seed = seed or int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}", flush=True)
    told, on = storm(deaths, seed, ON_GPUS if sys.argv[3:] == ["gpu"] else (ready, works))
    for what, times in (("told", told), ("reformed", on)):
        median, last = times[len(times) // 2], times[-1]
        print(
            f"{deaths} deaths: {what} after {median * 1e3:.1f} ms (median of the slowest), {last * 1e3:.1f} ms (slowest)"
        )


if __name__ == "__main__":
    main()
