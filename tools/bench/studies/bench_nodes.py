"""Many real nodes on one machine: each a broker and a bridge, on an address of its own in 127.0.0.0/8.

    make nodes1000                            # 1,000 of them
    make nodes1000 NODES='--nodes 100'        # fewer
    make nodes1000 NODES='--nodes 500 --memory-gib 4 --idle 30'

Their keys and peers are those of one SLURM job (`cableway peers from-slurm`), with addresses in place of host names. What
is measured: memory (Pss, so that what processes share counts once) and CPU of all brokers and bridges while nothing is
asked; how long it takes until every node has read an array of one node at once (the storm: all dial the same one); how
many links there are then, and after nobody has used them. Then each node gets a sealed array of 1 MiB of one node, and so much
the most sent that any of them sent; and another one, while a tenth of them is killed, after which the living still reach each
other. No node has a link that it does not use. It takes no more than --memory-gib: if the first 20 nodes say
that all would take more, fewer are made, which the table says. A figure that misses is no error; a node that cannot be
reached is.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cableway._core import programs

PORT = 7400
LINK_IDLE = 5  # seconds, so that the run need not wait for a minute
SAMPLE = 20  # nodes that are made before it is known how many there may be
ROOM_KIB = 4 << 10  # of memory, taken for each node that is to come, at least


def address_of(number: int) -> str:
    """Of a node, by its number from 1 on."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


def name_of(number: int) -> str:
    """The same."""
    return f"n{number:04}"


