"""`make bench`: runs every benchmark, prints targets and whether they are met, writes docs/benchmarks/.

Each program prints one JSON line a measurement. What spins and what sleeps is said in every row, and no target
compares one with the other.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ["bench_ring", "bench_ping", "bench_get", "bench_put", "bench_idle"]
PYTHON = ["bench_python.py", "bench_queue.py", "bench_executor.py"]


@dataclass
class Row:
    """One measurement: the median of its samples, in unit."""

    bench: str
    name: str
    how: str
    unit: str
    median: float
    p10: float
    p90: float
    samples: int
    cpu_seconds: float | None


@dataclass
class Target:
    """One line of the table: what is promised, what was found."""

    what: str
    promised: str
    found: str
    met: bool | None  # None: not measured


def run(command: list[str], rows: list[Row], failures: list[str]) -> None:
    """Runs one program and reads its rows; what else it prints is shown."""
    print(f"-- {Path(command[-1]).name}", flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=1800)
    for line in done.stdout.splitlines():
        values = json.loads(line)
        if "skipped" in values:
            failures.append(f"{values['bench']}: skipped: {values['skipped']}")
            continue
        rows.append(Row(**values))
        print(show(rows[-1]), flush=True)
    if done.returncode:
        failures.append(f"{Path(command[-1]).name} ended with {done.returncode}")


def show(row: Row) -> str:
    """One row as text."""
    cpu = "" if row.cpu_seconds is None else f"  cpu {row.cpu_seconds:.2f} s"
    return (
        f"   {row.name:42} {row.how:8} {number(row.median):>9} {row.unit:5}"
        f" ({number(row.p10)} to {number(row.p90)}, {row.samples} samples){cpu}"
    )


def number(value: float) -> str:
    """Three digits that count."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


