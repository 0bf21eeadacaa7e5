"""Lines of the table of GPU figures, and what is promised of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from targets import Target, at_least, at_most

MIB = 1 << 20


@dataclass
class Line:
    """One measurement beside its peer: both in unit; theirs None: not measured."""

    what: str
    ours: float
    peer: str
    theirs: float | None
    unit: str
    spread: str = ""  # of the samples, where there are many


LINES: list[Line] = []
REASONS: list[str] = []  # why something was not measured


def note(
    what: str, ours: float, peer: str, theirs: float | None, unit: str, spread: str = ""
) -> None:
    """Adds a line, and prints it, so that a run that is cut off has said what it found."""
    LINES.append(Line(what, ours, peer, theirs, unit, spread))
    print(f"  {what}: {ours:.3f} {unit}; {peer}: {theirs}; {spread}", flush=True)


def missing(what: str, reason: object) -> None:
    """Notes that something was not measured."""
    REASONS.append(f"not measured: {what}: {reason}")


def seconds(action: Callable[[int], object], rounds: int) -> float:
    """The median time of one action; the first two rounds do not count."""
    times = []
    for i in range(rounds + 2):
        begin = time.perf_counter()
        action(i)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


@dataclass
class Times:
    """Seconds of one action, in many samples."""

    median: float
    p10: float
    p90: float
    samples: int

    def rate(self, size: int) -> float:
        """GB/s of so many bytes."""
        return size / self.median / 1e9

    def rates(self, size: int) -> str:
        """GB/s from the slow end to the fast one."""
        return f"{size / self.p90 / 1e9:.1f} to {size / self.p10 / 1e9:.1f}"


def alternated(
    ours: Callable[[int], object],
    theirs: Callable[[int], object],
    rounds: int,
    in_a_row: int = 1,
) -> tuple[Times, Times]:
    """Both in turn, the one that begins changing with each round, so that both see the same machine.

    A round is so many actions of each in a row, and each action is a sample. The first two rounds do not count.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds + 2):
        for which in (i % 2, 1 - i % 2):
            for j in range(in_a_row):
                begin = time.perf_counter()
                (ours, theirs)[which](i * in_a_row + j)
                times[which].append(time.perf_counter() - begin)
    found = []
    for each in times:
        kept = each[2 * in_a_row :]
        tenths = statistics.quantiles(kept, n=10)
        found.append(Times(statistics.median(kept), tenths[0], tenths[-1], len(kept)))
    return found[0], found[1]


def note_rates(what: str, size: int, found: tuple[Times, Times], peer: str) -> None:
    """Adds a line of GB/s for alternated copies of so many bytes."""
    ours, theirs = found
    spread = f"{ours.rates(size)} | {theirs.rates(size)}, {ours.samples} each"
    note(what, ours.rate(size), peer, theirs.rate(size), "GB/s", spread)


LARGEST_MIB = int(os.environ.get("CABLEWAY_BENCH_LARGEST_MIB", "1024"))


def affordable(*sizes: int) -> tuple[int, ...]:
    """Those up to $CABLEWAY_BENCH_LARGEST_MIB: for a machine that has less memory than an H200."""
    return tuple(size for size in sizes if size <= LARGEST_MIB * MIB)


