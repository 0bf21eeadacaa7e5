"""Dask with cableway beside stock Dask: worker to worker, and an array on four workers. Run by `make bench-dask`.

Each kind of cluster lies in a process of its own, which stays; this one lets them measure in turns, in an order that changes. A sample
is the time of one `get_data` between two workers, with its answer, and with the object deserialized, as a worker gets a dependency:
of an array that was never sent before (first), and once more (again). "make" is the time in which a task makes the array, "very first" the
first sending of such an array by new workers. "read" is the same for the first time with one pass over the
array, since who gets a mapping meets its pages then. "gather" is the time of `client.gather` through the scheduler. The table has the median, with the lowest and highest.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from typing import Any

KINDS = ("cableway", "tcp", "tls")
MIB = 1 << 20
SMALL_TIMES = 25  # that what is small is fetched for one sample, their median
SIZES = {"1 KiB": 1 << 10, "1 MiB": MIB, "64 MiB": 64 * MIB, "256 MiB": 256 * MIB}


# ---- in the process of one kind


def serve(kind: str) -> None:
    """Answers requests, one line of JSON each, with samples in milliseconds."""
    if kind == "cableway":
        import cableway.dask  # noqa: F401

    from distributed import Client, LocalCluster, Security

    options: dict[str, Any] = {
        "dashboard_address": None,
        "threads_per_worker": 1,
        "memory_limit": 0,
    }
    if kind == "tls":
        options |= {"security": Security.temporary(), "protocol": "tls://"}
    with LocalCluster(n_workers=2, **options) as cluster, Client(cluster) as client:
        client.amm.stop()
        maker, taker = client.run(os.getpid)
        _reply("ready")
        for line in sys.stdin:
            _reply(_measured(client, maker, taker, **json.loads(line)))


def _reply(value: object) -> None:
    print(json.dumps(value), flush=True)


def _measured(
    client: Any,
    maker: str,
    taker: str,
    nbytes: int,
    read: bool = False,
    gather: bool = False,
    make: bool = False,
) -> list[float]:
    x = client.submit(_made, nbytes, random.random(), workers=[maker], pure=False)
    client.gather(client.submit(len, x, workers=[maker], pure=False))
    if gather:
        return [_gathered(client, x) for _ in range(2)]
    if make:
        return [client.run(_making, workers=[maker])[maker]]
    times = SMALL_TIMES if nbytes < MIB else 1
    found = [
        statistics.median(client.run(_fetched, x.key, maker, read, times, workers=[taker])[taker])
        for _ in range(1 if read else 2)
    ]
    x.release()
    return found


def _gathered(client: Any, x: Any) -> float:
    begin = time.perf_counter()
    client.gather(x)
    return (time.perf_counter() - begin) * 1000


def _made(nbytes: int, fill: float) -> Any:
    import numpy as np

    begin = time.perf_counter()
    found = np.full(nbytes // 8, fill)
    sys.modules["builtins"]._bench_ms = (time.perf_counter() - begin) * 1000  # type: ignore[attr-defined]
    return found


def _making() -> float:
    return float(sys.modules["builtins"]._bench_ms)  # type: ignore[attr-defined]


async def _fetched(key: str, maker: str, read: bool, times: int, dask_worker: Any) -> list[float]:
    from distributed.worker import get_data_from_worker

    samples = []
    for _ in range(times):
        begin = time.perf_counter()
        reply = await get_data_from_worker(dask_worker.rpc, [key], maker, who=dask_worker.address)
        if read:
            reply["data"][key].sum()
        samples.append((time.perf_counter() - begin) * 1000)
        assert reply["data"][key].nbytes
    return samples


def memory(kind: str) -> None:
    """256 MiB on four workers, who all ask at once: private memory that they gained, and shared memory."""
    if kind == "cableway":
        import cableway.dask  # noqa: F401

    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=4, threads_per_worker=1, dashboard_address=None, memory_limit=0
        ) as cluster,
        Client(cluster) as client,
    ):
        client.amm.stop()
        before = client.run(_private)
        workers = [*before]
        x = client.submit(_made, 256 * MIB, 1.0, workers=workers[:1])
        sums = [client.submit(_sum, x, workers=[w], pure=False) for w in workers]
        assert client.gather(sums) == [32.0 * MIB] * 4
        time.sleep(1)
        gained = {w: now - before[w] for w, now in client.run(_private).items()}
        print(
            json.dumps(
                {
                    "private": sum(gained.values()),
                    "most": max(gained.values()),
                    "shared": _shared(kind),
                }
            )
        )


def _sum(x: Any) -> float:
    return float(x.sum())


def _private() -> int:
    found = {"VmRSS": 0, "RssShmem": 0}
    with open("/proc/self/status") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) << 10
    return found["VmRSS"] - found["RssShmem"]


def _shared(kind: str) -> int:
    if kind != "cableway":
        return 0
    said = subprocess.run(["cableway", "status", "--json"], capture_output=True, check=True)
    return int(json.loads(said.stdout)["gauges"]["bytes"])


# ---- in the process that compares


def main() -> None:
    """Prints tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--size", choices=SIZES, action="append", help="measure it alone")
    parser.add_argument("--serve", choices=KINDS)
    parser.add_argument("--memory", choices=KINDS)
    chosen = parser.parse_args()
    if chosen.serve:
        return serve(chosen.serve)
    if chosen.memory:
        return memory(chosen.memory)
    me = [sys.executable, os.path.abspath(__file__)]
    servers = {
        kind: subprocess.Popen(
            [*me, "--serve", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for kind in KINDS
    }
    samples: dict[tuple[str, str, str], list[float]] = {}
    sizes = chosen.size or list(SIZES)
    for server in servers.values():
        assert server.stdout is not None and json.loads(server.stdout.readline()) == "ready"
    for turn in range(-1, chosen.rounds):  # the first one warms up
        for name in sizes:
            nbytes = SIZES[name]
            for read in (False, True):
                for kind in random.sample(KINDS, len(KINDS)):
                    found = _asked(servers[kind], nbytes=nbytes, read=read)
                    for what, sample in zip(
                        ["read"] if read else ["first", "again"], found, strict=True
                    ):
                        if turn >= 0:
                            samples.setdefault((name, what, kind), []).append(sample)
                        elif what == "first":
                            samples[name, "very first", kind] = [sample]
            for what in ("make", "gather"):
                names = ["make"] if what == "make" else ["gather first", "gather again"]
                for kind in random.sample(KINDS, len(KINDS)):
                    found = _asked(servers[kind], nbytes=nbytes, **{what: True})
                    for row, sample in zip(names, found, strict=True):
                        if turn >= 0:
                            samples.setdefault((name, row, kind), []).append(sample)
    for server in servers.values():
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
    print(
        f"\n| worker to worker, ms, {chosen.rounds} rounds | {' | '.join(KINDS)} | tcp/ours | tls/ours |"
    )
    print("|---" * (len(KINDS) + 3) + "|")
    for name in sizes:
        for what in (
            "very first",
            "make",
            "first",
            "again",
            "read",
            "gather first",
            "gather again",
        ):
            of = {kind: samples[name, what, kind] for kind in KINDS}
            middle = {kind: statistics.median(found) for kind, found in of.items()}
            cells = [
                f"{middle[kind]:.2f} ({min(of[kind]):.2f} to {max(of[kind]):.2f})" for kind in KINDS
            ]
            ratios = [f"{middle[kind] / middle['cableway']:.2f}" for kind in ("tcp", "tls")]
            print(f"| {name}, {what} | {' | '.join([*cells, *ratios])} |")
    if chosen.size:
        return None
    print(
        "\n| 256 MiB on four workers, MiB gained | private, all | private, most of one | shared |\n|---|---|---|---|"
    )
    for kind in ("cableway", "tcp"):
        done = subprocess.run(
            [*me, "--memory", kind], stdout=subprocess.PIPE, text=True, check=True
        )
        said = json.loads(done.stdout)
        print(
            f"| {kind} | {said['private'] / MIB:.0f} | {said['most'] / MIB:.0f} | {said['shared'] / MIB:.0f} |"
        )
    return None


def _asked(server: subprocess.Popen[str], **request: Any) -> list[float]:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return list(json.loads(server.stdout.readline()))


if __name__ == "__main__":
    main()
