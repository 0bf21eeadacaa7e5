"""Operations of a group between GPUs, side by side with NCCL in one run: Allreduce, Allgather, Bcast, Alltoall, 8 B to 1 GiB.

    python3 tools/bench/gpu/bench_groups.py [--ranks 2] [--rounds 7] [--seconds 240] [--smallest BYTES] [--largest BYTES]
        [--operations Alltoall,Allgather]

Each rank is a process with a GPU of its own, or they share what there is. NCCL comes by `Group.nccl`, so it needs CuPy; without it,
and with two ranks on one GPU, NCCL is left out, and the run says so. Random integers as float32, whose sums are exact; every result
is checked whole, before the clock and behind it. The candidates take turns, a round each: so many calls, one at a time, after each
of which the CPU waits for the GPU, as `Group` does. "nccl, back to back" waits once a round. What counts is the slowest rank; told
are the median of the rounds with the fastest and the slowest, in microseconds, and bytes of one rank's result a second.

A size whose turn comes after --seconds is left out, and named. Prints one JSON line a measurement, then a table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import cableway as cw

SIZES = (
    8,
    1 << 10,
    1 << 16,
    1 << 20,
    8 << 20,
    64 << 20,
    256 << 20,
    1 << 30,
)  # of one rank's result
ROUND_S = 0.05  # calls of one round take about so long
CALLS_MOST = 200
Call = Callable[[], object]


class Case(NamedTuple):
    """One operation on so many bytes; each candidate has a buffer of its own to receive into."""

    operation: str
    nbytes: int
    sent: np.ndarray[Any, Any]  # by this rank
    expected: np.ndarray[Any, Any]


def data_of(rank: int, count: int) -> np.ndarray[Any, Any]:
    """Random integers, the same in each process."""
    return np.random.default_rng([7, rank, count]).integers(0, 1000, count, "i4").astype("f4")


def cases(ranks: int, rank: int, largest: int) -> Iterator[Case]:
    """All, the smallest first."""
    for nbytes in (size for size in SIZES if size <= largest):
        count = nbytes // 4
        part = max(1, count // ranks)
        everybody = [data_of(i, count) for i in range(ranks)]
        total = everybody[0].copy()
        for other in everybody[1:]:
            total += other
        yield Case("Allreduce", nbytes, everybody[rank], total)
        del total
        yield Case("Bcast", nbytes, everybody[rank], everybody[0])
        parts = np.concatenate([one[:part] for one in everybody])
        yield Case("Allgather", nbytes, everybody[rank][:part], parts)
        blocks = [
            one[: part * ranks].reshape(-1, part) for one in everybody if one.size >= part * ranks
        ]
        if len(blocks) == ranks:
            mine = np.concatenate([block[rank] for block in blocks])
            yield Case("Alltoall", nbytes, everybody[rank][: part * ranks], mine)


class Ours:
    """The group's own operations, on arrays that all members have mapped."""

    def __init__(self, g: cw.Group, device: str) -> None:
        self.g, self.device = g, device

    def prepare(self, case: Case) -> tuple[Call, Call, cw.Array]:
        """A call, what waits for the last one, and where its result is."""
        g = self.g
        every_sent = g.empty(case.sent.size, "f4", device=self.device)
        sent = every_sent[g.rank]
        out = cw.empty(case.expected.size, "f4", device=self.device)
        sent.copy_from(case.sent)
        if case.operation == "Bcast":
            every_sent = g.empty(case.sent.size, "f4", device=self.device)
            out = every_sent[g.rank]
            out.copy_from(case.sent)
        operation = getattr(g, case.operation)

        def call() -> object:
            given = (out,) if case.operation == "Bcast" else (sent, out)
            return every_sent, operation(*given)  # all members keep all mapped

        return call, lambda: None, out


