"""A storm of cuts: two nodes work with each other's names while what joins them is cut, stopped and killed at random.

Workers are processes, clients of one node, who put, get, wait for, list and remove arrays of the other node; each alone
writes its own names, so it knows what they may hold. `storm` cuts: it ends connections in the proxy between the nodes,
also at a byte of the next one, changes a byte, stops a bridge for a moment, and (kills) kills one.

What is promised: an array holds what was put, whole, whatever version it is; what was told to be done is done; what
failed was done or not, and never half; nobody hangs. `Account` looks whether all came back afterwards.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

import numpy as np
from bridge_proxy import FROM, TO, Proxy
from bridge_support import KEPT_BY_SANITIZER, Node
from waiting import eventually

import cableway as cw

HUNG_SECONDS = 90  # a call is told within 15 s, README; the machine may be slow
# Frees of a few buffers that glibc keeps, in each of the arenas of 7 threads.
HEAP_KIB = 24_000 + KEPT_BY_SANITIZER // 1024
NAMES = 4  # of a worker
MUST = ("put", "get", "look", "remove")
HEAD = np.dtype([("writer", "<u4"), ("version", "<u4"), ("size", "<u8")])
LARGEST = 3_000_000
BASE = np.random.default_rng(6).integers(0, 256, 2 * LARGEST, dtype=np.uint8)

# ---- arrays that say what they must hold


def contents(writer: int, version: int, size: int) -> np.ndarray:
    """The bytes of a version: they tell which it is, and each byte follows from that."""
    begin = (writer * 7919 + version * 104_729) % LARGEST
    made = BASE[begin : begin + size].copy()
    head = np.array([(writer, version, size)], HEAD).view(np.uint8)
    made[: HEAD.itemsize] = head[:size]
    return made


def version_of(found: np.ndarray, writer: int) -> int:
    """Which version of a writer an array is, whole; raises Wrong when it is none."""
    if found.dtype != np.uint8 or found.ndim != 1 or found.size < HEAD.itemsize:
        raise Wrong(f"an array of shape {found.shape} and dtype {found.dtype}")
    head = found[: HEAD.itemsize].copy().view(HEAD)[0]
    if int(head["writer"]) != writer or int(head["size"]) != found.size:
        raise Wrong(f"the head {head} in {found.size} bytes of writer {writer}")
    version = int(head["version"])
    wrong = np.flatnonzero(found != contents(writer, version, found.size))
    if wrong.size:
        raise Wrong(f"{wrong.size} of {found.size} bytes of {writer}/{version} from {wrong[0]} on")
    return version


class Wrong(AssertionError):
    """What must never be."""


# ---- a worker


class Worker:
    """Works with the names of another node, and its own there, until its standard input ends."""

    def __init__(self, number: int, node: str, others: list[int], seed: int) -> None:
        self.number, self.node, self.others = number, node, others
        self.chance = random.Random(seed)
        self.version = 0
        # What each of its names may hold: versions, None for nothing. More than one after an error.
        self.may: dict[int, set[int | None]] = {k: {None} for k in range(NAMES)}
        self.counts: Counter[str] = Counter()

    def name(self, k: int, writer: int | None = None) -> str:
        """One of a worker's names, where it writes them."""
        return f"//{self.node}/w{self.number if writer is None else writer}/{k}"

    def size(self) -> int:
        """Of all kinds: what goes inside a frame, one chunk, many."""
        top = self.chance.choice([100, 17_000, 300_000, LARGEST])
        return self.chance.randrange(HEAD.itemsize, top)

    def put(self) -> None:
        """A new version under one of its names."""
        k = self.chance.randrange(NAMES)
        self.version += 1
        self.may[k].add(self.version)
        cw.put(self.name(k), contents(self.number, self.version, self.size()))
        self.may[k] = {self.version}

    def found(self, k: int) -> int | None:
        """The version that one of its names has now; None when it is not there."""
        with contextlib.suppress(cw.NameNotFound):
            return version_of(cw.get(self.name(k)).numpy(), self.number)
        return None

    def get(self) -> None:
        """One of its names: what it may hold, at once, since it alone writes it."""
        k = self.chance.randrange(NAMES)
        found = self.found(k)
        if found not in self.may[k]:
            raise Wrong(f"{self.name(k)} is version {found}, and may be {self.may[k]}")

    def look(self) -> None:
        """A name of another worker: any version of it, whole."""
        writer = self.chance.choice(self.others)
        with contextlib.suppress(cw.NameNotFound):
            name = self.name(self.chance.randrange(NAMES), writer)
            version_of(cw.get(name).numpy(), writer)

    def wait(self) -> None:
        """Waits a little for a name of another worker."""
        writer = self.chance.choice(self.others)
        with contextlib.suppress(cw.Timeout, cw.NameNotFound):
            name = self.name(self.chance.randrange(NAMES), writer)
            version_of(cw.get(name, timeout=0.3).numpy(), writer)

    def remove(self) -> None:
        """Removes one of its names."""
        k = self.chance.randrange(NAMES)
        self.may[k].add(None)
        try:
            cw.remove(self.name(k))
        except cw.NameNotFound:
            if None not in self.may[k]:
                raise Wrong(f"{self.name(k)} was not there, and may be {self.may[k]}") from None
        self.may[k] = {None}

    def names(self) -> None:
        """All its names that must be there are listed, and none that must not."""
        listed = set(cw.names(f"//{self.node}/w{self.number}/"))
        for k, may in self.may.items():
            if len(may) == 1 and (None in may) == (f"w{self.number}/{k}" in listed):
                raise Wrong(f"{self.name(k)} may be {may}, and listed are {listed}")

    def check(self) -> None:
        """At the end: each name holds what it may."""
        for k, may in self.may.items():
            found = self.found(k)
            if found not in may:
                raise Wrong(f"{self.name(k)} ends as version {found}, and may be {may}")

    def run(self) -> None:
        """Works until told to end, and until it has done something of each kind; then checks and removes all."""
        ended = threading.Event()
        threading.Thread(
            target=lambda: (sys.stdin.read(), ended.set()), daemon=True
        ).start()  # the end of its standard input
        works = (
            [self.put] * 4 + [self.get] * 4 + [self.look] * 3 + [self.wait, self.remove, self.names]
        )
        print("ready", flush=True)
        while not ended.is_set() or not all(self.counts[kind] for kind in MUST):
            work = self.chance.choice(works)
            faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True)
            try:
                work()
                self.counts[work.__name__] += 1
            except cw.RemoteError:
                self.counts["told"] += 1
                time.sleep(0.002)  # a node without a way to the other is told at once
        faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True)
        self.check()
        for k in range(NAMES):
            with contextlib.suppress(cw.NameNotFound):
                cw.remove(self.name(k))
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(self.counts))


