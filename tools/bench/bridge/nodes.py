"""Nodes on this machine for the benchmarks of the bridge: brokers with bridges of their own, loopback between them.

What a node has is put there by a process of its own (`Owner`), so that this process stays one node's client.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from measure import MIB, family

AREA = 64 * MIB  # the least that samples of one size go round in
SECONDS_MAX = 30.0


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def streams_chosen() -> int:
    """How many streams a bridge here takes unless told otherwise (default_streams() in broker/bridge/bridge.c)."""
    return min(len(os.sched_getaffinity(0)), 4)


def areas(size: int) -> int:
    """How many arrays of a size the samples go round in."""
    return max(1, min(16, AREA // size))


def random_bytes(size: int, number: int) -> np.ndarray:
    """The array of a size and number: everybody makes the same."""
    return np.random.default_rng([size, number]).integers(0, 256, size, dtype=np.uint8)


class Nodes:
    """Nodes that know each other and may do everything; each has a broker and a bridge.

    streams: connections to each other node over which large arrays go; 0: as many as the bridge chooses.
    before: called when all have keys and know each other, before they start.
    """

    def __init__(
        self,
        build: Path,
        *names: str,
        streams: int = 0,
        before: Callable[[Nodes], object] = lambda _: None,
    ) -> None:
        self.build = build
        self.root = Path(tempfile.mkdtemp(prefix="cwbench-"))
        self.brokers: list[subprocess.Popen[bytes]] = []
        self.ports = {name: free_port() for name in names}
        prints = {}
        for name in names:
            (self.root / name).mkdir(mode=0o700)
            prints[name] = self.call(name, "keygen", "--node", name).strip()
        for name in names:
            for other in names:
                if other != name:
                    self.call(name, "peers", "add", other, f"127.0.0.1:{self.ports[other]}", "--key",
                              prints[other], "--read", "*", "--write", "*")  # fmt: skip
        before(self)
        options = ["--streams", str(streams)] if streams and streams_known(build) else []
        for name in names:
            listens = ["--listen", f"127.0.0.1:{self.ports[name]}"]
            self.brokers.append(
                subprocess.Popen(
                    [build / "cablewayd", "--foreground", "--node", name, *listens, *options],
                    env=self.environment(name), stderr=(self.root / name / "log").open("w"),
                )
            )  # fmt: skip
        for name in names:
            self._until_connected(name, len(names) - 1)
        self.pids = [pid for broker in self.brokers for pid in family(broker.pid)]

    def _until_connected(self, name: str, count: int) -> None:
        limit = time.monotonic() + SECONDS_MAX
        while self.call(name, "peers", "show").count("state connected") < count:
            if time.monotonic() > limit:
                raise RuntimeError(
                    f"{name} is not connected: {(self.root / name / 'log').read_text()}"
                )
            time.sleep(0.05)

    def environment(self, name: str) -> dict[str, str]:
        """A node's own."""
        return {
            **os.environ,
            "CABLEWAY_DIR": str(self.root / name),
            "CABLEWAY_NODE_DIR": str(self.root / name / "node"),
        }

    def call(self, name: str, *words: str) -> str:
        """Runs cableway-bridge's command on a node; what it prints."""
        return subprocess.run([self.build / "cableway-bridge", *words], env=self.environment(name),
                              capture_output=True, text=True, check=True).stdout  # fmt: skip

    def close(self) -> None:
        """Ends them."""
        for broker in self.brokers:
            broker.terminate()
            broker.wait()
        shutil.rmtree(self.root)


def streams_known(build: Path) -> bool:
    """Whether this cablewayd has the option; else there is one stream."""
    done = subprocess.run(
        [build / "cablewayd", "--help"], capture_output=True, text=True, check=True
    )
    return "--streams" in done.stdout


@contextlib.contextmanager
def nodes(build: Path, *names: str, **options: Any) -> Iterator[Nodes]:
    """Nodes that end with the block."""
    made = Nodes(build, *names, **options)
    try:
        yield made
    finally:
        made.close()


def _own(folder: Path, connection: Connection) -> None:
    import cableway as cw

    with cw.connect(folder):
        while (words := connection.recv()) is not None:
            verb, names, size, number, device = words
            for name in names if verb == "remove" else ():
                cw.remove(name)
            if verb == "make":
                cw.put(names[0], cw.asarray(random_bytes(size, number), device=device))
            elif verb == "name":  # other names of an array that is there: no copy
                array = cw.get(names[0])
                for name in names[1:]:
                    cw.put(name, array)
            elif verb == "small":
                for i, name in enumerate(names):
                    cw.put(name, random_bytes(size, number + i))
            connection.send("done")


class Owner:
    """A client of a node in a process of its own."""

    def __init__(self, made: Nodes, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_own, args=(made.root / name, theirs), daemon=True)
        self.process.start()

    def _ask(
        self, verb: str, names: Sequence[str], size: int = 0, number: int = 0, device: str = "cpu"
    ) -> None:
        self._connection.send((verb, names, size, number, device))
        self._connection.recv()

    def make(self, size: int, device: str = "cpu") -> None:
        """Puts all arrays of a size: of/SIZE/0 and so on."""
        for number in range(areas(size)):
            self._ask("make", [f"of/{size}/{number}"], size, number, device)

    def name(self, size: int, number: int, *names: str) -> None:
        """Gives one of them other names."""
        self._ask("name", [f"of/{size}/{number}", *names])

    def small(self, size: int, *names: str) -> None:
        """Puts small arrays."""
        self._ask("small", names, size)

    def remove(self, *names: str) -> None:
        """Removes names."""
        self._ask("remove", names)

    def drop(self, size: int) -> None:
        """Removes all arrays of a size."""
        self.remove(*[f"of/{size}/{number}" for number in range(areas(size))])

    def close(self) -> None:
        """Ends it."""
        self._connection.send(None)
        self.process.join()
