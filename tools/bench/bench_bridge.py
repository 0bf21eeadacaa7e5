"""The bridge between two nodes on this machine, beside what moves arrays between processes otherwise.

Ours is measured with one stream, and with as many as a bridge takes by default (arrays of 2 MiB and more use them).

Loopback figures: both ends share the machine's cores, and the network is memory. Large arrays: a get of a name that is
new to the getting node, into memory that was used before, beside a blocking OpenSSL loop in C with the same cipher
(which has no names and checks nothing), Dask's tls:// and multiprocessing.connection (which does not encrypt). Small
ones: a get of a new name and of a replica beside a ping-pong over TLS.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from bridge.nodes import Nodes, Owner, nodes, streams_chosen
from bridge.rivals import Dask, Loop, Ours, Rival, Standard, closing, rows
from measure import MIB, Used, in_turn, report, skipped

import cableway as cw

SIZES = [
    ("1 MiB", MIB, 40),
    ("16 MiB", 16 * MIB, 30),  # fewer say little where cores are shared: 0.8 to 1.2 of the same
    ("256 MiB", 256 * MIB, 5),
    ("1 GiB", 1 << 30, 3),
]
SMALL_BATCH = 20


def large(made: Nodes, default: Nodes, owner: Owner, rounds: int | None) -> None:
    """All sizes."""
    keys = made.root / "a" / "node"
    others = Owner(default, "b")
    rivals: list[Rival] = [
        Ours(made, owner, "cableway, one stream"),
        Ours(default, others, f"cableway, {streams_chosen()} streams, the default here"),
        Loop(made.build, keys, "tls", 1, 1 << 30),
        Standard(),
    ]
    try:
        rivals.append(Dask())
    except Exception as error:  # whatever keeps it from starting
        skipped("bridge", f"Dask: {type(error).__name__}: {error}")
    with closing(rivals):
        for name, size, most in SIZES:
            rows(f"get {name}", size, rivals, min(rounds or most, most))
    others.close()


class Small:
    """Gets of 64 bytes, many a sample."""

    def __init__(self, made: Nodes, owner: Owner) -> None:
        self.nodes, self.owner, self.next = made, owner, 0

    def _timed(self, names: list[str]) -> tuple[float, float]:
        cpu, begun = Used(self.nodes.pids), time.perf_counter()
        found = [cw.get(name) for name in names]
        took = time.perf_counter() - begun
        used = cpu.until_now()
        for array in found:
            if array.shape != (64,) or not array.numpy().any():
                raise RuntimeError("wrong bytes")
        return took / len(names), used / len(names)

    def fresh(self, turn: int) -> tuple[float, float]:
        """Of names that are new here."""
        self.next += 1
        self.names = [f"small/{self.next}/{i}" for i in range(SMALL_BATCH)]
        self.owner.small(64, *self.names)
        return self._timed([f"//b/{name}" for name in self.names])

    def replica(self, turn: int) -> tuple[float, float]:
        """Of a replica that is there."""
        name = f"//b/{self.names[0]}"
        return self._timed([name] * 200)

    def local(self, turn: int) -> tuple[float, float]:
        """Of an array of this node, for comparison."""
        return self._timed(["mine"] * 200)


def small(made: Nodes, owner: Owner, rounds: int) -> None:
    """A get of 64 B."""
    gets = Small(made, owner)
    cw.put("mine", np.ones(64, "u1"))
    with closing([Loop(made.build, made.root / "a" / "node", "tls", 1, 0)]) as loops:
        loop = loops[0]
        assert isinstance(loop, Loop)
        candidates = [
            ("cableway, a get of a new name", gets.fresh),
            ("cableway, a get of a fresh replica", gets.replica),
            ("cableway, a get of a local name", gets.local),
            ("OpenSSL, ping-pong in C", lambda _: loop.ask(f"ping {SMALL_BATCH}")),
        ]
        found = in_turn(rounds, candidates)
    for name, samples in found.items():
        how = "adaptive" if name.startswith("cableway") else "sleeps"
        report(
            "bridge 64 B",
            name,
            how,
            "us",
            [took * 1e6 for took, _ in samples],
            sum(used for _, used in samples),
        )
        report("bridge 64 B, CPU", name, how, "us", [used * 1e6 for _, used in samples])


def main() -> None:
    """Prints all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--rounds", type=int, help="at most so many samples a row")
    options = parser.parse_args()
    with nodes(options.build.resolve(), "a", "b", streams=1) as made, cw.connect(made.root / "a"):
        owner = Owner(made, "b")
        small(made, owner, min(options.rounds or 30, 30))
        with nodes(options.build.resolve(), "a", "b") as default:
            large(made, default, owner, options.rounds)
        owner.close()


if __name__ == "__main__":
    main()
