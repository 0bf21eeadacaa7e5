"""`Executor` beside ProcessPoolExecutor, and joblib's backend beside loky, in one run.

Prints one JSON line a measurement, as the other benchmarks do.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
from bench_python import all_cpu, alternate, end_broker, nothing, report

TASKS = 200
OURS, THEIRS = "causeway.Executor", "ProcessPoolExecutor"


def tell(bench: str, rows: dict[str, tuple[list[float], float]], unit: str, scale: float) -> None:
    """Prints the rows of one comparison."""
    for name, (samples, cpu) in rows.items():
        how = "adaptive" if name.startswith("causeway") else "sleeps"
        report(bench, name, how, unit, [sample * scale for sample in samples], cpu)


def bench_executor(rounds: int) -> None:
    """submit and wait, many submits at once, map, and a submit after a pause."""
    import causeway as cw

    context = multiprocessing.get_context("fork")
    with (
        futures.ProcessPoolExecutor(2, context) as theirs,
        cw.Executor(2, context) as ours,
    ):

        def round_trips(executor: Any) -> None:
            for number in range(TASKS):
                assert executor.submit(nothing, number).result() == number

        def many(executor: Any) -> None:
            calls = [executor.submit(nothing, number) for number in range(TASKS)]
            assert [call.result() for call in calls] == list(range(TASKS))

        def mapped(executor: Any) -> None:
            assert list(executor.map(nothing, range(TASKS))) == list(range(TASKS))

        work: list[tuple[str, Callable[[Any], None], int, float]] = [
            ("submit and result", round_trips, TASKS, 0),
            ("submits at once", many, TASKS, 0),
            ("map", mapped, TASKS, 0),
            (
                "submit and result, after 0.1 s",
                lambda executor: executor.submit(nothing, 0).result(),
                1,
                0.1,
            ),
        ]
        for title, call, count, pause in work:
            rows = alternate(
                rounds,
                1,
                [
                    (f"{OURS}, {title}", lambda call=call: call(ours)),
                    (f"{THEIRS}, {title}", lambda call=call: call(theirs)),
                ],
                all_cpu,
                pause,
            )
            tell("executor", rows, "us", 1e6 / count)


def column_sum(values: np.ndarray, number: int) -> float:
    """A short task on a large array."""
    return float(values[:, number].sum())


def bench_joblib(rounds: int) -> None:
    """Batches of one no-op, and short tasks that all get one large array."""
    if importlib.util.find_spec("joblib") is None:
        print(json.dumps({"bench": "joblib", "skipped": "joblib is not installed"}), flush=True)
        return
    import joblib

    import causeway.joblib

    values = np.random.default_rng(4).random((200_000, 40))

    def no_ops(backend: str) -> None:
        calls = (joblib.delayed(abs)(-number) for number in range(TASKS))
        found = joblib.Parallel(n_jobs=2, backend=backend, batch_size=1)(calls)
        assert found == list(range(TASKS))

    def on_an_array(backend: str) -> None:
        calls = (joblib.delayed(column_sum)(values, number) for number in range(40))
        found = joblib.Parallel(n_jobs=2, backend=backend, batch_size=1)(calls)
        assert found[7] == values[:, 7].sum()

    for title, call, scale, unit in (
        ("no-op, batches of 1", no_ops, 1e6 / TASKS, "us"),
        ("40 tasks on 61 MiB", on_an_array, 1e3, "ms"),
    ):
        rows = alternate(
            rounds,
            1,
            [(f"{name}, {title}", lambda c=call, n=name: c(n)) for name in ("causeway", "loky")],
            all_cpu,
        )
        tell("joblib", rows, unit, scale)
    causeway.joblib.shutdown()


def main() -> None:
    """Runs all of them, with a broker in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="causeway-bench-") as folder:
        os.environ["CAUSEWAY_DIR"] = folder
        os.environ.pop("CAUSEWAY_NAMESPACE", None)
        bench_executor(options.rounds)
        bench_joblib(max(options.rounds // 2, 5))
        end_broker(Path(folder))


if __name__ == "__main__":
    main()