class Results:
    """Rows by bench and name."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = {(row.bench, row.name): row for row in rows}

    def median(self, bench: str, name: str) -> float | None:
        """The median of a row, None if it is not there."""
        row = self.rows.get((bench, name))
        return row.median if row else None

    def ratio(self, bench: str, one: str, other: str) -> float | None:
        """One median by another."""
        above, below = self.median(bench, one), self.median(bench, other)
        return above / below if above is not None and below else None


def target(what: str, promised: str, found: float | None, text: str, met: bool) -> Target:
    """A line of the table."""
    return Target(
        what, promised, "not measured" if found is None else text, None if found is None else met
    )


def at_most(what: str, limit: float, found: float | None, unit: str) -> Target:
    """A promise of at most so much."""
    text = "" if found is None else f"{number(found)} {unit}"
    return target(
        what, f"at most {limit:g} {unit}", found, text, found is not None and found <= limit
    )


def at_least(what: str, limit: float, found: float | None, unit: str) -> Target:
    """A promise of at least so much."""
    text = "" if found is None else f"{number(found)} {unit}"
    return target(
        what, f"at least {limit:g} {unit}", found, text, found is not None and found >= limit
    )


def targets(results: Results) -> list[Target]:
    """What is promised."""
    ratio, median = results.ratio, results.median
    words, ours = "two words, spin loop, no payload", "our ring, adaptive wait"
    few, many = "get+close, 100 names, in turn", "get+close, 100,000 names, 100 in turn"
    return [
        at_most("64 B round trip, both run: our ring by a bare spin loop on two words", 2, ratio("ring", ours, words), "x"),
        at_most("the same by ck_ring with the same adaptive wait", 1, ratio("ring", ours, "ck_ring, the same adaptive wait"), "x"),
        at_most("the same, both spun on", 1, ratio("ring", "our ring, spun on", "ck_ring, spun on"), "x"),
        at_most("warm get+close in C, 100 names", 1000, median("get", few), "ns"),
        at_most("warm get+close in C, 100,000 names", 1000, median("get", many), "ns"),
        at_most("100,000 names by 100 names", 1.3, ratio("get", many, few), "x"),
        at_least("Python get+close: SharedMemory attach by ours", 5, ratio("python get", "SharedMemory attach+close", "causeway get+close"), "x"),
        at_least("put of 256 MiB by memcpy into mapped memory", 0.8, ratio("put", "put 256 MiB, slab there already", "memcpy 256 MiB into mapped, touched memory"), "x"),
        at_least("64 MiB to a worker and back: multiprocessing.Pool (sleeps) by ours (adaptive)", 10, ratio("pool 64 MiB", "multiprocessing.Pool, new result", "causeway.Pool, new result"), "x"),
        at_least("Queue, 64-byte items a second, one writer, one reader: ours (adaptive) by multiprocessing.Queue (sleeps)", 5, ratio("queue 64 B", "causeway.Queue()", "multiprocessing.Queue()"), "x"),
        at_least("Queue, 16 MiB NumPy arrays, bytes a second: the same", 20, ratio("queue 16 MiB", "causeway.Queue(4), ndarray", "multiprocessing.Queue(4), ndarray"), "x"),
        at_least("Queue, 16 MiB causeway.Arrays, bytes a second: the same", 20, ratio("queue 16 MiB", "causeway.Queue(4), causeway.Array", "multiprocessing.Queue(4), ndarray"), "x"),
        at_most("idle broker: CPU", 0.1, median("idle", "broker: CPU over 10 s"), "%"),
        at_most("idle Pool (parent, workers, broker): CPU", 0.1, median("idle", "causeway.Pool(2): CPU while idle"), "%"),
        at_most("broker: resident with 100 names", 8, median("idle", "broker: resident, 100 names"), "MiB"),
    ]  # fmt: skip


# Ours, theirs; more is better for rates. Pairs wait in the same way, but for the Pools (adaptive against sleeping).
RIVALS = [
    ("ring", "our ring, adaptive wait", "two words, spin loop, no payload"),
    ("ring", "our ring, adaptive wait", "ck_ring, the same adaptive wait"),
    ("ring", "our ring, spun on", "two words, spin loop, no payload"),
    ("ring", "our ring, spun on", "ck_ring, spun on"),
    ("ring", "our ring after sleep", "ck_ring after sleep, same wait"),
    ("ring", "our ring after sleep", "pipe after sleep"),
    ("ping after sleep", "cw_channel, 64 bytes", "socketpair, 64 bytes"),
    ("ping after sleep", "cw_ping, the broker", "socketpair, 64 bytes"),
    ("get", "get+close, 100,000 names, 100 in turn", "get+close, 100 names, in turn"),
    ("get", "get+close, 100,000 names, one name", "get+close, 100 names, one name"),
    ("put", "put 256 MiB, slab there already", "memcpy 256 MiB into mapped, touched memory"),
    ("put", "put 256 MiB, first touch (a new slab)", "memcpy 256 MiB, first touch"),
    ("python get", "causeway get+close", "SharedMemory attach+close"),
    ("python get", "causeway get, ndarray, close", "SharedMemory attach, ndarray, close"),
    ("pool 64 MiB", "causeway.Pool, new result", "multiprocessing.Pool, new result"),
    (
        "pool 64 MiB",
        "causeway.Pool, new result, after 0.1 s",
        "multiprocessing.Pool, new result, after 0.1 s",
    ),
    ("pool 64 MiB", "causeway.Pool, echo", "multiprocessing.Pool, echo"),
    ("pool 64 MiB", "causeway.Pool, x + 1", "multiprocessing.Pool, x + 1"),
    ("pool task", "causeway.Pool, no-op", "multiprocessing.Pool, no-op"),
    ("queue 64 B", "causeway.Queue()", "multiprocessing.Queue()"),
    ("queue 64 B", "causeway.Queue(1000)", "multiprocessing.Queue(1000)"),
    ("queue 64 B", "causeway.SimpleQueue", "multiprocessing.SimpleQueue"),
    ("queue 16 MiB", "causeway.Queue(4), ndarray", "multiprocessing.Queue(4), ndarray"),
    *[
        ("executor", f"causeway.Executor, {what}", f"ProcessPoolExecutor, {what}")
        for what in (
            "submit and result",
            "submits at once",
            "map",
            "submit and result, after 0.1 s",
        )
    ],
    ("joblib", "causeway, no-op, batches of 1", "loky, no-op, batches of 1"),
    ("joblib", "causeway, 40 tasks on 61 MiB", "loky, 40 tasks on 61 MiB"),
    ("idle", "causeway.Pool(2): CPU while idle", "multiprocessing.Pool(2): CPU while idle"),
]


def slower(results: Results) -> list[str]:
    """Where ours takes longer than what it was measured against."""
    found = []
    for bench, ours, theirs in RIVALS:
        ratio = results.ratio(bench, ours, theirs)
        row = results.rows.get((bench, ours))
        if ratio is None or row is None:
            continue
        if row.unit.endswith("/s"):
            ratio = 1 / ratio
        if ratio > 1.05:  # less is within the spread
            found.append(f"{ours}: {number(ratio)} times {theirs}")
    return found


def machine() -> tuple[str, str]:
    """The machine in words, and as part of a file's name."""
    cpu = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    cores = len(os.sched_getaffinity(0))
    memory = int(re.search(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text())[1])  # type: ignore[index]
    words = (
        f"{cores} cores of {cpu}, {memory / (1 << 20):.0f} GiB, Linux {platform.release().split('-')[0]},"
        f" {platform.libc_ver()[0]} {platform.libc_ver()[1]}, Python {platform.python_version()}"
    )
    return words, re.sub(r"[^a-z0-9]+", "-", f"{cores}-cores-{cpu}".lower()).strip("-")


