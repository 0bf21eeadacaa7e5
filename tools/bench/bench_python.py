"""What users of the Python package get, side by side with the standard library, in one run.

Prints one JSON line a measurement, as the C benchmarks do. Candidates alternate; data are random, results are
checked; a row is the median of its samples with p10 and p90.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np

MIB = 1 << 20
RESULT: np.ndarray | None = None  # in each worker: the result that it gives back


def report(
    bench: str, name: str, how: str, unit: str, samples: list[float], cpu: float | None
) -> None:
    """Prints one row."""
    tenths = statistics.quantiles(samples, n=10) if len(samples) > 1 else [samples[0]] * 9
    row = {
        "bench": bench,
        "name": name,
        "how": how,
        "unit": unit,
        "median": statistics.median(samples),
        "p10": tenths[0],
        "p90": tenths[8],
        "samples": len(samples),
        "cpu_seconds": cpu,
    }
    print(json.dumps(row), flush=True)


def cpu_seconds() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_seconds_of(pid: int) -> float:
    """CPU seconds of all threads of a process that live."""
    total = 0
    for schedstat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        total += int(schedstat.read_text().split()[0])
    return total / 1e9


def family() -> list[int]:
    """This process and everything that it started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def all_cpu() -> float:
    """CPU seconds of this process, everything that it started, and the broker."""
    return sum(map(cpu_seconds_of, [*family(), *broker()]))


def broker() -> list[int]:
    """The pid of the broker of these measurements, once it runs."""
    found = []
    for lock in Path(os.environ["CAUSEWAY_DIR"]).glob("*.lock"):
        found += [int(word) for word in lock.read_text().split()[:1]]
    return found


def alternate(
    rounds: int,
    batch: int,
    candidates: list[tuple[str, Callable[[], None]]],
    meter: Callable[[], float],
    pause: float = 0,
) -> dict[str, tuple[list[float], float]]:
    """Seconds of one call of each, in turn, after a pause; and the CPU seconds that meter counts."""
    found: dict[str, tuple[list[float], float]] = {}
    for name, call in candidates:  # warm
        call()
        found[name] = ([], 0.0)
    for _ in range(rounds):
        for name, call in candidates:
            time.sleep(pause)
            used, begun = meter(), time.perf_counter()
            for _ in range(batch):
                call()
            samples, cpu = found[name]
            samples.append((time.perf_counter() - begun) / batch)
            found[name] = (samples, cpu + meter() - used)
    return found


# ---- warm get against attaching shared memory by name


def bench_get(rounds: int) -> None:
    """get(name) and close; SharedMemory(name=) and close; both also with an ndarray over the bytes."""
    import causeway as cw

    data = np.random.default_rng(1).random(1000)
    block = shared_memory.SharedMemory(create=True, size=data.nbytes)
    np.ndarray(data.shape, data.dtype, buffer=block.buf)[:] = data
    keep = cw.put("bench", data)

    def ours() -> None:
        cw.get("bench").close()

    def ours_array() -> None:
        array = cw.get("bench")
        assert array.numpy()[7] == data[7]
        array.close()

    def theirs() -> None:
        shared_memory.SharedMemory(name=block.name).close()

    def theirs_array() -> None:
        memory = shared_memory.SharedMemory(name=block.name)
        array = np.ndarray(data.shape, data.dtype, buffer=memory.buf)
        assert array[7] == data[7]
        del array
        memory.close()

    rows = alternate(
        rounds,
        300,
        [
            ("causeway get+close", ours),
            ("SharedMemory attach+close", theirs),
            ("causeway get, ndarray, close", ours_array),
            ("SharedMemory attach, ndarray, close", theirs_array),
        ],
        cpu_seconds,
    )
    for name, (samples, cpu) in rows.items():
        report("python get", name, "", "us", [s * 1e6 for s in samples], cpu)
    keep.close()
    block.close()
    block.unlink()


# ---- 64 MiB to a worker and back


