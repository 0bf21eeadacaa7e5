"""The first write of new shared memory, and later ones, beside np.save and SharedMemory in one run, alternated.

    python first_put.py [ROUNDS] [BYTES ...]

    save       np.save into /dev/shm
    shm        multiprocessing's SharedMemory is made, an array in it filled
    put        cw.put of an array
    fill       w = cw.empty(...); w[...] = array
    view       w = cw.empty(...); w.numpy()[...] = array
    argument   cw.Pool(1).apply of a function that takes the array
    result     the same of one that returns it

Each sample is a process of its own, forked, with random bytes of its own: its first write, then three later ones (new
ones of each kind, the one before was let go of). The numbers are medians in milliseconds: "first/later". What was
written is compared after each.
"""

from __future__ import annotations

import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import shared_memory
from typing import Any

import numpy as np
from measure import own_broker

import cableway as cw

SIZES = (8, 4096, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30)
PATH = "/dev/shm/cableway-first-put.npy"
LATER = 3

Samples = Iterator[float]
Values = np.ndarray[Any, np.dtype[np.uint8]]


def check(found: Any, wanted: Values) -> None:
    """Ends the run where something else was written."""
    assert np.array_equal(found, wanted)


def save(values: Values) -> Samples:
    """Seconds for each."""
    for _ in range(1 + LATER):
        began = time.perf_counter()
        np.save(PATH, values)
        yield time.perf_counter() - began
        check(np.load(PATH), values)
        os.unlink(PATH)


def shm(values: Values) -> Samples:
    """Seconds for each."""
    for _ in range(1 + LATER):
        began = time.perf_counter()
        memory = shared_memory.SharedMemory(create=True, size=values.nbytes)
        view: Values = np.ndarray(values.shape, "u1", memory.buf)
        view[...] = values
        yield time.perf_counter() - began
        check(view, values)
        del view
        memory.close()
        memory.unlink()


def ours(write: Callable[[Values], cw.Array]) -> Callable[[Values], Samples]:
    """Seconds for each; what was written is let go of before the next."""

    def samples(values: Values) -> Samples:
        cw.put("first-put/connected", np.zeros(1))
        for _ in range(1 + LATER):
            began = time.perf_counter()
            made = write(values)
            yield time.perf_counter() - began
            check(made.numpy(), values)
            if made.name:
                cw.remove(made.name)
            del made

    return samples


def fill(values: Values) -> cw.Array:
    """Into an empty array."""
    made = cw.empty(values.shape, values.dtype)
    made[...] = values
    return made


def view(values: Values) -> cw.Array:
    """By NumPy's view of it."""
    made = cw.empty(values.shape, values.dtype)
    made.numpy()[...] = values
    return made


_held: Values = np.zeros(1, "u1")


def taken(values: Values) -> int:
    """The last byte: all of values is there."""
    return int(values[-1])


def hold(values: Values) -> None:
    """What given() returns."""
    global _held
    _held = values.copy()


def given() -> Values:
    """The same bytes each time."""
    return _held


def argument(values: Values) -> Samples:
    """Seconds for each call."""
    with cw.Pool(1) as pool:
        pool.apply(taken, (np.zeros(1, "u1"),))
        for _ in range(1 + LATER):
            began = time.perf_counter()
            found = pool.apply(taken, (values,))
            yield time.perf_counter() - began
            assert found == values[-1]


def result(values: Values) -> Samples:
    """Seconds for each call."""
    hold(values)
    with cw.Pool(1, context="fork") as pool:
        pool.apply(taken, (np.zeros(1, "u1"),))
        for _ in range(1 + LATER):
            began = time.perf_counter()
            found = pool.apply(given)
            yield time.perf_counter() - began
            check(found, values)
            del found


WAYS: dict[str, Callable[[Values], Samples]] = {
    "save": save,
    "shm": shm,
    "put": ours(lambda values: cw.put("first-put/x", values)),
    "fill": ours(fill),
    "view": ours(view),
    "argument": argument,
    "result": result,
}


def in_a_child(way: Callable[[Values], Samples], nbytes: int) -> list[float]:
    """The samples of one process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            values = np.random.default_rng(os.getpid()).integers(0, 256, nbytes, dtype="u1")
            os.write(writer, pickle.dumps(list(way(values))))
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, "a sample's process failed"
    found: list[float] = pickle.loads(told)
    return found


def row(nbytes: int, rounds: int) -> str:
    """The line of one size."""
    first: dict[str, list[float]] = {way: [] for way in WAYS}
    later: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            samples = in_a_child(way, nbytes)
            first[name].append(samples[0])
            later[name] += samples[1:]
    one = {name: statistics.median(samples) * 1e3 for name, samples in first.items()}
    more = {name: statistics.median(samples) * 1e3 for name, samples in later.items()}
    cells = [f"{one[name]:.3f}/{more[name]:.3f}" for name in WAYS]
    by_save = f"{one['put'] / one['save']:.2f}/{more['put'] / more['save']:.2f}"
    by_shm = f"{one['put'] / one['shm']:.2f}/{more['put'] / more['shm']:.2f}"
    return line(nbytes, cells, by_save, by_shm)


def line(nbytes: object, cells: Iterable[str], by_save: str, by_shm: str) -> str:
    """One line of the table, which a page of docs can show."""
    return "  ".join([f"{nbytes!s:>10}", *(f"{cell:>15}" for cell in cells), f"{by_save:>11}", f"{by_shm:>11}"])  # fmt: skip


def main() -> None:
    """Prints the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    sizes = [int(size) for size in sys.argv[2:]] or SIZES
    print(line("bytes", WAYS, "put by save", "put by shm"))
    with own_broker():
        for nbytes in sizes:
            print(row(nbytes, rounds), flush=True)


if __name__ == "__main__":
    main()
