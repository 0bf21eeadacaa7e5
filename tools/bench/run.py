"""`make bench`: runs every benchmark, prints targets and whether they are met, writes docs/benchmarks/.

`make bench-bridge` (--bridge) is the same for the benchmarks of the bridge, which have a page of their own.

Each program prints one JSON line a measurement. What spins and what sleeps is said in every row, and no target
compares one with the other unsaid. Peers that are not installed are named, and all else is measured without them.
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
import threading
from pathlib import Path
from typing import Any

from bridge.targets import BRIDGE_CAUSES, bridge_targets
from targets import CAUSES, Results, Row, Target, number, slower, targets
from wrapped import wrapped

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ["bench_ring", "bench_dispatch", "bench_ping", "bench_get", "bench_put", "bench_idle"]
OF_POOLS = ["bench_pool.py", "bench_pool_arrays.py", "bench_joblib.py"]
LIMIT_SECONDS = 1800  # for one program
BRIDGE = [
    "bench_bridge.py",
    "bench_bridge_streams.py",
    "bench_bridge_many.py",
]  # what they need: --build
PYTHON = ["bench_python.py", "bench_queue.py", "bench_start.py", *OF_POOLS]


def run(command: list[str], rows: list[Row], failures: list[str]) -> None:
    """Runs one program and reads its rows as they come; what else it prints is shown."""
    name = next(Path(part).name for part in command if "bench_" in part)
    print(f"-- {name}", flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        limit = threading.Timer(LIMIT_SECONDS, child.kill)
        limit.start()
        for line in child.stdout or ():
            if not line.startswith("{"):
                print(line.rstrip(), flush=True)
                continue
            values = json.loads(line)
            if "skipped" in values:
                failures.append(f"{values['bench']}: skipped: {values['skipped']}")
                continue
            rows.append(Row(**values))
            print(show(rows[-1]), flush=True)
        limit.cancel()
    if child.returncode:
        failures.append(f"{name} ended with {child.returncode}")


def show(row: Row) -> str:
    """One row as text."""
    cpu = "" if row.cpu_seconds is None else f"  cpu {row.cpu_seconds:.2f} s"
    return (
        f"   {row.bench + ': ' + row.name:70} {row.how:8} {number(row.median):>9} {row.unit:5}"
        f" ({number(row.p10)} to {number(row.p90)}, {row.samples} samples){cpu}"
    )


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


def draw(run: dict[str, Any], out: Path) -> None:
    """The picture, if matplotlib is there."""
    from picture import draw

    draw(run, out)


def document(
    run: dict[str, Any], rows: list[Row], found: list[Target], behind: list[str], picture: Path
) -> str:
    """The file for docs/benchmarks."""
    shown = f"![Our Pool, Executor and joblib backend beside their peers]({picture.name})"
    lines = [
        *run["about"],
        "",
        "Medians of alternated samples, with p10 and p90; CPU seconds of both sides together, for all samples. The",
        "column *waits* says how the two sides wait for each other: `spins` (never sleeps), `adaptive` (spins for about",
        "the price of one wake-up, then sleeps), `sleeps` (a sleeper is woken each time). Ours waits adaptively, most",
        "peers sleep: what that costs stands in the column of CPU seconds. How each row is measured is said at the top of",
        "its program in tools/bench.",
        "",
        *([shown, ""] if picture.exists() else []),
        "## Targets",
        "",
        table([line for line in found if line.found != "not measured"]),
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
    lines += ["", *[f"Failed or skipped: {failure}" for failure in run["failures"]]]
    return wrapped("\n".join(lines).rstrip())


def about_all(run: dict[str, Any]) -> list[str]:
    """What stands at the top of the page of `make bench`."""
    return [
        f"# Benchmarks, {run['date']}",
        "",
        f"Machine: {run['machine']}. Load before the run: {run['load']}. Pools have {run['workers']} workers.",
        f"Command: `{run['command']}`.",
    ]


def about_bridge(run: dict[str, Any]) -> list[str]:
    """The same of `make bench-bridge`."""
    return [
        f"# The bridge between two nodes on one machine, {run['date']}",
        "",
        f"Machine: {run['machine']}. Load before the run: {run['load']}. Command: `{run['command']}`.",
        "",
        "**Loopback figures**: both nodes, and both ends of every other, share the machine's cores, and the network is its",
        "memory. TLS 1.3 with TLS_AES_128_GCM_SHA256 but for Dask, whose cipher is AES-256. Bytes are random, go round in",
        "several arrays, and were compared after each sample.",
    ]


def main() -> int:
    """Runs all; 1 if a program failed or a target is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument(
        "--out", type=Path, help="where the document goes (docs/benchmarks; with --only nowhere)"
    )
    parser.add_argument("--workers", type=int, default=2, help="of the pools")
    parser.add_argument("--rounds", type=int, help="samples of each Python benchmark")
    parser.add_argument(
        "--json", type=Path, help="where all rows go (BUILD/bench.json), for picture.py"
    )
    parser.add_argument("--bridge", action="store_true", help="those of the bridge, on their page")
    parser.add_argument(
        "--only",
        default="",
        help="run the programs whose names hold one of these words (comma between them)",
    )
    options = parser.parse_args()
    options.json = options.json or options.build / (
        "bridge.json" if options.bridge else "bench.json"
    )
    os.environ.setdefault("CABLEWAY_BROKER", str((options.build / "cablewayd").resolve()))
    words, name = machine()
    name = "bridge-loopback" if options.bridge else name
    command_line = "make bench" + (f" WORKERS={options.workers}" if options.workers != 2 else "")
    command_line = "make bench-bridge" if options.bridge else command_line
    if options.only:
        command_line = f"tools/bench/run.py --only {options.only} --workers {options.workers}"
    about: dict[str, Any] = {
        "date": str(datetime.date.today()),
        "machine": words,
        "load": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "workers": options.workers,
        "command": command_line,
        "failures": [],
    }
    about["about"] = (about_bridge if options.bridge else about_all)(about)
    rows: list[Row] = []
    for program in BRIDGE if options.bridge else PROGRAMS + PYTHON:
        if not any(word in program for word in options.only.split(",")):
            continue
        command = [str(options.build / "tools" / "bench" / "programs" / program)]
        if program.endswith(".py"):
            command = [sys.executable, str(ROOT / "tools" / "bench" / program)]
            command += [f"--rounds={options.rounds}"] if options.rounds else []
            command += [f"--workers={options.workers}"] if program in OF_POOLS else []
            command += [f"--build={options.build}"] if options.bridge else []
        run(command, rows, about["failures"])
    results = Results(rows)
    found = targets(results, options.workers, len(os.sched_getaffinity(0))) + bridge_targets(
        results
    )
    behind = slower(results, {**CAUSES, **BRIDGE_CAUSES})
    about["rows"] = [vars(row) for row in rows]
    options.json.write_text(json.dumps(about))
    if options.out is None and not options.only:
        options.out = ROOT / "docs" / "benchmarks"
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / f"{about['date']}-{name}.md"
        picture = path.with_suffix(".png")
        try:
            if not options.bridge:
                draw(about, picture)
        except ImportError as error:
            about["failures"].append(f"picture: skipped: {error}")
        path.write_text(document(about, rows, found, behind, picture))
        print(f"\nwritten: {path}, {options.json}")
    for failure in about["failures"]:
        print(f"failed or skipped: {failure}")
    if behind:
        print("\nslower than its rival:", *behind, sep="\n  ")
    print(f"\n{table([line for line in found if line.found != 'not measured'])}")
    failed = [line for line in about["failures"] if " ended with " in line]
    return 1 if failed or any(line.met is False for line in found) else 0


if __name__ == "__main__":
    sys.exit(main())
