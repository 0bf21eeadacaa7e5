"""The arrangements that the demo compares: the same tasks, run by different means, one arrangement in a process.

    python arrangements.py ARRANGEMENT SEARCH WORKERS

prints one line of JSON: the seconds from the first byte of data to the last score (starting the workers and handing
them the data included, importing libraries in this process not), and the scores.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import work

import cableway as cw

Scores = Iterable[float]

# ---- serial: the plain loop ----------------------------------------------------------------------


def serial(search: str, workers: int) -> Scores:
    """One task after another in this process."""
    x, y = in_private_memory(search)
    return [work.evaluate(task, x, y) for task in work.tasks(search)]


def in_private_memory(search: str) -> tuple[work.Floats, work.Floats]:
    """The training data as ordinary arrays."""
    rows, features = work.rows(search)
    x, y = np.empty((rows, features)), np.empty(rows)
    work.fill(search, x, y)
    return x, y


# ---- multiprocessing.Pool: data travel with the tasks -----------------------------------------------


def evaluate_given(x: work.Floats, y: work.Floats, task: work.Task) -> float:
    """A task with its data as arguments."""
    return work.evaluate(task, x, y)


def arguments(search: str, workers: int) -> Scores:
    """The data are arguments of the function: pickled once for each chunk of tasks."""
    x, y = in_private_memory(search)
    with multiprocessing.Pool(workers) as pool:
        return pool.map(partial(evaluate_given, x, y), work.tasks(search))


# ---- multiprocessing.Pool: each worker gets its own copy once ----------------------------------------

given: list[work.Floats] = []


def keep(x: work.Floats, y: work.Floats) -> None:
    """Initializer: keeps the data in a global."""
    given[:] = [x, y]


def evaluate_kept(task: work.Task) -> float:
    """A task on the data that the initializer kept."""
    return work.evaluate(task, given[0], given[1])


def copies(search: str, workers: int) -> Scores:
    """Spawned workers, as with threads or GPUs in the parent: each gets a copy of the data when it starts."""
    x, y = in_private_memory(search)
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(workers, initializer=keep, initargs=(x, y)) as pool:
        return pool.map(evaluate_kept, work.tasks(search))


def inherited(search: str, workers: int) -> Scores:
    """Forked workers inherit a global: no copy, but only of data that were there before the fork."""
    keep(*in_private_memory(search))
    fork = multiprocessing.get_context("fork")
    with fork.Pool(workers) as pool:
        return pool.map(evaluate_kept, work.tasks(search))


# ---- cableway.Pool: workers read the data by name ------------------------------------------------------


def evaluate_named(task: work.Task) -> float:
    """A task on the data that stand under a name: nothing is copied, nothing is passed."""
    x = cw.get(f"demo/{task.search}/x", readonly=True)
    y = cw.get(f"demo/{task.search}/y", readonly=True)
    return work.evaluate(task, np.asarray(x), np.asarray(y))


def named(search: str, workers: int) -> Scores:
    """The data are made in shared memory and named; any process of the user may read them, whenever it began."""
    rows, features = work.rows(search)
    x, y = cw.empty((rows, features)), cw.empty(rows)
    work.fill(search, np.asarray(x), np.asarray(y))
    cw.put(f"demo/{search}/x", x)
    cw.put(f"demo/{search}/y", y)
    with cw.Pool(workers) as pool:
        return pool.map(evaluate_named, work.tasks(search))


ARRANGEMENTS: dict[str, tuple[str, Callable[[str, int], Scores]]] = {
    "serial": ("serial", serial),
    "arguments": ("multiprocessing.Pool, data as arguments", arguments),
    "copies": ("multiprocessing.Pool, spawned, a copy each", copies),
    "inherited": ("multiprocessing.Pool, forked, inherited", inherited),
    "named": ("cableway.Pool, data by name", named),
}


def cpu_seconds() -> float:
    """Processor time of this process and of the children that have ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def main() -> None:
    """Runs one arrangement and prints its times and scores."""
    arrangement, search, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    began, cpu_began = time.perf_counter(), cpu_seconds()
    scores = list(ARRANGEMENTS[arrangement][1](search, workers))
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "cpu": cpu_seconds() - cpu_began, "scores": scores}))


if __name__ == "__main__":
    main()