def prepare(size: int, seed: int) -> None:
    """Initializer: makes the result that the worker gives back."""
    global RESULT
    RESULT = np.random.default_rng(seed).random(size // 8)


def swap(array: np.ndarray) -> np.ndarray:
    """Looks at the argument and gives back the prepared result, no longer what it was."""
    assert RESULT is not None
    RESULT[0] = array[::512].sum()
    return RESULT


def echo(array: np.ndarray) -> np.ndarray:
    """Gives the argument back."""
    return array


def add(array: np.ndarray) -> np.ndarray:
    """Gives a new array back."""
    return array + 1.0


def nothing(number: int) -> int:
    """No work."""
    return number


def bench_pool(rounds: int, size: int) -> None:
    """Pool.apply with an argument and a result of size bytes."""
    import causeway as cw

    context = multiprocessing.get_context("fork")
    random = np.random.default_rng(2)
    sources = [random.random(size // 8) for _ in range(3)]
    prepare(size, 3)
    assert RESULT is not None
    expected_result = RESULT.copy()
    with (
        context.Pool(2, prepare, (size, 3)) as theirs,
        cw.Pool(2, prepare, (size, 3), context="fork") as ours,
    ):
        turn = 0

        def call(pool: object, work: Callable[[np.ndarray], np.ndarray]) -> None:
            nonlocal turn
            source = sources[turn // 2 % 3]
            turn += 1
            back = pool.apply(work, (source,))  # type: ignore[attr-defined]
            if work is swap:
                assert back[0] == source[::512].sum()
                assert np.array_equal(back[1::4093], expected_result[1::4093])
            else:
                assert np.array_equal(back[::4093], source[::4093] + (1.0 if work is add else 0.0))

        for title, work, pause in (
            ("new result", swap, 0),
            ("new result, after 0.1 s", swap, 0.1),
            ("echo", echo, 0),
            ("x + 1", add, 0),
        ):
            rows = alternate(
                rounds,
                1,
                [
                    (f"causeway.Pool, {title}", lambda work=work: call(ours, work)),
                    (f"multiprocessing.Pool, {title}", lambda work=work: call(theirs, work)),
                ],
                all_cpu,
                pause,
            )
            for name, (samples, cpu) in rows.items():
                how = "sleeps" if pause or name.startswith("multi") else "adaptive"
                report("pool 64 MiB", name, how, "ms", [s * 1e3 for s in samples], cpu)
        rows = alternate(
            rounds,
            1,
            [
                ("causeway.Pool, no-op", lambda: _map_nothing(ours)),
                ("multiprocessing.Pool, no-op", lambda: _map_nothing(theirs)),
            ],
            all_cpu,
        )
        for name, (samples, cpu) in rows.items():
            how = "sleeps" if name.startswith("multi") else "adaptive"
            report("pool task", name, how, "us", [s * 1e6 / 1000 for s in samples], cpu)


def _map_nothing(pool: object) -> None:
    """1,000 tasks one by one."""
    assert len(pool.map(nothing, range(1000), chunksize=1)) == 1000  # type: ignore[attr-defined]


# ---- what an idle pool takes


def bench_idle(seconds: float) -> None:
    """CPU of parent, workers and broker while nobody asks anything."""
    import causeway as cw

    context = multiprocessing.get_context("fork")
    makers: list[tuple[str, Callable[[], object]]] = [
        ("causeway.Pool(2): CPU while idle", lambda: cw.Pool(2, context="fork")),
        ("multiprocessing.Pool(2): CPU while idle", lambda: context.Pool(2)),
    ]
    for name, make in makers:
        with make() as pool:  # type: ignore[attr-defined]
            pool.map(nothing, range(10))
            time.sleep(1)
            others = [*family()[1:], *broker()]
            used = sum(map(cpu_seconds_of, others))
            used += cpu_seconds_of(os.getpid())  # last here, first below: looking is no part of it
            begun = time.perf_counter()
            time.sleep(seconds)
            passed = time.perf_counter() - begun
            now = cpu_seconds_of(os.getpid())
            share = (now + sum(map(cpu_seconds_of, others)) - used) / passed
        report("idle", name, "sleeps", "%", [100 * share], None)


def main() -> None:
    """Runs all of them, with a broker in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="causeway-bench-") as folder:
        os.environ["CAUSEWAY_DIR"] = folder
        os.environ.pop("CAUSEWAY_NAMESPACE", None)
        bench_get(max(options.rounds, 20) * 2)
        bench_pool(options.rounds, 64 * MIB)
        bench_idle(options.seconds)
        end_broker(Path(folder))


def end_broker(folder: Path) -> None:
    """Ends the broker that the measurements started."""
    for lock in folder.glob("*.lock"):
        words = lock.read_text().split()
        if not words:
            continue
        os.kill(int(words[0]), 15)
        for _ in range(500):
            if not Path(f"/proc/{words[0]}").exists():
                break
            time.sleep(0.01)


if __name__ == "__main__":
    main()
