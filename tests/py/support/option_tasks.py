"""What the tests of the Pool's options run in workers."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


class Fault(Exception):
    """What a task raises."""


def die_at_first(path: str, times: int) -> str:
    """Is killed the first few times that it runs."""
    with Path(path).open("a") as file:
        file.write(".")
    if Path(path).stat().st_size <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def die_at_first_of(call: tuple[str, int]) -> str:
    return die_at_first(*call)


def die_at_first_with(path: str, values: Any) -> float:
    die_at_first(path, 1)
    return float(values.sum())


def count_and_fail(path: str) -> None:
    with Path(path).open("a") as file:
        file.write(".")
    raise Fault


def count_and_sleep(path: str, seconds: float) -> None:
    with Path(path).open("a") as file:
        file.write(".")
    time.sleep(seconds)


def fail(_: Any) -> None:
    raise Fault


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def print_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def print_and_die(text: str) -> None:
    print_error(text)
    os.kill(os.getpid(), signal.SIGKILL)


def leave_a_child_that_prints() -> None:
    """Dies, while a child of it prints as long as somebody reads."""
    if os.fork() == 0:
        signal.alarm(2)  # a forked worker has the other end, too: nothing else would end it
        while True:
            os.write(2, b"x" * 4096)
    os.kill(os.getpid(), signal.SIGKILL)
