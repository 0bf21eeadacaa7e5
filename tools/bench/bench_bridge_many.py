"""256 peers that get small arrays at once, served by a bridge and by an epoll loop over OpenSSL in C.

Loopback figures. bench_tls_load is all 256 peers, each with a key and a TLS connection of its own: it speaks the
bridge's protocol to either server, one get of each peer always under way. So the servers are measured, and not 256
bridges that share two cores; the load takes a part of the machine, the same part beside either. The epoll loop looks
up, hashes and answers; it has no rights to look at, no names that others change, and nobody to tell of changes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

from bridge.nodes import Nodes, Owner, nodes
from measure import cpu_of, in_turn, report

PEERS, NAMES, SIZE = 256, 1000, 64
SECONDS = 1.0


class Load:
    """All peers of one server, and what they measure."""

    def __init__(self, build: Path, keys: Path, port: int, servers: list[int]) -> None:
        self.servers = servers
        self.process = subprocess.Popen(
            [build / "tools/bench/programs/bench_tls_load", keys, str(PEERS), str(port), str(NAMES), str(SIZE)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"bench_tls_load ended with {self.process.wait()}")

    def sample(self, turn: int) -> tuple[float, float]:
        """Gets a second, and CPU seconds of the server for each."""
        assert self.process.stdin and self.process.stdout
        used = cpu_of(self.servers)
        print(SECONDS, file=self.process.stdin, flush=True)
        count, took, _ = map(float, self.process.stdout.readline().split())
        return count / took, (cpu_of(self.servers) - used) / count

    def close(self) -> None:
        """The peers go."""
        self.process.communicate()


def make_keys(made: Nodes, server: str) -> Path:
    """A key for each peer, that the server knows."""
    folder = made.root / "keys"
    for i in range(PEERS):
        (folder / str(i)).mkdir(parents=True, mode=0o700)
        environment = {**os.environ, "CABLEWAY_NODE_DIR": str(folder / str(i))}
        told = subprocess.run([made.build / "cableway-bridge", "keygen", "--node", f"peer{i}"], env=environment,
                              capture_output=True, text=True, check=True).stdout  # fmt: skip
        made.call(server, "peers", "add", f"peer{i}", "--key", told.strip(), "--read", "*")
    return folder


def main() -> None:
    """Prints both rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    build = options.build.resolve()
    with nodes(build, "b", before=lambda made: make_keys(made, "b")) as made:
        owner = Owner(made, "b")
        owner.small(SIZE, *[f"many/{i}" for i in range(NAMES)])
        server = subprocess.Popen(
            [build / "tools/bench/programs/bench_tls_server", made.root / "b" / "node", str(NAMES), str(SIZE)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert server.stdout
        keys, port = made.root / "keys", int(server.stdout.readline())
        loads = {
            "cableway-bridge": Load(build, keys, made.ports["b"], made.pids),
            "epoll and OpenSSL in C": Load(build, keys, port, [server.pid]),
        }
        found = in_turn(
            min(options.rounds, 10), [(name, load.sample) for name, load in loads.items()]
        )
        for load in loads.values():
            load.close()
        server.communicate()
        owner.close()
    for name, samples in found.items():
        report("bridge 256 peers", name, "sleeps", "gets/s", [rate for rate, _ in samples])
    for name, samples in found.items():
        report(
            "bridge 256 peers, server's CPU for a get",
            name,
            "sleeps",
            "us",
            [used * 1e6 for _, used in samples],
        )


if __name__ == "__main__":
    main()
