"""What the Python benchmarks share: rows, turns, CPU seconds and memory of processes, and a broker of their own.

A row is the median of its samples with p10 and p90, printed as one JSON line, as the C benchmarks do. Candidates take
turns within one run, since a machine's speed drifts; what is compared has waited, worked and been counted alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

MIB = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")


def report(
    bench: str, name: str, how: str, unit: str, samples: list[float], cpu: float | None = None
) -> None:
    """Prints one row; cpu: CPU seconds of all samples together."""
    tenths = statistics.quantiles(samples, n=10) if len(samples) > 1 else [samples[0]] * 9
    row = {
        "bench": bench,
        "name": name,
        "how": how,
        "unit": unit,
        "median": statistics.median(samples),
        "p10": min(max(tenths[0], min(samples)), max(samples)),
        "p90": max(min(tenths[8], max(samples)), min(samples)),
        "samples": len(samples),
        "cpu_seconds": cpu,
    }
    print(json.dumps(row), flush=True)


def skipped(bench: str, why: str) -> None:
    """Says what was not measured."""
    print(json.dumps({"bench": bench, "skipped": why}), flush=True)


# ---- processes


def family(first: int | None = None) -> list[int]:
    """A process (this one unless told otherwise) and everything that it started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    found = [first or os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def broker(folder: str | None = None) -> list[int]:
    """The pid of the broker of these measurements, once it runs."""
    found = []
    for lock in Path(folder or os.environ["CABLEWAY_DIR"]).glob("*.lock"):
        found += [int(word) for word in lock.read_text().split()[:1]]
    return found


def own_cpu() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_of(pids: Iterable[int]) -> float:
    """CPU seconds of these processes, of all their threads, and of children that they have waited for."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += time.clock_gettime(~pid << 3 | 2)  # its CPU clock, see clock_getcpuclockid(3)
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += (int(fields[13]) + int(fields[14])) / TICKS
    return total


class Used:
    """CPU seconds of this process and some others from now until `until_now`, without those of reading them."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._theirs = cpu_of(pids)
        self._own = own_cpu()

    def until_now(self) -> float:
        """Seconds."""
        own = own_cpu() - self._own
        return own + cpu_of(self._pids) - self._theirs


def all_cpu() -> float:
    """CPU seconds of this process, everything that it started, and the broker."""
    return cpu_of([*family(), *broker()])


def memory_of(pids: Iterable[int]) -> int:
    """Bytes that these processes take together: their own, their part of files, and shared memory as a whole.

    Pages that several processes map count once (PSS). Shared memory counts in full, mapped or not: every memfd that
    one of them holds, and joblib's folders of memory maps.
    """
    kibibytes = 0
    sealed: dict[object, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            found = {key: int(value) for key, value in re.findall(r"^(\w+): +(\d+) kB", text, re.M)}
            kibibytes += found["Pss"] - found["Pss_Shmem"]
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path).startswith("/memfd:"):
                        about = os.stat(entry.path)
                        sealed[about.st_ino] = about.st_blocks * 512
        for path in Path("/dev/shm").glob(f"joblib_memmapping_folder_{pid}_*/*"):
            with contextlib.suppress(OSError):
                sealed[path.stat().st_ino, path] = path.stat().st_blocks * 512
    return kibibytes * 1024 + sum(sealed.values())


class PeakMemory:
    """The most that a process and all below it took while the block ran, in bytes; `broker` counts with it."""

    def __init__(self, pid: int, folder: str) -> None:
        self.bytes = 0
        self._pid, self._folder = pid, folder
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._end.wait(0.02):
            now = memory_of([*family(self._pid), *broker(self._folder)])
            self.bytes = max(self.bytes, now)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


# ---- samples


def alternate(
    rounds: int,
    batch: int,
    candidates: list[tuple[str, Callable[[], None]]],
    meter: Callable[[], float] | dict[str, Callable[[], float]],
    pause: float = 0,
    warm: bool = True,
) -> dict[str, tuple[list[float], float]]:
    """Seconds of one call of each, in turn, after a pause; and the CPU seconds that its meter counts.

    The first call of each is not counted, unless warm is False.
    """
    found: dict[str, tuple[list[float], float]] = {}
    meters = meter if isinstance(meter, dict) else {name: meter for name, _ in candidates}
    for name, call in candidates:
        if warm:
            call()
        found[name] = ([], 0.0)
    for turn in range(rounds):
        # Every other round goes backwards, so that nobody always follows the same neighbour.
        for name, call in candidates[:: -1 if turn % 2 else 1]:
            if pause:
                time.sleep(pause)
            used, begun = meters[name](), time.perf_counter()
            for _ in range(batch):
                call()
            passed = time.perf_counter() - begun
            samples, cpu = found[name]
            samples.append(passed / batch)
            found[name] = (samples, cpu + meters[name]() - used)
    return found


def in_turn(
    rounds: int, candidates: list[tuple[str, Callable[[int], tuple[float, float]]]]
) -> dict[str, list[tuple[float, float]]]:
    """Samples of each in turn, every other round backwards; each measures its own seconds and CPU seconds.

    A candidate is called with the number of its turn. The first of each is not counted.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in candidates}
    for turn in range(rounds + 1):
        for name, sample in candidates[:: -1 if turn % 2 else 1]:
            measured = sample(turn)
            if turn:
                found[name].append(measured)
    return found


# ---- a broker of these measurements


@contextlib.contextmanager
def own_broker() -> Iterator[Path]:
    """A folder of its own, with the broker that is started in it; both end with the block."""
    with tempfile.TemporaryDirectory(prefix="cableway-bench-") as name:
        folder = Path(name)
        os.environ["CABLEWAY_DIR"] = name
        os.environ.pop("CABLEWAY_NAMESPACE", None)
        try:
            yield folder
        finally:
            for pid in broker(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 15)
                for _ in range(500):
                    if not Path(f"/proc/{pid}").exists():
                        break
                    time.sleep(0.01)