def size_name(size: int) -> str:
    """4 KiB, 64 MiB, 1 GiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size // 1024} KiB"


def ratio(what: str, peer: str, upside_down: bool = False) -> float | None:
    """Theirs by ours of the line with this name and peer, or ours by theirs; None if there is none."""
    for line in LINES:
        if (line.what, line.peer) == (what, peer) and line.theirs and line.ours:
            return line.ours / line.theirs if upside_down else line.theirs / line.ours
    return None


def value(what: str) -> float | None:
    """Ours of the line with this name."""
    return next((line.ours for line in LINES if line.what == what), None)


SAME, OTHER, NEW = "the same array", "another array", "a new array"


def passing(which: str, size: int) -> str:
    """The name of a line of arrays that go to another process and back."""
    return f"to another process and back, {which}, {size_name(size)}"


OWN, COPIED = "in memory of ours", "PyTorch's own, copied"


def tensors(which: str, size: int, how: str = "") -> str:
    """The name of a line of tensors that go to another process, and a word back."""
    return f"a tensor to another process and back, {which}, {size_name(size)}{how}"


TREE_ATTACH = "a tree's tensors in a process that sees it first, 399 tensors, 16.4 GB"
TREE_ATTACH_MANY = "a tree's tensors in a process that sees it first, 18,867 tensors, 15.3 GB"
TREE_TENSORS = "1,000 tensors of a tree that is mapped"
TREE_PUBLISH = "a tree published from memory of ours, 399 tensors"
TREE_PUBLISH_AGAIN = f"{TREE_PUBLISH}, again"
TREE_MEMORY = "GPU memory of 8 processes that have a tree, beyond their contexts and the tree"


def targets(two_gpus: bool) -> list[Target]:
    """What the issue of GPU memory promises."""
    found = []
    for size in (MIB, 1024 * MIB):
        for which in (SAME, OTHER, NEW):
            name = passing(which, size)
            found.append(at_least(f"torch's Queue by ours: {name}", 20, ratio(name, "torch Queue")))
    for which, times in ((OWN, 10), (COPIED, 5)):
        name = tensors(which, 64 * MIB)
        found.append(at_least(f"torch's Queue by ours: {name}", times, ratio(name, "torch Queue")))
    for name, times in ((TREE_ATTACH, 8), (TREE_ATTACH_MANY, 15)):
        found.append(at_least(f"torch IPC by ours: {name}", times, ratio(name, "torch IPC")))
    found.append(at_most(TREE_TENSORS, 2, value(TREE_TENSORS), "ms"))
    for what in (TREE_PUBLISH, TREE_PUBLISH_AGAIN):
        found.append(at_most(what, 5, value(what), "ms"))
    found.append(
        at_most(
            "first sight of a slab, without the descriptor's journey, by the driver's calls",
            1.1,
            ratio("first sight of a slab, mapped", "driver: import and map", upside_down=True),
        )
    )
    fences = "streams of two processes, there and back"
    found.append(at_most("fences by bare flags", 1.2, ratio(fences, "bare flags", True)))
    events, new = "IPC events", "IPC events, a new one each time"
    if two_gpus:  # where the driver's events are as quick as a flag
        found.append(at_least(f"{events}, by fences, two GPUs", 1.5, ratio(fences, events)))
        found.append(at_least(f"{new}, by fences, two GPUs", 1, ratio(fences, new)))
    else:  # a wait for an event takes until the GPU turns to the other process
        found.append(at_least(f"{events}, by fences, one GPU", 20, ratio(fences, events)))
    for size in (64 * MIB, 512 * MIB):
        for way in ("host to GPU", "GPU to host"):
            name = f"{way}, {size_name(size)}"
            found.append(
                at_least(f"{name} by the pinned copy", 0.97, ratio(name, "driver, pinned", True))
            )
    if two_gpus:
        for size in (64 * MIB, 1024 * MIB):
            name = f"GPU to GPU, {size_name(size)}"
            found.append(
                at_least(
                    f"{name} by the driver's copy", 0.98, ratio(name, "driver, peer access", True)
                )
            )
            found.append(at_least(f"NCCL by ours: {name}", 1.05, ratio(name, "NCCL send and recv")))
        for size in (4 << 10, 64 << 10, MIB):
            name = f"GPU to GPU, {size_name(size)}"
            found.append(at_least(f"NCCL by ours: {name}", 3, ratio(name, "NCCL send and recv")))
    found.append(at_most("the broker's GPU memory", 0, value("the broker's GPU memory"), "MiB"))
    beyond = "a client's GPU memory beyond context and slabs"
    found.append(at_most(beyond, 2, value(beyond), "MiB"))
    found.append(at_most("GPU memory left after all", 0, value("GPU memory left after all"), "MiB"))
    return found


def show(two_gpus: bool) -> bool:
    """Prints both tables; whether nothing that was measured missed its target."""
    print(
        f"\n{'what':62} {'cableway':>10}  {'peer':24} {'figure':>10}  unit  ours/peer  p10 to p90"
    )
    for line in LINES:
        theirs = "" if line.theirs is None else f"{line.theirs:.1f}"
        by = f"{line.ours / line.theirs:6.3f}" if line.theirs else ""
        print(
            f"{line.what:62} {line.ours:10.1f}  {line.peer:24} {theirs:>10}  {line.unit:5} {by:9}  "
            f"{line.spread}".rstrip()
        )
    print(f"\n{'promise':88} {'target':>16}  {'found':>12}")
    kept = True
    for target in targets(two_gpus):
        verdict = {True: "met", False: "MISSED", None: ""}[target.met]
        kept = kept and target.met is not False
        print(f"{target.what:88} {target.promised:>16}  {target.found:>12}  {verdict}")
    for reason in REASONS:
        print(reason)
    return kept
