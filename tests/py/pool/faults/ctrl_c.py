"""Signals at random moments of a Pool's whole life, in a loop; test_pool_interrupts.py runs it.

    python ctrl_c.py Pool|Executor ROUNDS

Prints how often the signal came into the block, and how many workers are left afterwards.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

from waiting import eventually

import cableway as cw


def square(x: int) -> int:
    return x * x


def once(kind: Any) -> None:
    named = "context" if kind is cw.Pool else "mp_context"
    with kind(2, **{named: multiprocessing.get_context("fork")}) as pool:
        list(pool.map(square, range(3)))


def children() -> set[str]:
    """The pids of this process's children."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def main() -> None:
    kind, rounds = getattr(cw, sys.argv[1]), int(sys.argv[2])
    once(kind)
    before = children()
    start = time.monotonic()
    once(kind)
    seconds = time.monotonic() - start
    interrupts = 0
    for _ in range(rounds):
        timer = threading.Timer(
            random.random() * seconds, lambda: os.kill(os.getpid(), signal.SIGINT)
        )
        try:
            timer.start()
            once(kind)
        except KeyboardInterrupt:
            interrupts += 1
        try:
            timer.join()
            time.sleep(0.001)  # so that a late one comes here
        except KeyboardInterrupt:
            pass
    gc.collect()
    eventually(lambda: children() <= before, 10)
    print(interrupts, len(children() - before))


if __name__ == "__main__":
    main()
