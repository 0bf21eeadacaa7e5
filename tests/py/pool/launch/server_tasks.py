"""Functions for the workers of the tests of the workers' server: spawn and forkserver find them by this module's name."""

from __future__ import annotations

import os
import random
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

given: list[Any] = []


def parent_pid(_: Any = None) -> int:
    return os.getppid()


def write_parent_pid(path: str) -> None:
    with open(path, "w") as file:
        print(os.getppid(), file=file)


def surroundings(name: str) -> tuple[Any, ...]:
    """What a process is told and inherits."""
    return (
        os.environ.get(name),
        os.getcwd(),
        list(sys.argv),
        list(sys.path),
        os.sched_getaffinity(0),
    )


def draws(_: Any = None) -> tuple[float, float]:
    time.sleep(0.05)  # so that no worker takes two tasks
    return random.random(), float(np.random.random())


def modules(_: Any = None) -> set[str]:
    return set(sys.modules)


def end(code: int) -> None:
    os._exit(code)


def nap() -> None:
    time.sleep(60)


def say(words: str) -> None:
    print(words, flush=True)


def keep(*values: Any) -> None:
    given.extend(values)


def send_back(words: str) -> None:
    connection: Connection = given[0]
    with given[1]:
        connection.send(words)


def keep_queue(queue: Any) -> None:
    given.append(queue)


def put_into_given(size: int) -> None:
    given[0].put(bytes(size))
