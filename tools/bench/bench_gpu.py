"""GPU arrays beside what they are made of and what users pick today: `make bench-gpu`.

Every figure stands beside its peer of the same run: the driver's own calls for copies and imports, torch's Queue and
cuda.core for passing arrays on, NCCL between GPUs. Random data, buffers in rotation, every result is checked. At the
end: all figures, then what is promised and whether it is kept. What could not be measured says why.

    bench_gpu.py [--seconds N] [PART...]     parts: fences, turns, imports, copies, passing, trees, peers,
                                             memory
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from gpu import copies, driver, passing, trees
from gpu.rows import LARGEST_MIB, missing, note, show

import cableway as cw

BUILD = Path(os.environ.get("CABLEWAY_BUILD", "build")).resolve()


def program(
    name: str, *arguments: str, environment: dict[str, str] | None = None
) -> dict[str, float]:
    """Runs a benchmark in C and returns its figures by their names."""
    command = [BUILD / "tests/gpu" / name, *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **(environment or {})},
    )
    print(done.stdout, end="", flush=True)
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr.strip()}")
    lines = re.finditer(r"^  (\S.*?)\s{2,}([\d.]+) us", done.stdout, re.MULTILINE)
    return {line[1]: float(line[2]) for line in lines}


def fences() -> None:
    """Two processes' streams wait for each other in turn."""
    found = program("bench_fence", "4000")
    ours, what = found["fences: one piece of work"], "streams of two processes, there and back"
    note(what, ours, "bare flags", found["bare flags, all submitted beforehand"], "us")
    note(what, ours, "IPC events", found.get("IPC events"), "us")
    new = "IPC events, a new one each time"
    note(what, ours, new, found.get(new), "us")
    apart = found["fences: writing and reading apart"]
    note("the same, a writing and a reading apart", apart, "", None, "us")
    note("begin and end, on the CPU", found["begin and end on the CPU alone"], "", None, "us")


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str]]:
    """The variables by which programs find a daemon of the driver's MPS, which runs as long.

    Raises:
        OSError, subprocess.SubprocessError: it cannot run here.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = dict.fromkeys(("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"), folder)
        control = partial(
            subprocess.run, env={**os.environ, **found}, capture_output=True, text=True, timeout=30
        )
        control(["nvidia-cuda-mps-control", "-d"], check=True)
        try:
            yield found
        finally:
            control(["nvidia-cuda-mps-control"], input="quit\n", check=False)


def turns() -> None:
    """Two processes on one GPU, a kernel in each turn: what binds them is whose turn the driver says it is."""

    def add(what: str, found: dict[str, float]) -> None:
        ours, cpu = found["sections"], "the CPU waits and tells"
        note(what, ours, "IPC events", found.get("IPC events"), "us")
        note(what, ours, cpu, found[cpu], "us")

    what = "a turn of two processes on one GPU, a kernel on 1 MiB in it"
    add(what, program("bench_turns", "2000"))
    try:
        with mps() as environment:
            add(f"{what}, MPS", program("bench_turns", "2000", environment=environment))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        missing(f"{what}, with MPS", error)


def imports() -> None:
    """The first sight of a slab."""
    found = program("bench_import", "12", str(min(300, LARGEST_MIB)))
    bare = found["mapped by the driver's bare calls"]
    what = "first sight of a slab"
    note(f"{what}, mapped", found["mapped by the library"], "driver: import and map", bare, "us")
    note(f"{what}, the descriptor's journey", found["the descriptor's journey"], "", None, "us")
    note(f"{what}, cw_get(), all of it", found["cw_get(), all of it"], "", None, "us")
    kept = cw.put("bench/known", cw.zeros(1000, device="cuda:0"))
    times = []
    for _ in range(2000):
        begin = time.perf_counter()
        cw.get("bench/known")
        times.append(time.perf_counter() - begin)
    note("get of an array in a known slab", sorted(times)[1000] * 1e6, "", None, "us")
    cw.remove("bench/known")
    del kept


def used_mib() -> int:
    """GPU memory in use, all GPUs of this process, as nvidia-smi says it."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return sum(int(line) for line in told.split())


