"""Readers at one node that tell each other what they saw of a name of another node: it never goes back.

`Reader` is a process that reads the name at all places and by all calls that give an array. It looks first at what
any reader has seen, in memory that all share, and what it gets is never earlier. `Storm` puts on and on at the owner,
and kills, stops and cuts bridges, brokers and the link of both nodes meanwhile.

An array of version v has the shape (v, k), k being 0 to 2, and holds v % 251 alone: an array of another version, or of
two, shows.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

import numpy as np
from bridge_proxy import Proxy
from bridge_support import Node
from waiting import eventually

import cableway as cw

NAME = "open/floor"
HUNG_SECONDS = 90
STOPPED_SECONDS = 1.2  # at most: longer than a record of the replica cache counts
SEEN, GOAL, PUT = range(3)  # words of the shared file


class Wrong(AssertionError):
    """What must never be."""


def version_of(found: cw.Array) -> int:
    """Which version an array is; raises Wrong when it is none, or not whole."""
    values = found.to("cpu").numpy()
    version = int(values.shape[0])
    if (values != version % 251).any():
        raise Wrong(f"an array of shape {values.shape} with {np.unique(values)[:5]}")
    return version


class Shared:
    """Words in a file that all readers map. The lock is for who raises one."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(64))
        self.words = np.memmap(path, "i8", "r+", shape=8)
        self.file = path.open("r+b")

    def seen(self) -> int:
        """The highest version that anybody has seen."""
        return int(self.words[SEEN])

    def saw(self, version: int) -> None:
        """Tells the others."""
        if version <= self.seen():
            return
        fcntl.flock(self.file, fcntl.LOCK_EX)
        self.words[SEEN] = max(version, self.seen())
        fcntl.flock(self.file, fcntl.LOCK_UN)


class Reader:
    """One process: reads until the goal is seen or its standard input ends."""

    def __init__(self, folder: str, name: str, shared: Path, devices: list[str], seed: int) -> None:
        self.folder, self.name, self.devices = folder, name, devices
        self.shared = Shared(shared)
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.connection: cw.Connection | None = None

    def read(self, device: str | None, timeout: float | None) -> None:
        """One get; what was seen before it began is not later."""
        before = self.shared.seen()
        kind = f"{device or 'get'}{'' if timeout is None else ' waits'}"
        try:
            found = version_of(cw.get(self.name, device=device, timeout=timeout))
        except (cw.NameNotFound, cw.Timeout, cw.RemoteError, cw.DeviceError, cw.LimitExceeded):
            self.counts["told"] += 1
            time.sleep(0.001)
            return
        if found < before:
            raise Wrong(f"{kind}: version {found} after somebody had seen {before}")
        self.counts[kind] += 1
        self.shared.saw(found)

    def one(self) -> None:
        """A get of a random kind; some in a row of the quick ones."""
        device = self.chance.choice([None, None, None, *self.devices])
        timeout = self.chance.choice([None, None, 0.0, 0.3])
        if self.chance.random() < 0.05:
            with contextlib.suppress(cw.Timeout, cw.NameNotFound, cw.RemoteError):
                cw.wait(self.name, timeout=0.2)
            with contextlib.suppress(cw.RemoteError):
                cw.names(self.name)
            self.counts["names"] += 1
        for _ in range(self.chance.choice([1, 5, 200]) if device is None else 1):
            self.read(device, timeout)

    def connect(self) -> None:
        """To the broker that there is, as soon as there is one."""
        if self.connection:
            self.connection.close()  # what it has of GPUs' memory is nobody else's before
        while True:
            try:
                self.connection = cw.connect(self.folder)
                return
            except cw.Error:
                time.sleep(0.005)

    def run(self) -> None:
        """Until its standard input ends."""
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        self.connect()
        print("ready", flush=True)
        while not ended.is_set():
            faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True)
            try:
                self.one()
            except cw.BrokerLost:
                self.counts["lost"] += 1
                self.connect()
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(self.counts))


