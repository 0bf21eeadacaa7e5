"""Dask between nodes, with cableway's bridges beside stock Dask's tls. Run by `make bench-dask-nodes`.

Two nodes on this machine, each with a broker and a bridge of its own, TLS between them over 127.0.0.1. A cluster of each kind stays up, by
tls, with one worker on node a and several on node b; they are measured in turns, in an order that changes. A sample is the time until
one worker of b, or all of them at once, have an array of a, by `get_data` with its answer, deserialized; "read": with one pass over it.
Each array is a new one: so the copy into shared memory at its maker is in the time. The table has the median, with the lowest and highest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KINDS = ("cableway", "tls")
MIB = 1 << 20
SIZES = {"1 MiB": MIB, "64 MiB": 64 * MIB, "256 MiB": 256 * MIB}


# ---- nodes


def _command(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        words, env={**os.environ, **environment}, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@contextlib.contextmanager
def nodes(root: Path, *names: str) -> Iterator[dict[str, dict[str, str]]]:
    """The environment of each node's processes; the brokers run, and know each other."""
    found, keys, ports = {}, {}, {}
    for name in names:
        folder = root / name
        folder.mkdir(mode=0o700)
        found[name] = {"CABLEWAY_DIR": str(folder), "CABLEWAY_NODE_DIR": str(folder / "node")}
        keys[name] = _command(found[name], "cableway", "keygen", "--node", name)
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports[name] = free.getsockname()[1]
    for name in names:
        for other in names:
            if other != name:
                words = ["peers", "add", other, f"127.0.0.1:{ports[other]}", "--key", keys[other]]
                _command(found[name], "cableway", *words, "--read", "dask/*")
    try:
        for name in names:
            _command(
                found[name], "cablewayd", "--node", name, "--listen", f"127.0.0.1:{ports[name]}"
            )
        yield found
    finally:
        for name in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                _command(found[name], "cableway", "stop", "--yes", "--force")


# ---- in the process of one kind


def serve(kind: str, environments: dict[str, dict[str, str]], readers: int) -> None:
    """Answers requests, one line of JSON each, with samples in milliseconds."""
    if kind == "cableway":
        import cableway.dask  # noqa: F401

    from distributed import Client, LocalCluster, Security

    security = Security.temporary()
    words = [sys.executable, "-m", "distributed.cli.dask_worker"]
    for option, text in (
        ("--tls-ca-file", security.tls_ca_file),
        ("--tls-cert", security.tls_worker_cert),
        ("--tls-key", security.tls_worker_key),
    ):
        file = Path(f"{kind}{option}").resolve()
        file.write_text(str(text))
        words += [option, str(file)]
    words += ["--preload", "cableway.dask"] if kind == "cableway" else []
    words += ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0"]
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(
            LocalCluster(n_workers=0, dashboard_address=None, security=security, protocol="tls://")
        )
        for i, node in enumerate(["a", *["b"] * readers]):
            process = subprocess.Popen(
                [*words, "--name", f"{node}-{i}", cluster.scheduler_address],
                env={**os.environ, **environments[node], "PYTHONPATH": os.path.dirname(__file__)},
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        client = stack.enter_context(Client(cluster, timeout="120s"))
        client.wait_for_workers(1 + readers, timeout=120)
        client.amm.stop()
        known = client.scheduler_info(n_workers=-1)["workers"]
        (maker,) = [w for w in known if known[w]["name"] == "a-0"]
        takers = [w for w in known if w != maker]
        _reply("ready")
        for line in sys.stdin:
            _reply(_measured(client, maker, takers, **json.loads(line)))


def _reply(value: object) -> None:
    print(json.dumps(value), flush=True)


def _measured(
    client: Any, maker: str, takers: list[str], nbytes: int, read: bool, readers: int
) -> float:
    import bench_dask_nodes  # so that workers find the functions by their names

    x = client.submit(bench_dask_nodes.made, nbytes, random.random(), workers=[maker], pure=False)
    client.gather(client.submit(len, x, workers=[maker], pure=False))
    found = client.run(bench_dask_nodes.fetched, x.key, maker, read, workers=takers[:readers])
    x.release()
    begin, end = zip(*found.values(), strict=True)
    return (max(end) - min(begin)) * 1000


def made(nbytes: int, fill: float) -> Any:
    """An array."""
    import numpy as np

    return np.full(nbytes // 8, fill)


async def fetched(key: str, maker: str, read: bool, dask_worker: Any) -> tuple[float, float]:
    """When it was asked for, and when it was there (CLOCK_MONOTONIC is one for all processes)."""
    from distributed.worker import get_data_from_worker

    begin = time.monotonic()
    reply = await get_data_from_worker(dask_worker.rpc, [key], maker, who=dask_worker.address)
    if read:
        reply["data"][key].sum()
    assert reply["data"][key].nbytes
    return begin, time.monotonic()


# ---- in the process that compares


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--readers", type=int, default=4, help="workers on node b")
    parser.add_argument("--serve", choices=KINDS)
    parser.add_argument("--nodes", help="JSON, with --serve")
    chosen = parser.parse_args()
    if chosen.serve:
        return serve(chosen.serve, json.loads(chosen.nodes), chosen.readers)
    with tempfile.TemporaryDirectory() as root, nodes(Path(root), "a", "b") as environments:
        _compared(environments, root, chosen.rounds, chosen.readers)
    return None


def _compared(
    environments: dict[str, dict[str, str]], root: str, rounds: int, readers: int
) -> None:
    words = [sys.executable, os.path.abspath(__file__), "--nodes", json.dumps(environments)]
    servers = {
        kind: subprocess.Popen(
            [*words, "--readers", str(readers), "--serve", kind],
            cwd=root,
            env={**os.environ, **environments["a"], "PYTHONPATH": os.path.dirname(__file__)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for kind in KINDS
    }
    for server in servers.values():
        assert server.stdout is not None and json.loads(server.stdout.readline()) == "ready"
    samples: dict[tuple[str, int, bool, str], list[float]] = {}
    for turn in range(-1, rounds):  # the first one warms up
        for size, nbytes in SIZES.items():
            for count in (1, readers):
                for read in (False, True):
                    for kind in random.sample(KINDS, len(KINDS)):
                        request = {"nbytes": nbytes, "read": read, "readers": count}
                        sample = _asked(servers[kind], request)
                        if turn >= 0:
                            samples.setdefault((size, count, read, kind), []).append(sample)
    for server in servers.values():
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
    print(f"\n| node to node, ms, {rounds} rounds | cableway | tls | tls/ours |\n|---|---|---|---|")
    for size, count, read in dict.fromkeys(key[:3] for key in samples):
        of = {kind: samples[size, count, read, kind] for kind in KINDS}
        middle = {kind: statistics.median(found) for kind, found in of.items()}
        cells = [f"{middle[k]:.1f} ({min(of[k]):.1f} to {max(of[k]):.1f})" for k in KINDS]
        what = f"{size}, {count} reader{'s' if count > 1 else ''}{', read' if read else ''}"
        print(f"| {what} | {' | '.join(cells)} | {middle['tls'] / middle['cableway']:.2f} |")


def _asked(server: subprocess.Popen[str], request: dict[str, Any]) -> float:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return float(json.loads(server.stdout.readline()))


if __name__ == "__main__":
    main()
