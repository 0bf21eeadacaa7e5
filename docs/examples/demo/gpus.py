"""The demo's part on GPUs: a grid search of a kernel ridge regression with CuPy, on every GPU of the machine.

The data stand under the names that the first part of the demo has given them. Each worker brings them to its own GPU once; a task is
one candidate (alpha, gamma), trained and scored on all folds. NumPy does the same in one process, to compare with.
"""

from __future__ import annotations

import importlib.util
import time
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import work

import cableway as cw

ALPHA, GAMMA, FOLDS = np.logspace(-4, 1, 6), np.logspace(-1, 3, 6), 5
AGREE = 1e-6  # of R²: other orders of adding up, in the solution of systems of 353 equations

given: list[Any] = []  # of a worker: cupy, and the data on its GPU


class Outcome(NamedTuple):
    """What the search gave.

    Attributes:
        scores: (alpha, gamma, fold), R².
        seconds: of the search, its workers being there.
        by_worker: how many tasks each has done.
    """

    scores: work.Floats
    seconds: float
    by_worker: list[int]


def why_not() -> str | None:
    """Why nothing can be done on GPUs here; None if it can."""
    if cw.devices() == ["cpu"]:
        return "there is no GPU here"
    if importlib.util.find_spec("cupy") is None:
        return "there are GPUs, but CuPy is not installed"
    return None


def scores_of(xp: Any, x: Any, y: Any, alpha: float, gamma: float) -> list[float]:
    """R² of a candidate on each fold, by NumPy or CuPy."""
    squared = ((x[:, None, :] - x[None, :, :]) ** 2).sum(axis=2)
    kernel = xp.exp(-gamma * squared)
    found = []
    for fold in range(FOLDS):
        held_out = slice(len(x) * fold // FOLDS, len(x) * (fold + 1) // FOLDS)
        train = xp.ones(len(x), bool)
        train[held_out] = False
        (rows,) = xp.nonzero(train)
        mean = y[rows].mean()
        dual = xp.linalg.solve(kernel[rows][:, rows] + alpha * xp.eye(len(rows)), y[rows] - mean)
        residual = y[held_out] - mean - kernel[held_out][:, rows] @ dual
        spread = y[held_out] - y[held_out].mean()
        found.append(float(1 - (residual**2).sum() / (spread**2).sum()))
    return found


def keep() -> None:
    """Initializer: brings the data to the worker's own GPU, which is cuda:0 for it."""
    import cupy

    given[:] = [cupy, *(cupy.asarray(cw.get(f"demo/svr/{name}", device="cuda:0")) for name in "xy")]


def evaluate(candidate: tuple[float, float]) -> list[float]:
    """A task: one candidate."""
    return scores_of(*given, *candidate)


def search() -> Outcome:
    """On every GPU."""
    candidates = list(product(ALPHA.tolist(), GAMMA.tolist()))
    with cw.Pool(devices="cuda", initializer=keep) as pool:
        pool.map(evaluate, candidates[: 2 * len(cw.devices())], chunksize=1)  # CuPy compiles
        before = [worker["tasks"] for worker in pool.stats()["workers"]]
        begin = time.perf_counter()
        found = pool.map(evaluate, candidates, chunksize=1)
        seconds = time.perf_counter() - begin
        by_worker = [w["tasks"] - b for w, b in zip(pool.stats()["workers"], before, strict=True)]
    return Outcome(np.array(found).reshape(len(ALPHA), len(GAMMA), FOLDS), seconds, by_worker)


def reference() -> Outcome:
    """The same by NumPy, in this process."""
    x, y = (cw.get(f"demo/svr/{name}").numpy() for name in "xy")
    begin = time.perf_counter()
    found = [scores_of(np, x, y, alpha, gamma) for alpha, gamma in product(ALPHA, GAMMA)]
    seconds = time.perf_counter() - begin
    return Outcome(np.array(found).reshape(len(ALPHA), len(GAMMA), FOLDS), seconds, [len(found)])


def show() -> bool:
    """Does both, prints what they took. Whether they agree; also True where there is no GPU, which it says."""
    reason = why_not()
    if reason is not None:
        print(f"\nnothing was done on GPUs: {reason}")
        return True
    on_gpus, on_cpu = search(), reference()
    apart = float(abs(on_gpus.scores - on_cpu.scores).max())
    agree = apart < AGREE
    print(
        f"\nKernel ridge regression over the same data, {len(ALPHA) * len(GAMMA)} candidates on {FOLDS} folds: "
        f"{on_gpus.seconds:.2f} s by CuPy on {len(cw.devices()) - 1} GPUs (candidates by worker: {on_gpus.by_worker}), "
        f"{on_cpu.seconds:.2f} s by NumPy on one core; "
        f"{'the scores agree' if agree else 'the scores DIFFER'} (largest difference {apart:.1e})"
    )
    return agree