# ---- the storm


@dataclass
class Storm:
    """Two nodes with a proxy between them; b does not dial."""

    a: Node
    b: Node
    proxy: Proxy
    chance: random.Random
    cuts: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)  # by all workers

    @contextlib.contextmanager
    def workers(self, pairs: int) -> Iterator[None]:
        """So many workers at each node in the block. At its end all must have found what they may."""
        numbers = {"a": range(1, 1 + pairs), "b": range(101, 101 + pairs)}
        running = []
        for here, there in ((self.a, "b"), (self.b, "a")):
            for number in numbers[here.name]:
                others = list(numbers[here.name])
                words = [
                    str(number),
                    there,
                    json.dumps(others),
                    str(self.chance.randrange(1 << 30)),
                ]
                running.append(
                    subprocess.Popen(
                        [sys.executable, __file__, *words],
                        env=here.environment,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )  # fmt: skip
                )
        try:
            for worker in running:
                assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
            yield
            assert eventually(lambda: self.a.sees(self.b)), self.a.said()[-3000:]
        finally:
            told = [worker.communicate() for worker in running]
        for worker, (out, errors) in zip(running, told, strict=True):
            assert worker.returncode == 0, (
                f"{errors}\n{self.a.said()[-2000:]}\n{self.b.said()[-2000:]}"
            )
            self.done.update(json.loads(out))

    def pause(self) -> None:
        """A moment of random length: some cuts hit a handshake, some a transfer well under way."""
        time.sleep(self.chance.uniform(0, self.chance.choice([0.003, 0.02, 0.1])))

    def one(self, kills: bool) -> None:
        """One thing that goes wrong, at a random point of what is under way."""
        proxy, kind = self.proxy, self.chance.random()
        way = self.chance.choice([TO, FROM])
        if kind < 0.60:
            self.cuts["cut"] += proxy.cut()
        elif kind < 0.85:  # the next connection, at a byte
            proxy.cut_at = (way, self.chance.randrange(1, self.chance.choice([8_000, 1_500_000])))
            self.cuts["cut"] += proxy.cut()
        elif kind < 0.90:
            proxy.flip_at = (way, self.chance.randrange(1, 400_000))
            self.cuts["cut"] += proxy.cut()
        elif kind < 0.97 or not kills:
            with contextlib.suppress(ProcessLookupError):
                self._stop_for_a_moment(self.chance.choice([self.a, self.b]))
        else:
            node = self.chance.choice([self.a, self.b])
            if pid := node.bridge_pid():
                os.kill(pid, signal.SIGKILL)
                self.cuts["kill"] += 1
                assert eventually(lambda: node.bridge_pid() not in (0, pid), 60), node.said()[
                    -3000:
                ]

    def _stop_for_a_moment(self, node: Node) -> None:
        pid = node.bridge_pid()
        os.kill(pid, signal.SIGSTOP)
        self.cuts["stop"] += 1
        try:
            self.pause()
        finally:
            os.kill(pid, signal.SIGCONT)

    def run(self, cuts: int, kills: bool) -> None:
        """Goes on until so many connections were cut, stops not counted."""
        before = self.total()
        while self.total() - before < cuts:
            self.pause()
            self.one(kills)
        self.proxy.cut_at = self.proxy.flip_at = None

    def renew(self) -> None:
        """Both bridges are killed, so that they begin again with nothing, and connected."""
        for node in (self.a, self.b):
            pid = node.bridge_pid()
            os.kill(pid, signal.SIGKILL)
            assert eventually(lambda: node.bridge_pid() not in (0, pid), 60), node.said()[-3000:]  # noqa: B023
        assert eventually(lambda: self.a.sees(self.b) and self.b.sees(self.a), 60), self.a.said()[
            -3000:
        ]

    def grown(self, before: Account) -> list[str]:
        """What the bridges, the same as before, have taken since; their memory for arrays stays theirs to use again."""
        found = Account.of(self.a, self.b).processes_beyond(before)
        return [line for line in found if "bridge" in line]

    def total(self) -> int:
        """How many cuts there were: in the proxy, at bytes too, and by kills."""
        return self.cuts["cut"] + self.cuts["kill"] + self.proxy.cuts


