"""A walk over what two nodes can ask of each other: what `make faults` makes calls of one's bridge fail in.

walk_bridge.py A B warm|walk [PID]: the folders of both nodes' brokers; the pid of B's broker. As walk.py: without a failing
call none of its steps raises; with one a step may, says why ("told ..."), and succeeds when it is made again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

import cableway as cw

T = TypeVar("T")
TOLD = (cw.LimitExceeded, MemoryError, cw.RemoteError)
SIZES = {
    "small": 100,
    "medium": 60_000,
    "large": 1_500_000,
}  # numbers: in the answer, with it, over streams
WAIT_S = 20.0


def say(text: str) -> None:
    """A line at once."""
    print(text, flush=True)


def step(name: str, call: Callable[[], T], right: Callable[[T], bool] = lambda _: True) -> None:
    """The call gives what is right, or raises once, says why, and then does."""
    for again in (False, True):
        try:
            got = call()
        except TOLD as error:
            say(f"told {name}: {type(error).__name__}: {error}")
            if again or not str(error):
                say(f"wrong {name}: it raises again, or has no sentence")
                sys.exit(1)
            time.sleep(0.3)  # a link that ended is dialed again
            continue
        if not right(got):
            say(f"wrong {name}: it gave {got!r:.200}")
            sys.exit(1)
        return


def values(size: str, seed: int) -> np.ndarray:
    """What stands under a name."""
    return np.arange(SIZES[size], dtype=np.float64) + seed


def get(name: str) -> np.ndarray:
    """A copy of what a name means."""
    return cw.get(name, timeout=WAIT_S).numpy().copy()


def while_away(name: str) -> np.ndarray:
    """The same of a node whose bridge is not back yet: that it cannot be reached is told, and right."""
    try:
        return get(name)
    except cw.RemoteError:
        time.sleep(0.02)
        return np.zeros(0)


def same(expected: np.ndarray) -> Callable[[np.ndarray], bool]:
    """Whether it is that."""
    return lambda got: bool(np.array_equal(got, expected))


def soon(call: Callable[[], np.ndarray], expected: np.ndarray) -> Callable[[], bool]:
    """Whether a value comes in time: a name's change is told, and a link that ended makes replicas go."""

    def look() -> bool:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            if np.array_equal(call(), expected):
                return True
            time.sleep(0.002)
        return False

    return look


def removed(name: str) -> Callable[[], None]:
    """Removes a name; the first try may have done it."""

    def remove() -> None:
        try:
            cw.remove(name)
        except cw.NameNotFound:
            pass

    return remove


def from_one_to_other(here: str, other: str, seed: int) -> None:
    """All that a client of one node can ask of the other."""
    for size in SIZES:
        step(
            f"{here} get {size}",
            lambda size=size: get(f"//{other}/s/{size}"),
            same(values(size, seed)),
        )
        step(
            f"{here} again {size}",
            lambda size=size: get(f"//{other}/s/{size}"),
            same(values(size, seed)),
        )
    step(f"{here} names", lambda: sorted(cw.names(f"//{other}/s/")), lambda r: len(r) == len(SIZES))
    for size in SIZES:
        name = f"//{other}/in/{size}"
        step(f"{here} put {size}", lambda name=name, size=size: cw.put(name, values(size, 7)))
        step(f"{here} get own {size}", soon(lambda name=name: get(name), values(size, 7)), bool)
        step(f"{here} remove {size}", removed(name))


def put_all(seed: int) -> None:
    """What the other node gets."""
    for size in SIZES:
        cw.put(f"s/{size}", values(size, seed))


def waiting(place_a: Path, place_b: Path) -> None:
    """Who waits for a name of the other node gets it."""
    late = np.ones(10)
    done = threading.Event()

    def put_late() -> None:
        os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-B", __file__, str(place_b), "late"])
        done.set()

    with cw.connect(place_a):
        thread = threading.Thread(target=put_late)
        thread.start()
        step("wait", lambda: get("//b/late"), same(late))
        thread.join()
        step("remove late", removed("//b/late"))


def cut(place_a: Path, place_b: Path, broker: int) -> None:
    """B's bridge is killed in the middle of a large transfer, and its broker starts the next one."""
    children = Path(f"/proc/{broker}/task/{broker}/children").read_text().split()
    bridges = [
        int(pid)
        for pid in children
        if Path(f"/proc/{pid}/comm").read_text().startswith("cableway-bridge")
    ]
    with cw.connect(place_b):
        cw.put("s/large", values("large", 5))
    with cw.connect(place_a):
        timer = threading.Timer(0.004, lambda: os.kill(bridges[0], signal.SIGKILL))
        timer.start()
        cut_off = soon(lambda: while_away("//b/s/large"), values("large", 5))
        step("cut", cut_off, bool)
        timer.join()
        time.sleep(0.05)
        cut_off = soon(lambda: while_away("//b/s/small"), values("small", 3))
        step("after the cut", cut_off, bool)


def main() -> None:
    """The walk."""
    place_a, place_b = Path(sys.argv[1]), Path(sys.argv[2])
    if sys.argv[2] == "late":
        time.sleep(0.05)
        with cw.connect(place_a):
            cw.put("late", np.ones(10))
        return
    places = {"a": (place_a, "b", 2), "b": (place_b, "a", 1)}
    if sys.argv[3] == "warm":
        with cw.connect(place_a):  # the bridges are connected, and have all their threads
            step("put", lambda: cw.put("//b/warm", values("large", 0)))
            step("names", lambda: cw.names("//b/warm"), lambda names: len(names) == 1)
            step("remove", removed("//b/warm"))
        say("whole")
        return
    with cw.connect(place_a):
        put_all(1)
    with cw.connect(place_b):
        put_all(2)
    for here, (place, other, seed) in places.items():
        with cw.connect(place):
            from_one_to_other(here, other, seed)
    with cw.connect(place_b):
        put_all(3)
    with cw.connect(place_a):
        for size in SIZES:
            call = soon(lambda size=size: get(f"//b/s/{size}"), values(size, 3))
            step(f"changed {size}", call, bool)
    waiting(place_a, place_b)
    cut(place_a, place_b, int(sys.argv[4]))
    for place in (place_a, place_b):
        with cw.connect(place):
            for size in SIZES:
                cw.remove(f"s/{size}")
    say("whole")


main()