def table(found: list[Target]) -> str:
    """The targets as a table that people and Markdown read."""
    lines = ["| promise | target | found | |", "|---|---|---|---|"]
    for line in found:
        met = {True: "met", False: "NOT MET", None: "-"}[line.met]
        lines.append(f"| {line.what} | {line.promised} | {line.found} | {met} |")
    return "\n".join(lines)


def document(
    rows: list[Row], found: list[Target], behind: list[str], failures: list[str], load: str
) -> str:
    """The file for docs/benchmarks."""
    words, _ = machine()
    lines = [
        f"# Benchmarks, {datetime.date.today()}",
        "",
        f"Machine: {words}. Load before the run: {load}. Command: `make bench`.",
        "",
        "Medians of alternated samples, with p10 and p90; CPU seconds of both sides together, for all samples. The",
        "column *waits* says how the two sides wait for each other: `spins` (never sleeps), `adaptive` (spins for about",
        "the price of one wake-up, then sleeps), `sleeps` (a sleeper is woken each time).",
        "",
        "## Targets",
        "",
        table(found),
        "",
        "## What is slower than its rival",
        "",
        *([f"- {line}" for line in behind] or ["Nothing."]),
        "",
        "## All measurements",
        "",
        "| bench | what | waits | median | p10 | p90 | unit | samples | CPU s |",
        "|---|---|---|---:|---:|---:|---|---:|---:|",
    ]
    for row in rows:
        cpu = "" if row.cpu_seconds is None else f"{row.cpu_seconds:.2f}"
        lines.append(
            f"| {row.bench} | {row.name} | {row.how or '-'} | {number(row.median)} | {number(row.p10)}"
            f" | {number(row.p90)} | {row.unit} | {row.samples} | {cpu} |"
        )
    lines += ["", *[f"Failed or skipped: {failure}" for failure in failures]]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Runs all; 1 if a program failed or a target is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks")
    parser.add_argument(
        "--only", default="", help="run the programs whose name holds this; write nothing"
    )
    options = parser.parse_args()
    os.environ.setdefault("CAUSEWAY_BROKER", str((options.build / "causewayd").resolve()))
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    rows: list[Row] = []
    failures: list[str] = []
    for name in PROGRAMS:
        if options.only in name:
            run([str(options.build / "tools" / "bench" / name)], rows, failures)
    for name in PYTHON:
        if options.only in name:
            run([sys.executable, str(ROOT / "tools" / "bench" / name)], rows, failures)
    results = Results(rows)
    found, behind = targets(results), slower(results)
    if not options.only:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"{datetime.date.today()}-{machine()[1]}.md"
        path.write_text(document(rows, found, behind, failures, load))
        print(f"\nwritten: {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
    for failure in failures:
        print(f"failed or skipped: {failure}")
    if behind:
        print("\nslower than its rival:", *behind, sep="\n  ")
    print(f"\n{table([line for line in found if line.met is not None])}")
    return 1 if failures or any(line.met is False for line in found) else 0


if __name__ == "__main__":
    sys.exit(main())
