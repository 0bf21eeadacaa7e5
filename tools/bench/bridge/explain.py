"""Where the time of large arrays over the bridge goes: rates by streams and size, and what each thread of both nodes did.

From one GPU to another, and from host memory to host memory beside it, over as many streams as OpenSSL's loop has
threads. A thread's line tells how busy it was while arrays were under way: one that is busy all the time is what bounds
the rate, and if none is, they wait for each other.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from bridge.nodes import Nodes, Owner, areas, nodes, random_bytes
from bridge.rivals import Loop, closing
from measure import MIB, TICKS, family

import cableway as cw

ROUNDS = 4
PAUSE_S = 0.5  # after so long movers have let go of what they keep between jobs


@dataclass
class Thread:
    """What one has used so far."""

    name: str
    run: float = 0.0  # seconds on a core
    queued: float = 0.0  # seconds ready, without one
    sleeps: int = 0

    def since(self, before: Thread) -> Thread:
        """The difference."""
        return Thread(self.name, self.run - before.run, self.queued - before.queued, self.sleeps - before.sleeps)  # fmt: skip


def _thread(task: Path, process: str) -> Thread:
    name = (task / "comm").read_text().strip()
    fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
    thread = Thread(f"{process}/{name}", (int(fields[11]) + int(fields[12])) / TICKS)
    with contextlib.suppress(OSError, ValueError):  # nanoseconds, where the kernel counts them
        run, queued, _ = (int(word) for word in (task / "schedstat").read_text().split())
        thread.run, thread.queued = run / 1e9, queued / 1e9
    for line in (task / "status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches"):
            thread.sleeps = int(line.split()[1])
    return thread


def threads(made: Nodes) -> dict[tuple[int, str], Thread]:
    """All threads of brokers, bridges and movers, by number."""
    found = {}
    for node, broker in zip(made.ports, made.brokers, strict=True):
        for pid in family(broker.pid):
            with contextlib.suppress(OSError):
                process = f"{node} {Path(f'/proc/{pid}/comm').read_text().strip()}"
                for task in Path(f"/proc/{pid}/task").iterdir():
                    with contextlib.suppress(OSError):
                        found[pid, task.name] = _thread(task, process)
    return found


class Way:
    """Gets of new names over the bridge, from one kind of memory to the same."""

    def __init__(self, made: Nodes, owner: Owner, size: int, device: str) -> None:
        self.made, self.owner, self.size, self.device = made, owner, size, device
        self.next = 0
        self.times: list[float] = []
        self.used: dict[tuple[int, str], Thread] = {}
        owner.make(size, device="cpu" if device == "cpu" else "cuda:0")

    def get(self, check: bool = False, count: bool = True) -> float:
        """Seconds until it is here; check: whether it is what was sent."""
        self.next += 1
        name, number = f"new/{self.size}/{self.device}/{self.next}", self.next % areas(self.size)
        self.owner.name(self.size, number, name)
        before = threads(self.made) if count else {}
        begun = time.perf_counter()
        array = cw.get(f"//b/{name}", device=self.device)
        took = time.perf_counter() - begun
        after = threads(self.made) if count else {}
        with array:
            got = (
                array.numpy()
                if self.device == "cpu"
                else array.to("cpu").numpy()
                if check
                else None
            )
            if check and not (got == random_bytes(self.size, number)).all():
                raise RuntimeError("wrong bytes")
        self.owner.remove(name)
        if count:
            self.times.append(took)
            for key, thread in after.items():
                gone = thread.since(before.get(key, Thread(thread.name)))
                so_far = self.used.get(key, Thread(thread.name))
                self.used[key] = Thread(thread.name, so_far.run + gone.run, so_far.queued + gone.queued,
                                        so_far.sleeps + gone.sleeps)  # fmt: skip
        return took

    def rate(self) -> float:
        """GB/s, the median."""
        return self.size / statistics.median(self.times) / 1e9

    def lines(self) -> list[str]:
        """What threads did, those together that have one name; who hardly worked is left out."""
        groups: dict[str, list[Thread]] = defaultdict(list)
        for thread in self.used.values():
            groups[thread.name].append(thread)
        elapsed, gigabytes = sum(self.times), self.size * len(self.times) / 1e9
        found = []
        for name, group in sorted(groups.items()):
            run = sum(thread.run for thread in group)
            if run < 0.01 * elapsed:
                continue
            found.append(
                f"    {name} x{len(group)}: {run / gigabytes:.3f} s/GB, busiest "
                f"{100 * max(thread.run for thread in group) / elapsed:.0f} %, least "
                f"{100 * min(thread.run for thread in group) / elapsed:.0f} %, queued "
                f"{sum(thread.queued for thread in group) / gigabytes:.3f} s/GB, "
                f"{sum(thread.sleeps for thread in group) / gigabytes:.0f} sleeps/GB"
            )
        return found


def _one(
    made: Nodes, owner: Owner, size: int, streams: int, device: str, loops: list[Loop]
) -> None:
    gpu, host = Way(made, owner, size, device), None
    gpu.get(check=True, count=False)  # the first makes contexts, streams and rings
    gpu.get(count=False)
    for _ in range(ROUNDS):
        gpu.get()
    last = list(gpu.times)
    rested = []
    for _ in range(2):
        time.sleep(PAUSE_S)
        rested.append(gpu.get(count=False))
    owner.drop(size)
    host = Way(made, owner, size, "cpu")
    host.get(check=True, count=False)
    for _ in range(ROUNDS):
        host.get()
    owner.drop(size)
    for loop in loops:
        loop.ready(size)
    rates = {
        loop.name: size / statistics.median([loop.sample(turn)[0] for turn in range(ROUNDS)]) / 1e9
        for loop in loops
    }
    words = "".join(f", {name} {rate:.2f}" for name, rate in rates.items())
    tls = next(iter(rates.values()), 0.0)
    share = f"; of OpenSSL's {gpu.rate() / tls:.2f} and {host.rate() / tls:.2f}" if tls else ""
    print(
        f"{streams} streams, {size // MIB} MiB: GPU to GPU {gpu.rate():.2f} GB/s, host to host {host.rate():.2f}{words}{share}"
    )
    print(f"    GPU to GPU, ms: in a row {' '.join(f'{1000 * took:.1f}' for took in last)};"
          f" after {PAUSE_S} s of rest {' '.join(f'{1000 * took:.1f}' for took in rested)}")  # fmt: skip
    for kind, way in (("GPU to GPU", gpu), ("host to host", host)):
        print(f"  {kind}:")
        print("\n".join(way.lines()), flush=True)


def explain(build: Path, counts: list[int], sizes: list[int]) -> None:
    """Prints all; at the last count all sizes, at the others the middle one."""
    begun = time.monotonic()
    last = len([device for device in cw.devices() if device.startswith("cuda:")]) - 1
    for streams in counts:
        here = sizes if streams == counts[-1] else sizes[len(sizes) // 2 : len(sizes) // 2 + 1]
        with nodes(build, "a", "b", streams=streams) as made, cw.connect(made.root / "a"):
            owner = Owner(made, "b")
            keys, loops = made.root / "a" / "node", []
            if (build / "tools/bench/programs/bench_tls").exists():
                loops = [Loop(build, keys, kind, streams, max(here)) for kind in ("tls", "plain")]
            with closing(list(loops)):
                for size in here:
                    _one(made, owner, size, streams, f"cuda:{last}", loops)
            owner.close()
    print(f"all of it took {time.monotonic() - begun:.0f} s")
