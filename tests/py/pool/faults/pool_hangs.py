"""A script that makes a pool wait for what will never come; test_pool_hangs.py runs it.

    python pool_hangs.py MODULE CASE

MODULE has the Pool: multiprocessing or cableway. Prints "begun", then what the call raised, then what the pool gives
after it, then "ended" once its workers have.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any


class FaultThatCannotBeRead(Exception):
    """Its arguments are not those of its class: unpickling it raises TypeError."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)


class ResultThatCannotBeRead:
    """Unpickling it in the parent raises."""

    def __reduce__(self) -> Any:
        return refuse_outside, (os.getpid(),)


def refuse_outside(home: int) -> None:
    if os.getpid() != home:
        raise RuntimeError("not to be unpickled here")


def nothing_wrong(x: int) -> int:
    return x * x


def killed(x: int) -> int:
    if x == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def exits(x: int) -> int:
    if x == 3:
        sys.exit(5)
    return x


def exits_at_once(x: int) -> int:
    if x == 3:
        os._exit(5)
    return x


def unreadable_exception(x: int) -> int:
    if x == 3:
        raise FaultThatCannotBeRead("three", 3)
    return x


def unreadable_result(x: int) -> Any:
    return ResultThatCannotBeRead() if x == 3 else x


def failing_initializer(*_: int) -> None:
    raise LookupError("no licence")


def failing_callback(_: Any) -> None:
    raise LookupError("in a callback")


def call(pool: Any, case: str) -> Any:
    """The call that never returns."""
    if case == "failing_callback":
        return pool.map_async(nothing_wrong, range(6), 1, failing_callback).get()
    return pool.map(globals()[case], range(6), 1)


def main(module: str, case: str) -> None:
    initializer = failing_initializer if case == "failing_initializer" else None
    pool = importlib.import_module(module).Pool(2, initializer)
    print("begun", flush=True)
    for attempt in (lambda: call(pool, case), lambda: pool.map(nothing_wrong, range(6), 1)):
        try:
            print(attempt(), flush=True)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
    pool.close()
    pool.join()
    print("ended", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
