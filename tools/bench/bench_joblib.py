"""joblib's backend of ours beside loky, in one run, with as many workers: times, and the most memory taken.

- *no-op*: joblib.Parallel on 2,000 tasks that do nothing, one by one (batch_size=1) and in joblib's own batches. All
  backends pay joblib's own share in the parent; the row "joblib's own share" is a backend that runs the batch at once
  where it is submitted, without any other process or thread. joblib looks for results every 10 ms.
- *one array*: 40 short tasks that all get one array of 61 MiB; both backends share it.
- *GridSearchCV*: scikit-learn on data that it brings along. Short fits: 150 of decision trees on 1,797 handwritten
  digits (0.9 MiB). A larger X: 20 of ridge regressions that guess a pixel of a photograph from the 24 around it
  (51 MiB). Every backend must find the same scores.

Memory is that of a run in a process of its own, summed over all its processes and our broker, at the moment when it
was most: private pages, the part of shared files, and shared memory in full. Sampled every 20 ms.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tasks
from measure import MIB, PeakMemory, all_cpu, alternate, own_broker, report, skipped

BACKENDS = ["loky", "cableway"]
HOWS = {"cableway": "adaptive", "loky": "sleeps"}
TASKS = 2000


def compare(
    bench: str, rounds: int, scale: float, unit: str, call: Callable[[str], None], *more: str
) -> None:
    """Alternates the backends."""
    names = [*BACKENDS, *more]
    rows = alternate(rounds, 1, [(name, functools.partial(call, name)) for name in names], all_cpu)
    for name, (samples, cpu) in rows.items():
        report(bench, name, HOWS.get(name, ""), unit, [sample * scale for sample in samples], cpu)


# ---- what a task costs


def register_own_share() -> str:
    """A backend that runs each batch where it is submitted: what remains is joblib's own work."""
    import joblib
    from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

    class AtOnce(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
        supports_retrieve_callback = True

        def effective_n_jobs(self, n_jobs: int) -> int:
            return n_jobs

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.waiting: list[tuple[Callable[[], Any], Callable[[Any], object]]] = []
            self.works = False

        def submit(self, func: Callable[[], Any], callback: Callable[[Any], object]) -> Any:
            self.waiting.append((func, callback))
            if self.works:  # called by a callback below
                return
            self.works = True
            while self.waiting:
                batch, call = self.waiting.pop()
                call(batch())
            self.works = False

        apply_async = submit

        def retrieve_result_callback(self, found: Any) -> Any:
            return found

    name = "joblib's own share"
    joblib.register_parallel_backend(name, AtOnce)
    return name


def no_ops(workers: int, batch_size: int | str, backend: str) -> None:
    """TASKS tasks that do nothing."""
    import joblib

    calls = (joblib.delayed(tasks.nothing)(number) for number in range(TASKS))
    found = joblib.Parallel(n_jobs=workers, backend=backend, batch_size=batch_size)(calls)
    assert found == list(range(TASKS))


def on_one_array(workers: int, values: np.ndarray, sums: list[float], backend: str) -> None:
    """A short task for each column."""
    import joblib

    calls = (joblib.delayed(tasks.column_sum)(values, number) for number in range(40))
    assert joblib.Parallel(n_jobs=workers, backend=backend, batch_size=1)(calls) == sums


# ---- scikit-learn


def digits() -> tuple[Any, np.ndarray, np.ndarray]:
    """Short fits of decision trees."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import GridSearchCV
    from sklearn.tree import DecisionTreeClassifier

    features, labels = load_digits(return_X_y=True)
    grid = {"max_depth": [2, 4, 6, 8, 10, 12], "min_samples_leaf": [1, 2, 4, 8, 16]}
    return GridSearchCV(DecisionTreeClassifier(random_state=0), grid, cv=5), features, labels


def pixels() -> tuple[Any, np.ndarray, np.ndarray]:
    """Ridge regressions of a pixel on the 24 around it."""
    from sklearn.datasets import load_sample_image
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV

    grey = load_sample_image("china.jpg").mean(axis=2)
    windows = np.lib.stride_tricks.sliding_window_view(grey, (5, 5)).reshape(-1, 25)
    features, centre = np.delete(windows, 12, axis=1), windows[:, 12].copy()
    return GridSearchCV(Ridge(), {"alpha": [0.1, 1.0, 10.0, 100.0]}, cv=5), features, centre


SEARCHES = {"short fits on digits": digits, "51 MiB of pixels": pixels}


def search(title: str, workers: int, backend: str) -> list[float]:
    """The scores of a grid search."""
    import joblib
    from sklearn.base import clone

    grid, features, labels = prepared(title)
    with joblib.parallel_config(backend, n_jobs=workers):
        found = clone(grid).set_params(n_jobs=workers).fit(features, labels)
    return list(found.cv_results_["mean_test_score"])


@functools.cache
def prepared(title: str) -> tuple[Any, np.ndarray, np.ndarray]:
    """The search and its data."""
    return SEARCHES[title]()


def alone(title: str, workers: int, backend: str) -> None:
    """In a process of its own: two searches, for its memory."""
    import cableway.joblib

    for _ in range(2):
        search(title, workers, backend)
    cableway.joblib.shutdown()


def peaks(title: str, workers: int, rounds: int) -> None:
    """The most memory that each backend's processes take together."""
    found: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for _ in range(rounds):
        for backend, samples in found.items():
            with own_broker() as folder:
                command = [sys.executable, __file__, "--alone", title, "--backend", backend]
                child = subprocess.Popen([*command, "--workers", str(workers)])
                with PeakMemory(child.pid, str(folder)) as peak:
                    if child.wait():
                        raise RuntimeError(f"{command} ended with {child.returncode}")
                samples.append(peak.bytes / MIB)
    for backend, samples in found.items():
        report(f"joblib GridSearchCV, {title}, peak memory", backend, "", "MiB", samples)


def groups(workers: int, rounds: int) -> Iterator[Callable[[], None]]:
    """All comparisons."""
    own_share = register_own_share()
    for title, size in (("batches of 1", 1), ("joblib's batches", "auto")):
        call = functools.partial(no_ops, workers, size)
        yield functools.partial(
            compare, f"joblib no-op, {title}", rounds, 1e6 / TASKS, "us", call, own_share
        )
    values = np.random.default_rng(4).random((200_000, 40))
    sums = [tasks.column_sum(values, number) for number in range(40)]
    shared = functools.partial(on_one_array, workers, values, sums)
    yield functools.partial(
        compare, "joblib one array of 61 MiB, 40 tasks", rounds, 1e3, "ms", shared
    )
    if importlib.util.find_spec("sklearn") is None:
        yield lambda: skipped("joblib", "scikit-learn is not installed")
        return
    for title in SEARCHES:
        expected = search(title, workers, "sequential")

        def fit(backend: str, title: str = title, expected: list[float] = expected) -> None:
            assert search(title, workers, backend) == expected

        yield functools.partial(compare, f"joblib GridSearchCV, {title}", rounds, 1e3, "ms", fit)
        yield functools.partial(peaks, title, workers, 3)


def main() -> None:
    """Runs all of them, with a broker in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--alone", default="", help=argparse.SUPPRESS)
    parser.add_argument("--backend", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if importlib.util.find_spec("joblib") is None:
        skipped("joblib", "joblib is not installed")
        return
    if options.alone:
        alone(options.alone, options.workers, options.backend)
        return
    import cableway.joblib

    with own_broker():
        for group in groups(options.workers, options.rounds):
            group()
        cableway.joblib.shutdown()


if __name__ == "__main__":
    main()
