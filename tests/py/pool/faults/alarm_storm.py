"""A program whose main thread is interrupted again and again by a signal's handler that raises, while it takes results of a
pool, and other threads take theirs. test_pool_alarms.py runs it.

    python alarm_storm.py MODULE WHAT KIND ALARMS [METHOD]

MODULE has the Pool: multiprocessing or cableway. WHAT is raised: the name of an exception. KIND: arrays or plain. Runs until
ALARMS were raised, and prints as JSON: how many were raised, how many of them came out where the pool was called,
how many calls went well, and what else came out; the same of the other threads; what Python printed as not raised anywhere.
"""

from __future__ import annotations

import collections
import importlib
import json
import random
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

MODULE, WHAT, KIND, ALARMS = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
METHOD = sys.argv[5] if len(sys.argv) > 5 else "fork"
MOST_SECONDS = 0.004


class Custom(Exception):
    """One of the user's."""


class CustomBase(BaseException):
    """One that `except Exception` lets pass."""


KINDS: dict[str, type[BaseException]] = {
    "Custom": Custom, "CustomBase": CustomBase, "TimeoutError": TimeoutError, "ValueError": ValueError,
    "SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt,
}  # fmt: skip


def same(x: Any) -> Any:
    return x


class Storm:
    """What was seen."""

    def __init__(self) -> None:
        self.kind = KINDS[WHAT]
        self.raised = 0
        self.lost: list[str] = []
        self.main: collections.Counter[str] = collections.Counter()
        self.others: collections.Counter[str] = collections.Counter()
        self.over = False

    def handler(self, *_: object) -> None:
        self.raised += 1
        raise self.kind(f"alarm {self.raised}")

    def unraisable(self, told: Any) -> None:
        self.lost.append(f"{told.exc_value!r} in {told.object!r}")

    def right(self, found: Any, wanted: Any) -> str:
        # Not np.array_equal(): it takes an alarm that comes late for arrays that differ.
        good = len(found) == len(wanted) and all(
            np.shape(a) == np.shape(b) and bool(np.all(a == b))
            for a, b in zip(found, wanted, strict=True)
        )
        return "ok" if good else f"WRONG {found!r:.80}"

    def other(self, pool: Any, values: list[Any]) -> None:
        """Takes results of its own, on its own thread."""
        while not self.over:
            try:
                self.others[self.right([pool.apply(same, (values[0],))], values[:1])] += 1
                self.others[self.right(pool.map(same, values), values)] += 1
            except BaseException as error:
                self.others[repr(error)[:200]] += 1

    def ways(self, pool: Any, executor: Any, values: list[Any]) -> list[Any]:
        """Each way to get results; they all give values."""
        ways = [
            lambda: [pool.apply(same, (value,)) for value in values],
            lambda: pool.map(same, values),
            lambda: list(pool.imap(same, iter(values))),
            lambda: list(pool.imap(same, values)),
            lambda: [result.get() for result in [pool.apply_async(same, (v,)) for v in values]],
        ]
        if executor is not None:
            ways.append(lambda: [f.result() for f in [executor.submit(same, v) for v in values]])
        return ways

    def once(self, way: Any, values: list[Any]) -> None:
        before = self.raised
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.random() * MOST_SECONDS + 1e-5)
                found = way()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            what = self.right(found, values)
        except self.kind as error:
            what = "raised" if str(error).startswith("alarm ") else repr(error)[:200]
        except BaseException as error:
            what = repr(error)[:200]
        if self.raised != before and what == "ok":
            what = (
                "swallowed"  # or it came after the call had ended, and before the timer was stopped
            )
        self.main[what] += 1

    def run(self) -> None:
        signal.signal(signal.SIGALRM, self.handler)
        sys.unraisablehook = self.unraisable
        module = importlib.import_module(MODULE)
        values: list[Any] = [0, "one", 2.0]
        if KIND == "arrays":
            values = [np.arange(20_000.0) + n for n in range(3)]
        pool = module.get_context(METHOD).Pool(2) if MODULE == "multiprocessing" else module.Pool(2, context=METHOD)  # fmt: skip
        executor = None if MODULE == "multiprocessing" else module.Executor(2, mp_context=METHOD)
        pool.map(same, values)
        if executor is not None:
            list(
                executor.map(same, values)
            )  # its workers are there: what handlers raise in a fork, Python prints
        others = [threading.Thread(target=self.other, args=(pool, values)) for _ in range(2)]
        for thread in others:
            thread.start()
        ways = self.ways(pool, executor, values)
        while self.raised < ALARMS:
            self.once(random.choice(ways), values)
        self.over = True
        for thread in others:
            thread.join()
        pool.close()
        pool.join()
        if executor is not None:
            executor.shutdown()


if __name__ == "__main__":
    began, storm = time.monotonic(), Storm()
    storm.run()
    print(json.dumps({
        "raised": storm.raised, "main": storm.main, "others": storm.others, "lost": storm.lost,
        "seconds": time.monotonic() - began,
    }))  # fmt: skip
