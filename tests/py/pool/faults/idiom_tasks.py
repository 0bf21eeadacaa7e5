"""What workers, and the processes at a queue's ends, do in the storm over all idioms (idiom_storm.py)."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import queue as standard
import select
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

import cableway as cw

CANNOT_OPEN = 7  # exit status of a process that had not opened its queue, or what that grew into, before the broker died
LARGE = 40_000  # numbers: above 256 KiB, so beside the message

faulthandler.register(signal.SIGUSR1)  # in every process that imports this, and its forks


def square(x: int) -> int:
    if x % 97 == 0:
        time.sleep(0.001)
    return x * x


def multiply(x: int, y: int) -> int:
    return x * y


def raises(x: int) -> None:
    raise LookupError(f"no {x}")


def slow(seconds: float, x: int) -> int:
    time.sleep(seconds)
    return x


def numbers(seed: int, count: int = LARGE) -> np.ndarray[Any, Any]:
    """What follows from a number."""
    return np.arange(seed, seed + count, dtype="i8")


def doubled(values: Any) -> Any:
    return values * 2


def filled(array: cw.Array, value: int) -> int:
    """Writes into the caller's memory."""
    view = array.numpy()
    view[:] = value
    return int(view.sum())


def made(value: int) -> cw.Array:
    return cw.full(LARGE, value, "i8")


def share(values: Any, i: int) -> int:
    """One number of an array that recurs; the write must reach nobody else."""
    found = int(values[i])
    values[i] = -1
    return found


def of_constant(model: dict[str, Any], i: int) -> int:
    return int(model["values"][i])


def noted(path: str, number: int) -> int:
    """Writes that it ran."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"%d\n" % number)
    os.close(fd)
    return number


def begin(*_: Any) -> None:
    """An initializer."""


# ---- a queue's ends


def item(writer: int, i: int) -> tuple[int, int, Any]:
    """Small, a NumPy array, or an array of ours, by its number."""
    if i % 7 == 3:
        return writer, i, numbers(i)
    if i % 7 == 5:
        return writer, i, cw.full(1000, i, "i8")
    return writer, i, str(i) * (i % 50)


def is_whole(found: tuple[int, int, Any]) -> bool:
    _, i, value = found
    if i % 7 == 3:
        return bool((value == numbers(i)).all())
    if i % 7 == 5:
        return bool((value.numpy() == i).all())
    return bool(value == str(i) * (i % 50))


def end_with_parent() -> None:
    """A process of multiprocessing's outlives a parent that is killed. Whoever waits at a queue would then wait for ever.

    Its sentinel says nothing of that: two children that were forked at the same moment hold the write ends of each other's.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None and parent.pid is not None
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(parent.pid)], [], [])
    os._exit(0)


def opened(*queues: Any) -> None:
    """Begins, and opens what came along. One that was inherited can no more be opened once its broker is gone."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    for queue in queues:
        try:
            queue.empty()
        except cw.BrokerLost:
            os._exit(CANNOT_OPEN)


def put_items(q: Any, out: Any, writer: int, count: int) -> None:
    """Puts all its items, and tells of those that it could not put."""
    opened(q, out)
    for i in range(count):
        for attempt in range(5):
            try:
                q.put(item(writer, i))
                break
            except (cw.BrokerLost, cw.Stale):
                if attempt == 4:
                    out.put(("not put", writer, i))
    out.put(("wrote", writer, count))


def get_items(q: Any, out: Any, reader: int, simple: bool) -> None:
    """Takes items until it gets None, and tells of each."""
    opened(q, out)
    while True:
        try:
            found = take(q, 0.05, simple)
        except cw.Stale:
            os._exit(CANNOT_OPEN)
        if isinstance(found, str):
            if found != "none":
                out.put((found, reader, 0))
            continue
        if found is not None:
            out.put(("got" if is_whole(found) else "WRONG", reader, found[:2]))
        if hasattr(q, "task_done"):
            q.task_done()
        if found is None:
            return


def take(q: Any, seconds: float, simple: bool) -> Any:
    """An item, or why there is none. Stale: the broker died before this process had opened what the queue grew into."""
    try:
        return q.get() if simple else q.get(timeout=seconds)
    except (standard.Empty, cw.QueueBlocked):
        return "none"
    except cw.BrokerLost as error:
        print(f"lost an item: {error!r}", file=sys.stderr, flush=True)
        return "lost"
