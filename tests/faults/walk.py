"""A walk over the Python package, with a Pool, an Executor and queues: what `make faults` makes calls fail in.

Without a failing call none of its steps raises. With one, a step that raises does so with an exception that says what
was lacking ("told ..." is printed), and succeeds when it is made again; whatever comes back is right. Exit status 0: so
it was; 1: it was not, and "wrong ..." says what. It has no time limit of its own: faults.py has.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
import sys
from collections.abc import Callable
from typing import TypeVar

import numpy as np

import cableway as cw

T = TypeVar("T")
TOLD = (cw.LimitExceeded, MemoryError, OSError, cw.BrokerLost)
LARGE = 200_000  # numbers: far too large for a message
failures = 0


def say(text: str) -> None:
    """A line at once."""
    print(text, flush=True)


def step(name: str, call: Callable[[], T], right: Callable[[T], bool]) -> None:
    """The call gives what is right, or raises once, says why, and then does."""
    global failures
    for again in (False, True):
        try:
            got = call()
        except TOLD as error:
            failures += 1
            say(f"told {name}: {type(error).__name__}: {error}")
            if again or not (str(error) or isinstance(error, MemoryError)):
                say(f"wrong {name}: it raises again, or has no sentence")
                sys.exit(1)
            continue
        if not right(got):
            say(f"wrong {name}: it gave {got!r:.200}")
            sys.exit(1)
        return


# ---- tasks


def square(x: int) -> int:
    """A small task."""
    return x * x


def total(array: np.ndarray) -> float:
    """One with a large argument."""
    return float(array.sum())


def ones(count: int) -> np.ndarray:
    """One with a large result."""
    return np.ones(count)


def first_of(array: cw.Array) -> float:
    """One with a handle."""
    return float(array[0])


def named(name: str) -> float:
    """One that looks a name up."""
    return float(cw.get(name).numpy().sum())


# ---- parts


def arrays() -> None:
    """Names, handles and views."""
    data = np.arange(LARGE, dtype=np.float64)
    step("put", lambda: cw.put("walk/a", data), lambda a: a.nbytes == data.nbytes)
    step("get", lambda: cw.get("walk/a").numpy(), lambda a: bool((a == data).all()))
    step("names", lambda: list(cw.names("walk/")), lambda names: names == ["walk/a"])
    step("empty", lambda: cw.empty(1000), lambda a: a.shape == (1000,))
    step(
        "pickle",
        lambda: pickle.loads(pickle.dumps(cw.get("walk/a"))).numpy(),
        lambda a: bool((a == data).all()),
    )
    step("wait", lambda: cw.wait("walk/a", timeout=5), lambda _: True)

    def remove() -> None:
        with contextlib.suppress(cw.NameNotFound):
            cw.remove("walk/a")

    step("remove", remove, lambda _: True)
    step("gone", lambda: list(cw.names("walk/")), lambda names: names == [])


def pool_steps(pool: cw.Pool) -> None:
    """What a Pool does for its callers."""
    data = np.arange(LARGE, dtype=np.float64)
    step("map", lambda: pool.map(square, range(50)), lambda r: r == [x * x for x in range(50)])
    step("apply", lambda: pool.apply(square, (7,)), lambda r: r == 49)
    step("arguments", lambda: pool.map(total, [data] * 3), lambda r: r == [float(data.sum())] * 3)
    step(
        "results",
        lambda: pool.map(ones, [LARGE] * 3),
        lambda r: all(len(a) == LARGE and bool((a == 1).all()) for a in r),
    )
    step(
        "imap",
        lambda: list(pool.imap(square, range(20))),
        lambda r: r == [x * x for x in range(20)],
    )
    step(
        "async",
        lambda: pool.map_async(square, range(9)).get(),
        lambda r: r == [x * x for x in range(9)],
    )
    step("handle", lambda: pool.apply(first_of, (cw.put("walk/b", data),)), lambda r: r == 0.0)
    step("named", lambda: pool.apply(named, ("walk/b",)), lambda r: r == float(data.sum()))
    with contextlib.suppress(cw.NameNotFound):
        step("remove", lambda: cw.remove("walk/b"), lambda _: True)


def pools() -> None:
    """A Pool and an Executor."""
    made: list[cw.Pool] = []
    step("Pool", lambda: made.append(cw.Pool(2)), lambda _: True)
    pool_steps(made[0])
    made[0].close()
    made[0].join()
    del made[0]
    executors: list[cw.Executor] = []
    step("Executor", lambda: executors.append(cw.Executor(2)), lambda _: True)
    step("submit", lambda: executors[0].submit(square, 5).result(), lambda r: r == 25)
    step("executor map", lambda: list(executors[0].map(square, range(30))), lambda r: r[29] == 841)
    executors[0].shutdown()
    executors.clear()


def sum_and_write(array: np.ndarray, factor: int) -> float:
    """One with an array that recurs in a call, and of which it writes to its own view."""
    array *= factor
    return float(array.sum())


def scaled(model: dict[str, np.ndarray], factor: int) -> float:
    """One with a constant."""
    return float(model["a"].sum()) * factor


def more_pools() -> None:
    """A Pool with options; what recurs in a call, and what is made a constant."""
    data = np.ones(LARGE)
    made: list[cw.Pool] = []
    step(
        "Pool with options",
        lambda: made.append(cw.Pool(2, retries=1, task_timeout=60, capture_stderr=True)),
        lambda _: True,
    )
    step(
        "recurring",
        lambda: made[0].starmap(sum_and_write, [(data, i) for i in range(6)]),
        lambda r: r == [float(i * LARGE) for i in range(6)],
    )

    def with_constant() -> list[float]:
        with cw.constant({"a": data}) as model:
            return made[0].starmap(scaled, [(model, i) for i in range(6)])

    step("constant", with_constant, lambda r: r == [float(i * LARGE) for i in range(6)])
    step("resize", lambda: made[0].resize(3), lambda _: True)
    step("after it", lambda: made[0].map(square, range(9), chunksize=2), lambda r: r[8] == 64)
    step("stats", lambda: made[0].stats(), lambda stats: len(stats) > 0)
    made[0].terminate()
    made[0].join()
    made.clear()


def queues() -> None:
    """A Queue, a SimpleQueue and a JoinableQueue."""
    data = np.arange(LARGE, dtype=np.float64)
    for kind in (cw.Queue, cw.SimpleQueue, cw.JoinableQueue):
        name, made = kind.__name__, []
        step(name, lambda kind=kind, made=made: made.append(kind()), lambda _: True)
        queue = made.pop()
        for item in (b"small", b"x" * 300_000, data):
            step(f"{name} put", lambda queue=queue, item=item: queue.put(item), lambda _: True)
        for item in (b"small", b"x" * 300_000):
            step(f"{name} get", queue.get, lambda got, item=item: got == item)
        step(f"{name} get array", queue.get, lambda got: bool((got == data).all()))
        step(f"{name} empty", queue.empty, lambda empty: bool(empty))
        if kind is not cw.SimpleQueue:
            queue.close()
            queue.join_thread()
        del queue


def main() -> None:
    """All parts."""
    arrays()
    queues()
    pools()
    more_pools()
    gc.collect()
    say("whole")


if __name__ == "__main__":
    main()
