"""A client of one node that uses another in bursts, with pauses about as long as an idle link is kept.

Of what it does nothing may fail: a link that is closed for being idle loses no request. Each line that it prints is a
round; the last word is "done", or an error.
"""

from __future__ import annotations

import random
import sys
import time

import numpy as np

import cableway as cw

SIZES = (0, 1, 300, 4_096, 20_000, 300_000)


def values_of(number: int) -> np.ndarray:
    """An array that no other number has."""
    size = SIZES[number % len(SIZES)]
    return np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)


def put(other: str, name: str, number: int) -> None:
    """There, found in its list, and gone again."""
    cw.put(f"//{other}/{name}", values_of(number))
    assert name in cw.names(f"//{other}/{name}")
    cw.remove(f"//{other}/{name}")
    assert name not in cw.names(f"//{other}/{name}")


def get(other: str, name: str, number: int) -> None:
    """Put, read back whole, and gone again, so that no replica keeps the link."""
    cw.put(f"//{other}/{name}", values_of(number))
    assert (cw.get(f"//{other}/{name}").numpy() == values_of(number)).all()
    cw.remove(f"//{other}/{name}")


def change(other: str, name: str, number: int) -> None:
    """What is put over a name that was read is what the next one reads."""
    for i in range(3):
        cw.put(f"//{other}/{name}", values_of(number + i), replace=True)
        assert (cw.get(f"//{other}/{name}").numpy() == values_of(number + i)).all()
    cw.remove(f"//{other}/{name}")


def wait(other: str, name: str, number: int) -> None:
    """A name that is there is waited for; of one that is not the time ends."""
    cw.put(f"//{other}/{name}", values_of(number))
    cw.wait(f"//{other}/{name}", timeout=60)
    cw.remove(f"//{other}/{name}")
    try:
        cw.wait(f"//{other}/{name}", timeout=random.uniform(0.001, 0.03))
        raise AssertionError("a name that was removed is there")
    except cw.Timeout:
        pass


def main() -> None:
    """other, seconds that a link is kept, how many rounds, seed."""
    other, idle, rounds, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    random.seed(seed)
    for number in range(rounds):
        # Most often in the moment in which the link is being closed.
        time.sleep(random.choice((0, idle * random.uniform(0.9, 1.2), idle * random.uniform(0, 3))))
        random.choice((put, get, change, wait))(other, f"in/{seed}-{number}", number)
        print(number, flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