def broker_mib() -> int:
    """What of it the broker has."""
    asked = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    folder = Path(os.environ.get("CABLEWAY_DIR", "/nowhere"))
    pids = {lock.read_text().split()[0] for lock in folder.glob("*.lock") if lock.read_text()}
    rows = [line.split(",") for line in told.splitlines() if "," in line]
    return sum(int(mib) for pid, mib in rows if pid.strip() in pids)


def memory() -> None:
    """What a client takes of its GPU beyond its context and the bytes of its slabs."""
    beyond = "a client's GPU memory beyond context and slabs"
    first = cw.empty(1 << 20, "u1", device="cuda:0")  # a slab of 32 MiB
    try:
        before = used_mib()
    except (OSError, subprocess.CalledProcessError) as error:
        missing(beyond, error)
        return
    more = [cw.empty(512 << 20, "u1", device="cuda:0") for _ in range(2)]
    note(beyond, max(used_mib() - before - 1024, 0), "", None, "MiB")
    del first, more


def in_child(part: str) -> None:
    """Runs a part in a process of its own, whose GPU memory ends with it."""
    # The lines come back by a file: what the process prints is for people.
    import pickle

    from gpu.rows import LINES, REASONS

    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([sys.executable, __file__, "--into", file.name, part], check=True)
        lines, reasons = pickle.load(file)
    LINES.extend(lines)
    REASONS.extend(reasons)


def leave(name: str) -> None:
    """Writes the lines of this process to a file for in_child()."""
    import pickle

    from gpu.rows import LINES, REASONS

    with open(name, "wb") as file:
        pickle.dump((LINES, REASONS), file)


def gpus() -> int:
    """How many there are, asked in a process of its own: this one opens no driver."""
    text = "import cableway as cw; print(len(cw.devices()) - 1)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return int(done.stdout)


PARTS: dict[str, Callable[[], None]] = {
    "fences": fences,
    "turns": turns,
    "imports": imports,
    "passing": passing.measure,
    "trees": trees.measure,
    "peers": copies.between_gpus,
    "copies": copies.on_one_gpu,
    "memory": memory,
}


def memory_after(before: int | None) -> None:
    """Stops the broker, and looks whether all GPU memory has come back."""
    if before is None:
        return
    subprocess.run([Path(cw.__file__).parent / "bin" / "cableway", "stop"], capture_output=True)
    end = time.monotonic() + 10
    while (left := used_mib() - before) > 0 and time.monotonic() < end:
        time.sleep(0.2)
    note("GPU memory left after all", max(left, 0), "", None, "MiB")


def main() -> int:
    """Runs all and prints the tables."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--into")
    parser.add_argument("parts", nargs="*")
    given = parser.parse_args()
    if given.into:
        driver.enter()
        PARTS[given.parts[0]]()
        leave(given.into)
        return 0
    failed, begun, before = False, time.monotonic(), None
    try:
        before = used_mib()
    except (OSError, subprocess.CalledProcessError) as error:
        missing("GPU memory left after all", error)
    kept = cw.put("bench/kept", 1)  # so that one broker serves all parts
    two = gpus() > 1
    for part in given.parts or PARTS:
        if part == "peers" and not two:
            continue
        if time.monotonic() - begun > given.seconds:
            missing(part, f"{given.seconds:g} s were over")
            continue
        start = time.monotonic()
        try:
            in_child(part)
        except Exception:  # noqa: BLE001  the other parts are run all the same
            traceback.print_exc()
            missing(part, "it failed, see above")
            failed = True
        print(f"# {part}: {time.monotonic() - start:.1f} s", flush=True)
    if before is not None:
        note("the broker's GPU memory", broker_mib(), "", None, "MiB")
    kept.close()
    memory_after(before)
    promises_kept = show(two)
    print(
        f"# all: {time.monotonic() - begun:.1f} s; promises {'kept' if promises_kept else 'missed'}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
