"""The bridge between two nodes on this machine, beside a plain OpenSSL loop in C and multiprocessing.connection.

Loopback figures: both nodes share the machine's cores, and the network is memory. Each size is fetched under names that are
new to the fetching node, into memory that was used before; the fastest of some repeats counts, and CPU seconds are those of
both bridges, and of both processes of the others.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import numpy as np

import causeway as cw

SIZES = {"64 B": 64, "1 MiB": 1 << 20, "16 MiB": 16 << 20, "256 MiB": 256 << 20}


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def cpu(pid: int) -> float:
    """CPU seconds that a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def child_of(pid: int) -> int:
    """The one child of a broker: its bridge."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


class Nodes:
    """Two brokers with bridges that know each other."""

    def __init__(self, build: Path) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="cwbench-"))
        self.brokers: list[subprocess.Popen[bytes]] = []
        prints, ports = {}, {name: free_port() for name in "ab"}
        for name in "ab":
            (self.root / name).mkdir(mode=0o700)
            prints[name] = self.call(build, name, "keygen", "--node", name).strip()
        for name, other in ("ab", "ba"):
            self.call(build, name, "peers", "add", other, f"127.0.0.1:{ports[other]}", "--key",
                      prints[other], "--read", "*", "--write", "*")  # fmt: skip
        for name in "ab":
            self.brokers.append(
                subprocess.Popen(
                    [build / "causewayd", "--foreground", "--node", name, "--listen", f"127.0.0.1:{ports[name]}"],
                    env=self.environment(name), stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
        while not all(
            "state connected" in self.call(build, name, "peers", "show") for name in "ab"
        ):
            time.sleep(0.05)
        self.bridges = [child_of(broker.pid) for broker in self.brokers]

    def environment(self, name: str) -> dict[str, str]:
        """A node's own."""
        return {
            **os.environ,
            "CAUSEWAY_DIR": str(self.root / name),
            "CAUSEWAY_NODE_DIR": str(self.root / name / "node"),
        }

    def call(self, build: Path, name: str, *words: str) -> str:
        """Runs the command on a node."""
        return subprocess.run([build / "causeway-bridge", *words], env=self.environment(name),
                              capture_output=True, text=True, check=False).stdout  # fmt: skip

    def close(self) -> None:
        """Ends both."""
        for broker in self.brokers:
            broker.terminate()
            broker.wait()
        shutil.rmtree(self.root)


def bridge(nodes: Nodes, size: int, repeats: int) -> tuple[float, float]:
    """Seconds of the fastest get of a name that is new here; CPU seconds of both bridges for one."""
    values, best = np.ones(size, "u1"), 1e9
    with cw.connect(nodes.root / "b"):
        cw.put(f"bench/{size}", values)
    used = 0.0
    for i in range(repeats + 1):
        with cw.connect(nodes.root / "b"):
            cw.put(f"bench/{size}/{i}", cw.get(f"bench/{size}"))  # another name of the same array
        with cw.connect(nodes.root / "a"):
            before, begun = sum(map(cpu, nodes.bridges)), time.perf_counter()
            got = cw.get(f"//b/bench/{size}/{i}")
            took = time.perf_counter() - begun
            assert got.shape == (size,)
            del got
        if i:  # the first one is into new memory
            best = min(best, took)
            used += sum(map(cpu, nodes.bridges)) - before
        with cw.connect(nodes.root / "b"):
            cw.remove(f"bench/{size}/{i}")
        time.sleep(0.05)
    with cw.connect(nodes.root / "b"):
        cw.remove(f"bench/{size}")
    return best, used / repeats


def warm(nodes: Nodes) -> tuple[float, float]:
    """Seconds of a 64-byte get: of a name that is new here, and of a replica that is there (medians)."""
    fresh, again = [], []
    for i in range(200):
        with cw.connect(nodes.root / "b"):
            cw.put(f"small/{i}", np.ones(64, "u1"))
    with cw.connect(nodes.root / "a"):
        for i in range(200):
            begun = time.perf_counter()
            cw.get(f"//b/small/{i}")
            fresh.append(time.perf_counter() - begun)
        for i in range(200):
            begun = time.perf_counter()
            cw.get(f"//b/small/{i}")
            again.append(time.perf_counter() - begun)
    return statistics.median(fresh), statistics.median(again)


def _send(connection: Connection, size: int) -> None:
    values = np.ones(size, "u1")
    while connection.recv_bytes() == b"more":
        connection.send(values)


def _serve(address: tuple[str, int], size: int) -> None:
    with Client(address) as connection:
        _send(connection, size)


def standard(size: int, repeats: int) -> tuple[float, float]:
    """multiprocessing.connection over TCP: no encryption, and a pickle of the array."""
    with Listener(("127.0.0.1", 0)) as listener:
        process = multiprocessing.Process(target=_serve, args=(listener.address, size))
        process.start()
        with listener.accept() as connection:
            best = 1e9
            before = time.process_time() + cpu(process.pid or 0)
            for _ in range(repeats):
                begun = time.perf_counter()
                connection.send_bytes(b"more")
                assert connection.recv().shape == (size,)
                best = min(best, time.perf_counter() - begun)
            used = time.process_time() + cpu(process.pid or 0) - before
            connection.send_bytes(b"end")
        process.join()
    return best, used / repeats


def line(what: str, size: int, seconds: float, used: float) -> None:
    """One row."""
    rate = size / seconds / 1e9
    print(
        f"  {what:34} {seconds * 1e3:10.3f} ms {rate:8.2f} GB/s {used / size * 1e9:8.2f} CPU s/GB"
    )


def main() -> None:
    """Prints all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    build = options.build.resolve()
    nodes = Nodes(build)
    print(f"{os.cpu_count()} CPUs, loopback, TLS_AES_128_GCM_SHA256, one stream")
    try:
        for name, size in SIZES.items():
            print(name)
            keys = str(nodes.root / "a" / "node")
            told = subprocess.run([build / "tools/bench/bench_tls", keys, str(size), str(options.repeats)],
                                  capture_output=True, text=True, check=True).stdout.split()  # fmt: skip
            tls, tls_cpu, ping = map(float, told)
            line("OpenSSL, blocking loop in C", size, tls, tls_cpu)
            ours, ours_cpu = bridge(nodes, size, options.repeats)
            line("causeway, get of a new name", size, ours, ours_cpu)
            theirs, theirs_cpu = standard(size, options.repeats)
            line("multiprocessing.connection (no TLS)", size, theirs, theirs_cpu)
            print(f"  beside OpenSSL {tls / ours:.2f}, beside multiprocessing {theirs / ours:.2f}")
        fresh, again = warm(nodes)
        print(f"a get of 64 B: {fresh * 1e6:.0f} us of a new name, {again * 1e6:.1f} us of a replica; "
              f"a TLS ping-pong takes {ping * 1e6:.0f} us")  # fmt: skip
    finally:
        nodes.close()


if __name__ == "__main__":
    sys.exit(main())
