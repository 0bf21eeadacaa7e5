"""New arrays are written in the quickest way, and as NumPy would write them."""

from __future__ import annotations

import mmap
import threading
from typing import Any

import numpy as np
import pytest

import cableway as cw

LARGE = 1 << 23  # bytes; above what the file is written for
MIDDLE = 1 << 17  # above what NumPy copies


def values(kind: str, nbytes: int) -> np.ndarray[Any, Any]:
    """Random values in an order of their own."""
    random = np.random.default_rng(7)
    flat = random.integers(0, 256, nbytes, dtype="u1")
    side = 64
    made = {
        "C": lambda: flat.view("f4").reshape(side, -1),
        "F": lambda: np.asfortranarray(flat.view("i4").reshape(side, -1)),
        "K": lambda: flat.view("i2").reshape(side, 4, -1).transpose(1, 2, 0),
        "strided": lambda: flat.view("i4")[::2],
        "backwards": lambda: flat.view("i4")[::-1],
        "struct": lambda: flat.view([("a", "u1"), ("b", "i2"), ("c", "u1")]),
        "big endian": lambda: flat.view(">i8"),
        "bool": lambda: flat > 100,
        "odd": lambda: flat[1 : nbytes - 7],
        "read-only": lambda: np.frombuffer(flat.tobytes(), "u2"),
        "object views": lambda: np.asarray(memoryview(flat)),
    }[kind]()
    return np.asarray(made)


KINDS = ["C", "F", "K", "strided", "backwards", "struct", "big endian", "bool", "odd", "read-only", "object views"]  # fmt: skip


def same(found: Any, wanted: np.ndarray[Any, Any]) -> None:
    """The same values, bit by bit."""
    found = np.asarray(found)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("nbytes", [1 << 10, MIDDLE, LARGE])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_put_is_there(kind: str, nbytes: int) -> None:
    given = values(kind, nbytes)
    same(cw.put("first", given), given)
    same(cw.put("first", given), given)  # the second time into memory that was used
    same(cw.asarray(given).copy(), given)
    same(cw.asarray(given, order="F"), given)
    same(cw.asarray(given, order="C"), given)
    cw.remove("first")


@pytest.mark.parametrize("nbytes", [1 << 10, MIDDLE, LARGE])
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_array_that_is_filled_in_place(kind: str, nbytes: int) -> None:
    given = values(kind, nbytes)
    for order in ("C", "F"):
        made = cw.empty(given.shape, given.dtype, order=order)
        made[...] = given
        same(made, given)
        made = cw.empty(given.shape, given.dtype, order=order)
        made.numpy()[...] = given
        same(made, given)
        made = cw.empty(given.shape, given.dtype, order=order)
        made[:] = given
        same(made, given)
        made = cw.empty(given.shape, given.dtype, order=order)
        same(made.copy_from(given), given)


@pytest.mark.parametrize("nbytes", [MIDDLE, LARGE])
def test_numbers_are_converted_and_spread_as_numpy_does(nbytes: int) -> None:
    count = nbytes // 8
    wanted = np.empty((2, count // 2), "f8")
    for given in (
        3,
        np.arange(count // 2, dtype="i4"),
        np.arange(count, dtype="f4").reshape(2, -1),
        [[1.5], [2.5]],
        np.ma.masked_array(np.arange(count // 2.0)),
    ):
        made = cw.empty(wanted.shape, "f8")
        made[...] = given
        wanted[...] = given
        same(made, wanted)


@pytest.mark.parametrize("nbytes", [MIDDLE, LARGE])
def test_shapes_that_do_not_fit_are_refused_and_nothing_is_written(nbytes: int) -> None:
    made = cw.zeros(nbytes // 8, "f8")
    for wrong in (np.ones(nbytes // 8 + 1), np.ones((2, nbytes // 8)), np.ones(nbytes // 16)):
        with pytest.raises(ValueError):
            made[...] = wrong
        with pytest.raises(ValueError):
            made.copy_from(wrong)
    assert not made.numpy().any()


def test_a_read_only_array_is_not_written() -> None:
    cw.put("kept", np.zeros(LARGE, "u1"))
    seen = cw.get("kept", readonly=True)
    with pytest.raises(ValueError, match="read-only"):
        seen[...] = np.ones(LARGE, "u1")
    with pytest.raises(ValueError, match="read-only"):
        seen.copy_from(np.ones(LARGE, "u1"))
    assert not seen.numpy().any()
    cw.remove("kept")


def test_what_lies_in_the_same_memory_is_copied_as_numpy_does() -> None:
    plain = np.arange(LARGE, dtype="u4").view("u1")
    made = cw.put("plain", plain)
    made[1:][...] = made[:-1]
    plain[1:] = plain[:-1].copy()
    same(made, plain)
    cw.remove("plain")


def test_threads_fill_parts_of_one_new_array() -> None:
    given = values("C", LARGE)
    made = cw.empty(given.shape, given.dtype)
    parts = np.array_split(np.arange(len(given)), 4)
    workers = [
        threading.Thread(
            target=lambda p=part: made[p[0] : p[-1] + 1].copy_from(given[p[0] : p[-1] + 1])
        )
        for part in parts
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    same(made, given)


def test_a_mapping_is_a_source_like_any_other() -> None:
    with mmap.mmap(-1, LARGE) as memory:
        memory[:] = values("C", LARGE).tobytes()
        given = np.frombuffer(memory, "u1")
        same(cw.put("mapped", given), given)
        cw.remove("mapped")
        del given