class Nccl:
    """NCCL, by the communicator that the group hands out."""

    def __init__(self, g: cw.Group, device: str) -> None:
        import cupy
        from cupy.cuda import nccl

        self.g, self.device, self.nccl = g, device, nccl
        cupy.cuda.Device(int(device.partition(":")[2])).use()
        self.communicator = g.nccl()
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def prepare(self, case: Case) -> tuple[Call, Call, cw.Array]:
        """As `Ours.prepare`."""
        sent = cw.asarray(case.sent, device=self.device)
        out = cw.empty(case.expected.size, "f4", device=self.device)
        at, to = (a.__cuda_array_interface__["data"][0] for a in (sent, out))
        c, kind, stream, n = (
            self.communicator,
            self.nccl.NCCL_FLOAT32,
            self.stream.ptr,
            case.sent.size,
        )

        def exchange() -> None:
            ranks = self.g.size
            self.nccl.groupStart()
            for i in range(ranks):
                c.send(at + i * (n // ranks) * 4, n // ranks, kind, i, stream)
                c.recv(to + i * (n // ranks) * 4, n // ranks, kind, i, stream)
            self.nccl.groupEnd()

        calls: dict[str, Call] = {
            "Allreduce": lambda: c.allReduce(at, to, n, kind, self.nccl.NCCL_SUM, stream),
            "Bcast": lambda: c.broadcast(at, to, n, kind, 0, stream),
            "Allgather": lambda: c.allGather(at, to, n, kind, stream),
            "Alltoall": exchange,
        }
        call = calls[case.operation]

        def keeps() -> object:
            return sent, call()

        return keeps, self.stream.synchronize, out


def check(case: Case, out: cw.Array, who: str) -> None:
    """Every element."""
    if not np.array_equal(out.to("cpu").numpy(), case.expected):
        raise SystemExit(f"{who}: {case.operation} of {case.nbytes} B is WRONG")


def a_round(g: cw.Group, call: Call, finish: Call, calls: int, each: bool) -> float:
    """Microseconds a call, of the slowest rank."""
    g.barrier()
    begun = time.perf_counter()
    for _ in range(calls):
        call()
        if each:
            finish()
    finish()
    return float(g.allreduce((time.perf_counter() - begun) / calls * 1e6, "max"))


def measure(
    g: cw.Group, case: Case, candidates: dict[str, Any], rounds: int
) -> dict[str, list[float]]:
    """The rounds of all candidates."""
    ready = {}
    for name, candidate in candidates.items():
        call, finish, out = candidate.prepare(case)
        call()
        finish()
        check(case, out, name)
        once = a_round(g, call, finish, 3, True)
        calls = max(1, min(CALLS_MOST, int(ROUND_S * 1e6 / once)))
        ready[name] = call, finish, out, g.bcast(calls), True
        if name == "nccl":
            ready["nccl, back to back"] = call, finish, out, g.bcast(calls), False
    found: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(rounds):
        for name, (call, finish, _out, calls, each) in ready.items():
            found[name].append(a_round(g, call, finish, calls, each))
    for name, (_call, _finish, out, _calls, _each) in ready.items():
        check(case, out, name)
    g.barrier()
    return found


def free_bytes(g: cw.Group) -> int:
    """Of the GPU, as the driver says while nobody allocates."""
    import cupy

    g.barrier()
    free = int(cupy.cuda.runtime.memGetInfo()[0])
    g.barrier()
    return free


def member(args: argparse.Namespace) -> None:
    """One rank; rank 0 prints."""
    gpus = len(cw.devices()) - 1
    device = f"cuda:{args.member % gpus}"
    with cw.Group(f"bench/{args.name}", args.ranks, args.member, timeout=300) as g:
        candidates: dict[str, Any] = {"cableway": Ours(g, device)}
        g.Allgather(cw.zeros(1000, device=device))  # contexts and mappings are there
        said = "NCCL is left out: no CuPy"
        with contextlib.suppress(ImportError):
            import cupy

            cupy.cuda.Device(int(device.partition(":")[2])).use()
            before = free_bytes(g)
            try:
                candidates["nccl"] = Nccl(g, device)
                version = cupy.cuda.nccl.get_version()
                said = f"NCCL {version}, whose communicator takes {(before - free_bytes(g)) >> 20} MiB of GPU memory before its first call"
            except cw.DeviceError as error:
                said = f"NCCL is left out: {error}"
        if g.rank == 0:
            print(f"{g.size} ranks on {min(gpus, g.size)} GPUs; {said}", flush=True)
        begun = time.monotonic()
        for case in cases(g.size, g.rank, args.largest):
            if case.nbytes < args.smallest or case.operation not in args.operations.split(","):
                continue
            if g.bcast(time.monotonic() - begun > args.seconds):
                if g.rank == 0:
                    print(
                        f"left out, the time was over: {case.operation} of {case.nbytes} B",
                        flush=True,
                    )
                continue
            found = measure(g, case, candidates, args.rounds)
            if g.rank == 0:
                print(json.dumps([case.operation, case.nbytes, found]), flush=True)


def row(operation: str, nbytes: int, found: dict[str, list[float]]) -> Iterator[str]:
    """The lines of one case."""
    base = found.get("nccl")
    for name, times in found.items():
        median = statistics.median(times)
        ratio = f"{statistics.median(base) / median:8.2f}" if base else "       -"
        yield (
            f"{operation:10} {nbytes:11} B  {name:19}{median:12.1f} us ({min(times):.1f} to {max(times):.1f})"
            f"  {nbytes / median / 1e3:8.1f} GB/s {ratio}"
        )


def main() -> int:
    """The run, or one rank of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--smallest", type=int, default=0)
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--operations", default="Allreduce,Bcast,Allgather,Alltoall")
    parser.add_argument("--member", type=int)
    parser.add_argument("--name", default=str(os.getpid()))
    args = parser.parse_args()
    if args.member is not None:
        member(args)
        return 0
    if len(cw.devices()) < 2:
        print("no GPU: nothing is measured")
        return 1
    started = [
        subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--name", args.name, "--member", str(rank)],
            stdout=subprocess.PIPE if rank == 0 else None,
            text=True,
        )
        for rank in range(args.ranks)
    ]
    assert started[0].stdout is not None
    rows = []
    for line in started[0].stdout:
        print(line, end="", flush=True)
        if line.startswith("["):
            rows += row(*json.loads(line))
    codes = [process.wait() for process in started]
    print("\nThe last column: how many times as fast as NCCL, one at a time")
    print("\n".join(rows))
    print(f"{args.ranks} ranks ended with {codes}")
    return 1 if any(codes) or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