class Writer:
    """Puts one version after another at the owner, until its standard input ends."""

    def __init__(self, folder: str, name: str, shared: Path, seed: int) -> None:
        self.folder, self.name = folder, name
        self.shared = Shared(shared)
        self.chance = random.Random(seed)

    def run(self) -> None:
        """A put that failed may have been done: the next version is another."""
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        version, connected = 0, False
        while not ended.is_set():
            version += 1
            shape = (version, self.chance.choice([0, 1, 1, 2]))
            try:
                if not connected:
                    cw.connect(self.folder)
                    connected = True
                cw.put(self.name, np.full(shape, version % 251, "u1"), keep=True)
                self.shared.words[PUT] = version
                if version == 1:
                    print("ready", flush=True)
            except cw.Error:
                connected = False
                time.sleep(0.005)
            if self.chance.random() < 0.3:
                time.sleep(self.chance.choice([0.0002, 0.002, 0.02]))
        print(json.dumps({"puts": version}))


# ---- the storm


@dataclass
class Storm:
    """a reads of b, through a proxy."""

    a: Node
    b: Node
    proxy: Proxy
    shared: Path
    devices: list[str]
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)
    wrongs: Counter[str] = field(default_factory=Counter)

    def _start(self, node: Node, *words: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [sys.executable, __file__, *words, str(self.chance.randrange(1 << 30))],
            env={**node.environment, "CABLEWAY_BROKER": "/bin/false"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert started.stdout is not None and started.stdout.readline() == "ready\n"
        return started

    @contextlib.contextmanager
    def readers(self, count: int) -> Iterator[None]:
        """A writer at b and so many readers at a in the block. None may have seen anything go back."""
        shared, devices = str(self.shared), json.dumps(self.devices)
        running = [self._start(self.b, "writer", str(self.b.folder), NAME, shared)]
        try:
            for _ in range(count):
                words = ["reader", str(self.a.folder), f"//b/{NAME}", shared, devices]
                running.append(self._start(self.a, *words))
            yield
        finally:
            told = [one.communicate() for one in running]
        for one, (out, errors) in zip(running, told, strict=True):
            assert one.returncode == 0, (
                f"{errors}\n{self.a.said()[-2000:]}\n{self.b.said()[-2000:]}"
            )
            self.done.update(json.loads(out))

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if pid:
                os.kill(pid, number)

    def cut(self) -> None:
        """The link."""
        self.proxy.cut()

    def kill_bridge(self, node: Node) -> None:
        """The broker starts another."""
        self._signal(node.bridge_pid(), signal.SIGKILL)

    def kill_broker(self, node: Node) -> None:
        """Another is there at once, with a bridge that answers: if that ended before the broker knows that it listens, as
        it says in the log somewhat earlier, both would."""
        assert node.process is not None
        node.process.kill()
        node.process.wait()
        node.process = None
        node.start()
        node.command("peers")

    def stop(self, pid: int) -> None:
        """For a moment."""
        self._signal(pid, signal.SIGSTOP)
        time.sleep(self.chance.uniform(0, self.chance.choice([0.02, 0.2, STOPPED_SECONDS])))
        self._signal(pid, signal.SIGCONT)

    def one(self) -> None:
        """One thing that goes wrong."""
        node = self.chance.choice([self.a, self.a, self.b])
        assert node.process is not None
        broker = node.process.pid
        ways: list[tuple[str, Callable[[], None]]] = [
            ("cut", self.cut),
            ("cut", self.cut),
            ("bridge killed", lambda: self.kill_bridge(node)),
            ("broker killed", lambda: self.kill_broker(node)),
            ("bridge stopped", lambda: self.stop(node.bridge_pid())),
            ("broker stopped", lambda: self.stop(broker)),
        ]
        what, do = self.chance.choice(ways)
        do()
        self.wrongs[what] += 1

    def run(self, seconds: float, wrongs: int) -> None:
        """For so long, and until so many things went wrong; then what was put last is read."""
        until = time.monotonic() + seconds
        words = Shared(self.shared).words
        while time.monotonic() < until or self.wrongs.total() < wrongs:
            time.sleep(self.chance.choice([0.01, 0.1, 0.4]))
            self.one()
        put = int(words[PUT])
        assert eventually(lambda: int(words[SEEN]) >= put, 60), self.a.said()[-3000:]


if __name__ == "__main__":
    KIND, *WORDS = sys.argv[1:]
    if KIND == "writer":
        Writer(WORDS[0], WORDS[1], Path(WORDS[2]), int(WORDS[3])).run()
    else:
        Reader(WORDS[0], WORDS[1], Path(WORDS[2]), json.loads(WORDS[3]), int(WORDS[4])).run()
