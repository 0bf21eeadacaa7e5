"""What others keep of their rate while one process floods the broker, beside the same process only computing.

    PYTHONPATH=tools/bench python tools/bench/studies/flood.py [--rounds 20] [--seconds 0.5] [--beside idles]

One process puts a small array under a name again and again. Beside it another one, in turns of --seconds: computes (or does
nothing); puts as well; is refused for max_names; is refused for max_bytes; is refused as a new client. A flood's figure is the
puts of a turn divided by those of the turns before and behind it, in which the other computed; printed are the median and the
quartiles of --rounds turns, and how many requests a second the flood got through.

Which turns to compare with: any process that does something takes a core, and whether it may is for the machine's scheduler to
say, not for the broker. So with few cores a flood is compared with the same process computing. --beside idles counts in the core
that it takes, too: that is the stricter question, and a fair one from four free cores on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

import cableway as cw
from cableway._core import programs

FLOODS = ("puts", "names refused", "bytes refused", "clients refused")


def flood_with(kind: str, x: cw.Array) -> Callable[[], None]:
    """One round of a flood."""
    connect = [programs.path("cableway"), "stat", "flood/none"]

    def puts() -> None:
        cw.put("flood/mine", x)

    def names() -> None:
        with contextlib.suppress(cw.LimitExceeded):
            cw.put("flood/one-more", x)

    def refused_bytes() -> None:
        with contextlib.suppress(cw.LimitExceeded):
            cw.empty(64 << 20, "u1")

    def clients() -> None:
        subprocess.run(connect, capture_output=True, check=False)

    def computes() -> None:
        sum(range(1000))

    def idles() -> None:
        time.sleep(0.001)

    return {
        "puts": puts,
        "names refused": names,
        "bytes refused": refused_bytes,
        "clients refused": clients,
        "idles": idles,
    }.get(kind, computes)


def works(pipe: Any, shared: Any) -> None:
    """Does what it is told, until it is told something else."""
    x = cw.put(f"flood/{os.getpid()}", [1.0])
    kind = "computes"
    while True:
        once = flood_with(kind, x)
        pipe.send(kind)
        while not pipe.poll():
            once()
            shared.value += 1
        kind = pipe.recv()


def tell(pipe: Any, kind: str) -> None:
    """Has a process do something else from here on."""
    pipe.send(kind)
    assert pipe.recv() == kind


def set_limit(name: str, value: int) -> None:
    """One of the broker's."""
    words = [programs.path("cableway"), "limit", "set", name, str(value)]
    subprocess.run(words, capture_output=True, check=True)


@contextlib.contextmanager
def limited(kind: str) -> Any:
    """The limit that refuses this flood."""
    words = [programs.path("cableway"), "status", "--json"]
    status = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    name, value, usual = {
        "names refused": ("max_names", status["gauges"]["names"], 1000000),
        "bytes refused": ("max_bytes", status["gauges"]["bytes"], 0),
        "clients refused": ("max_clients", status["gauges"]["clients"], 256),
    }.get(kind, ("", 0, 0))
    if name:
        set_limit(name, value)
    try:
        yield
    finally:
        if name:
            set_limit(name, usual)


def turn(pipe: Any, mine: Any, other: Any, kind: str, seconds: float) -> tuple[float, float]:
    """Puts a second, and what the other does a second."""
    tell(pipe, kind)
    begin, before, others = time.perf_counter(), mine.value, other.value
    time.sleep(seconds)
    took = time.perf_counter() - begin
    return (mine.value - before) / took, (other.value - others) / took


def main() -> None:
    """Prints a line for each flood."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--beside", choices=("computes", "idles"), default="computes")
    parser.add_argument("--floods", nargs="+", choices=FLOODS, default=FLOODS)
    args = parser.parse_args()
    os.environ["CABLEWAY_DIR"] = tempfile.mkdtemp()
    context = multiprocessing.get_context("spawn")
    counts = [context.Value("q", 0, lock=False) for _ in range(2)]
    pipes, processes = [], []
    for count in counts:
        here, there = context.Pipe()
        process = context.Process(target=works, args=(there, count), daemon=True)
        process.start()
        assert here.recv() == "computes"
        pipes.append(here)
        processes.append(process)
    tell(pipes[0], "puts")
    cw.put("flood/kept", [1.0])
    for kind in args.floods:
        ratios, passed = [], []
        for _ in range(args.rounds):
            before, _ = turn(pipes[1], *counts, args.beside, args.seconds)
            with limited(kind):
                during, got = turn(pipes[1], *counts, kind, args.seconds)
                tell(pipes[1], "computes")  # before it is allowed again
            after, _ = turn(pipes[1], *counts, args.beside, args.seconds)
            ratios.append(during / ((before + after) / 2))
            passed.append(got)
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{kind:16} {middle:.2f} ({low:.2f} to {high:.2f}), the flood {statistics.median(passed):.0f}/s",
            flush=True,
        )
    for process in processes:
        process.kill()
    subprocess.run([programs.path("cableway"), "stop", "--yes"], capture_output=True, check=False)


if __name__ == "__main__":
    main()