class Cluster:
    """A SLURM job's nodes, without SLURM."""

    def __init__(self, root: Path, most: int) -> None:
        self.root = root
        self.brokers: dict[int, subprocess.Popen[bytes]] = {}
        begun = time.monotonic()
        self.run(1, "peers", "from-slurm", "--read", "*", "--write", "*", most=most)
        self.made_seconds = time.monotonic() - begun
        peers = next(root.glob(".config/cableway/job-*/peers"))
        files = [file for file in peers.parent.rglob("*") if file.is_file()]
        self.files, self.bytes = len(files), sum(file.stat().st_size for file in files)
        text = re.sub(
            r"= n(\d+):7400",
            lambda found: f"= {address_of(int(found[1]))}:{PORT}",
            peers.read_text(),
        )
        peers.write_text(text)

    def environment(self, number: int, most: int = 2) -> dict[str, str]:
        """Of whatever runs on a node."""
        ours = ("SLURM", "CABLEWAY", "XDG")
        plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {
            **plain,
            "HOME": str(self.root),
            "CABLEWAY_DIR": str(self.root / name_of(number)),
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NODELIST": f"n[0001-{most:04}]",
            "SLURMD_NODENAME": name_of(number),
        }

    def run(self, number: int, *words: str, most: int = 2) -> str:
        """Runs the command on a node, and returns what it said; raises CalledProcessError."""
        done = subprocess.run(
            [programs.path("cableway"), *words], env=self.environment(number, most),
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"node {name_of(number)}: {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def begin(self, number: int) -> None:
        """Starts a node."""
        folder = self.root / name_of(number)
        folder.mkdir(mode=0o700)
        with (folder / "log").open("wb") as log:
            self.brokers[number] = subprocess.Popen(
                [programs.path("cablewayd"), "--foreground", "--link-idle", str(LINK_IDLE),
                 "--listen", f"{address_of(number)}:{PORT}"],
                env=self.environment(number), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def await_start(self, number: int) -> None:
        """Until it listens."""
        log = self.root / name_of(number) / "log"
        until = time.monotonic() + 120
        while "listens at 127." not in log.read_text():
            if time.monotonic() > until or self.brokers[number].poll() is not None:
                raise RuntimeError(f"node {name_of(number)} did not start: {log.read_text()}")
            time.sleep(0.02)

    def start(self, numbers: range) -> None:
        """Starts nodes, some at a time."""
        for first in range(numbers.start, numbers.stop, SAMPLE):
            some = range(first, min(first + SAMPLE, numbers.stop))
            for number in some:
                self.begin(number)
            for number in some:
                self.await_start(number)

    def pids(self) -> list[int]:
        """All brokers and bridges that live."""
        brokers = {broker.pid for broker in self.brokers.values() if broker.poll() is None}
        found = list(brokers)
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                if entry.name.isdigit():
                    stat = (entry / "stat").read_text()
                    if int(stat[stat.rindex(")") + 2 :].split()[1]) in brokers:
                        found.append(int(entry.name))
        return found

    def close(self) -> None:
        """Ends all."""
        for broker in self.brokers.values():
            broker.terminate()
        for broker in self.brokers.values():
            try:
                broker.wait(60)
            except subprocess.TimeoutExpired:
                broker.kill()
                broker.wait()


def memory_kib(pids: list[int]) -> int:
    """What they take together."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
            total += int(found[1]) if found else 0
    return total


def cpu_seconds(pids: list[int]) -> float:
    """What all their threads have used together, as the scheduler counts it (ns)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def links() -> int:
    """Connections between nodes now."""
    ends = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # Addresses stand in the machine's byte order: 127.1.x.y ends with 017F.
    return sum(
        fields[3] == "01"
        and fields[1][4:8] == "017F"
        and int(fields[1][9:], 16) == PORT
        for fields in ends
    )  # fmt: skip


def row(what: str, value: str) -> None:
    """One line of the table."""
    print(f"{what:58} {value}", flush=True)


def together(numbers: list[int], act: object, at_once: int = 16) -> float:
    """Does it for each node, some at once; returns the seconds."""
    begun = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(act, numbers))  # type: ignore[arg-type]
    return time.monotonic() - begun


class Sent:
    """How many bytes each node has sent over the connections that it accepted, looked at twice a second."""

    def __init__(self) -> None:
        self.bytes: dict[tuple[str, str], int] = {}
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _look(self) -> None:
        told = subprocess.run(
            ["ss", "-tinHO", "src", f":{PORT}"], capture_output=True, text=True, check=True
        )
        for line in told.stdout.splitlines():
            found = re.search(r"bytes_sent:(\d+)", line)
            _, _, _, here, there, *_ = line.split()
            if found:
                self.bytes[here, there] = int(found[1])

    def _run(self) -> None:
        while not self.over.wait(0.5):
            self._look()

    def __enter__(self) -> Sent:
        self._look()
        self.before = dict(self.bytes)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self._look()

    def times(self, nbytes: int) -> list[tuple[int, float]]:
        """To how many others each node sent so many bytes, the most first, and how much it sent in all, as a multiple of them."""
        total: dict[str, int] = {}
        whole: dict[str, int] = {}
        for (here, there), sent in self.bytes.items():
            more = sent - self.before.get((here, there), 0)
            total[here] = total.get(here, 0) + more
            whole[here] = whole.get(here, 0) + (more >= nbytes)
        return sorted(((whole[here], sent / nbytes) for here, sent in total.items()), reverse=True)


PUT = """
import sys, numpy as np, cableway as cw
cw.put(sys.argv[1], np.random.default_rng(len(sys.argv[1])).integers(0, 256, 1 << 20, np.uint8), keep=True, seal=True)
"""


def to_all(cluster: Cluster, name: str, others: list[int], dead: list[int], at_once: int) -> None:
    """A sealed array of 1 MiB from the first node to all others; some of these are killed meanwhile."""
    subprocess.run(
        [sys.executable, "-c", PUT, name], env={**cluster.environment(1), "PYTHONPATH": os.pathsep.join(sys.path)}, check=True
    )  # fmt: skip
    cluster.run(1, "get", name, str(cluster.root / "original.npy"))
    original = (cluster.root / "original.npy").read_bytes()
    chance = random.Random(8)
    killed: set[int] = set()
    due = dict(
        zip(chance.sample(others, len(dead)), dead, strict=True)
    )  # who dies before who reads

    def read(number: int) -> None:
        if number in due:
            killed.add(due[number])
            cluster.brokers[due[number]].send_signal(signal.SIGKILL)
        if number in killed:  # a command would start a broker there
            return
        file = cluster.root / f"{name_of(number)}.npy"
        try:
            cluster.run(number, "get", f"//n0001/{name}", str(file))
        except RuntimeError:
            if number in killed:
                return
            raise
        if file.read_bytes() != original:
            raise RuntimeError(f"node {name_of(number)} has other bytes of {name}")
        file.unlink()

    with Sent() as sent:
        seconds = together(others, read, at_once)
    times = sent.times(1 << 20)
    row(
        f"1 MiB to all{f', {len(dead)} killed meanwhile' if dead else ''}",
        f"{seconds:.1f} s, {1e3 * seconds / len(others):.1f} ms each",
    )
    row(
        "  one node sent it to at most; nodes that sent it",
        f"{times[0][0]} others ({times[0][1]:.2f} times 1 MiB with handshakes); {sum(found > 0 for found, _ in times)}",
    )
    row("  links then", str(links()))


def measure(cluster: Cluster, options: argparse.Namespace) -> None:
    """All of it."""
    row(
        "peers from-slurm",
        f"{cluster.made_seconds:.1f} s, {cluster.files:,} files, {cluster.bytes / 1e6:.2f} MB",
    )
    begun = time.monotonic()
    cluster.start(range(1, SAMPLE + 1))
    each = max(memory_kib(cluster.pids()) / SAMPLE, ROOM_KIB)
    count = min(options.nodes, int(options.memory_gib * (1 << 20) / each))
    cluster.start(range(SAMPLE + 1, count + 1))
    fewer = (
        ""
        if count == options.nodes
        else f" (not {options.nodes}: --memory-gib {options.memory_gib:g})"
    )
    row("nodes", f"{count}{fewer}, started in {time.monotonic() - begun:.0f} s")
    pids = cluster.pids()
    kib = memory_kib(pids)
    row(
        "processes; memory, idle",
        f"{len(pids)}; {kib / (1 << 20):.2f} GiB, {kib / 1024 / count:.2f} MiB a node",
    )
    time.sleep(5)
    before, since = cpu_seconds(pids), time.monotonic()
    time.sleep(options.idle)
    used = (cpu_seconds(pids) - before) / (time.monotonic() - since)
    row(
        f"CPU while nothing is asked ({options.idle:g} s)",
        f"{100 * used:.1f} % of a core, {1e6 * used / count:.0f} us/s a node",
    )
    row("links before anything was asked", str(links()))

    array = cluster.root / "array.npy"
    import numpy as np  # noqa: PLC0415

    np.save(array, np.arange(1 << 17))  # 1 MiB
    cluster.run(1, "put", "--keep", "all", str(array))
    others = list(range(2, count + 1))
    seconds = together(
        others, lambda number: cluster.run(number, "stat", "//n0001/all"), options.at_once
    )
    row(
        f"each node asks one, {options.at_once} at once (handshakes)",
        f"{seconds:.1f} s, {1e3 * seconds / len(others):.1f} ms each",
    )
    row("links then", str(links()))
    until = time.monotonic() + 60
    while links() and time.monotonic() < until:
        time.sleep(0.5)
    row(f"links when nobody used them for {LINK_IDLE} s", str(links()))
    kib = memory_kib(pids)
    row("memory then", f"{kib / (1 << 20):.2f} GiB")

    to_all(cluster, "first", others, [], options.at_once)
    dead = random.Random(7).sample(others, count // 10)
    alive = [number for number in range(1, count + 1) if number not in dead]
    to_all(cluster, "second", others, dead, options.at_once)
    pairs = dict(zip(alive, alive[1:] + alive[:1], strict=True))
    seconds = together(
        alive,
        lambda number: cluster.run(number, "ls", f"//{name_of(pairs[number])}/"),
        options.at_once,
    )
    row(
        f"{len(dead)} killed: each of the others asks its next one",
        f"{seconds:.1f} s, all were answered",
    )


def options() -> argparse.Namespace:
    """The command line's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--memory-gib", type=float, default=8)
    parser.add_argument("--idle", type=float, default=20, help="seconds in which CPU is counted")
    parser.add_argument("--at-once", type=int, default=16, help="commands at once")
    return parser.parse_args()


@contextlib.contextmanager
def cluster_of(most: int) -> Iterator[Cluster]:
    """Ended, and its files removed, whatever happens."""
    root = Path(tempfile.mkdtemp(prefix="cwnodes-"))
    cluster = Cluster(root, most)
    try:
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(root, ignore_errors=True)


def main() -> int:
    """The figures, on standard output."""
    given = options()
    if given.nodes < SAMPLE:
        sys.exit(f"--nodes {given.nodes}: it is {SAMPLE} or more")
    with cluster_of(given.nodes) as cluster:
        measure(cluster, given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