# ---- what must be as before


@dataclass
class Account:
    """What both nodes hold: the gauges of their brokers, and what their processes take."""

    gauges: dict[str, dict[str, int]]
    fds: dict[str, int]
    threads: dict[str, int]
    private: dict[str, int]  # KiB of memory that no other process shares

    @classmethod
    def of(cls, *nodes: Node) -> Account:
        """As it is now."""
        made = cls({}, {}, {}, {})
        for node in nodes:
            now = json.loads(node.command("status", "--json").stdout)["gauges"]
            made.gauges[node.name] = {key: int(now[key]) for key in now}
            assert node.process is not None
            for what, pid in (("broker", node.process.pid), ("bridge", node.bridge_pid())):
                key = f"{node.name}'s {what}"
                status = Path(f"/proc/{pid}/status").read_text()
                made.fds[key] = len(os.listdir(f"/proc/{pid}/fd"))
                threads = int(status.split("Threads:")[1].split()[0])
                # A broker's second thread is made when there is something to close.
                made.threads[key] = max(threads, 2) if what == "broker" else threads
                made.private[key] = int(status.split("RssAnon:")[1].split()[0])
        return made

    def processes_beyond(self, before: Account) -> list[str]:
        """Descriptors and threads that are not as before; memory may have grown by what a heap keeps."""
        found = []
        for what in self.fds:
            if (self.fds[what], self.threads[what]) != (before.fds[what], before.threads[what]):
                found.append(
                    f"{what}: {before.fds[what]} descriptors and {before.threads[what]} threads, now"
                    f" {self.fds[what]} and {self.threads[what]}"
                )
            if self.private[what] > before.private[what] + HEAP_KIB:
                found.append(f"{what}: {before.private[what]} KiB, now {self.private[what]}")
        return found

    def beyond(self, before: Account) -> list[str]:
        """What is not as it was before, the brokers' gauges too."""
        return self.processes_beyond(before) + [
            f"{node}: {key} {before.gauges[node][key]}, now {value}"
            for node, now in self.gauges.items()
            for key, value in now.items()
            if value != before.gauges[node][key]
        ]


if __name__ == "__main__":
    Worker(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])).run()
