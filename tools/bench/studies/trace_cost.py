"""What the trace that is always on costs: the same runs with CABLEWAY_TRACE=1 and with 0, alternated.

    make build/tools/bench/programs/bench_trace
    PYTHONPATH=tools/bench python tools/bench/studies/trace_cost.py [--build build] [--rounds 41] [--before PROGRAM]

Each round starts every program once with the trace and once without, in turns; within a round the lower tenth of many short
batches counts, so that a moment in which something else ran does not. Printed are the median time with the trace, and of the
rounds' ratios the median and the quartiles. Rows "in C" are CPU time of both sides, those of apply() wall time. --before
measures another build's bench_trace beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import cableway as cw

BATCHES, BATCH = 100, 60


def apply_us(cores: int) -> float:
    """One apply() of a task that does nothing, in a Pool of one worker on so many cores: its lower tenth, in us."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:cores]))
    with cw.Pool(1) as pool:
        samples = []
        for _ in range(BATCHES):
            begun = time.perf_counter()
            for _ in range(BATCH):
                pool.apply(abs, (1,))
            samples.append((time.perf_counter() - begun) / BATCH * 1e6)
    return statistics.quantiles(samples, n=10)[0]


def run(program: list[str], trace: str) -> dict[str, float]:
    """The rows of a program: us."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "CABLEWAY_TRACE": trace, "CABLEWAY_DIR": folder}
        said = subprocess.run(program, env=env, capture_output=True, text=True, check=True).stdout
    found = {}
    for line in said.splitlines():
        row = json.loads(line)
        found[f"{row['name']}, {row['how']}".rstrip(", ")] = row["p10"] / 1000
    return found


def main() -> None:
    """Prints a line for each row of each program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--before", help="bench_trace of another build")
    parser.add_argument("--apply", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.apply:
        row = {
            "name": "apply in Python",
            "how": f"{args.apply} core(s)",
            "p10": apply_us(args.apply) * 1000,
        }
        print(json.dumps(row))
        return
    os.environ.setdefault("CABLEWAY_BROKER", str(Path(args.build, "cablewayd").resolve()))
    options = ["--rounds", str(BATCHES), "--batch", str(BATCH)]
    programs = {"": [f"{args.build}/tools/bench/programs/bench_trace", *options]}
    if args.before:
        programs["before: "] = [args.before, *options]
    for cores in (1, 2):
        programs[f"apply {cores}"] = [sys.executable, __file__, "--apply", str(cores)]
    times: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for turn in range(args.rounds):
        for key, program in programs.items():
            for trace in "01" if turn % 2 else "10":
                for row, took in run(program, trace).items():
                    times[(key if key.endswith(" ") else "") + row][int(trace)].append(took)
    for row, (without, with_it) in times.items():
        ratios = [b / a for a, b in zip(without, with_it, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{row:40} {statistics.median(with_it):6.2f} us {middle:.3f} ({low:.3f} to {high:.3f})"
        )


if __name__ == "__main__":
    main()
