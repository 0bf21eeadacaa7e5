"""Chunks of a map where the caller names no size, and what fits into a cell."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pool_tasks as tasks
import pytest

import cableway as cw
from cableway import _dispatch
from cableway._pool import chunks as chunking

_PROCESSES = 2


def _chunks(items: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    size = chunking.default(items, _PROCESSES)
    return [items[at : at + size] for at in range(0, len(items), size)]


def _even(items: tuple[Any, ...]) -> int:
    return -(-len(items) // (4 * _PROCESSES))


@pytest.mark.parametrize("count", [9_000, 16_000, 30_000])
def test_chunks_a_little_too_long_for_a_cell_are_cut_to_fit(count: int) -> None:
    items = tuple(range(1 << 29, (1 << 29) + count))
    assert _dispatch.plain_dumps(items[: _even(items)]) is None
    chunks = _chunks(items)
    assert all(_dispatch.plain_dumps(chunk) is not None for chunk in chunks)
    assert len(chunks) <= 8 * 4 * _PROCESSES


@pytest.mark.parametrize(
    "items",
    [
        (),
        (1,),
        tuple(range(500)),
        tuple(range(1_000_000)),
        (object(),) * 16_000,
        ("x" * 5_000,) * 1_000,
        (2**4000,) * 16_000,
    ],
    ids=["none", "one", "fit", "many", "not plain", "long", "huge"],
)
def test_all_other_chunks_are_a_quarter_of_the_even_share(items: tuple[Any, ...]) -> None:
    assert chunking.default(items, _PROCESSES) == max(1, _even(items))


def test_with_maxtasksperchild_a_chunk_is_a_quarter_of_the_even_share() -> None:
    with cw.Pool(_PROCESSES, maxtasksperchild=100, context="fork") as pool:
        assert pool.map(abs, range(16_000)) == list(range(16_000))
        assert pool.stats()["chunks"] == 4 * _PROCESSES


def test_a_chunk_of_which_some_do_not_fit_comes_back_whole() -> None:
    chance = random.Random(5)
    items = ["x" * chance.choice([1, 1, 1, 1, 3000]) for _ in range(6_000)]
    with cw.Pool(_PROCESSES, context="fork") as pool:
        assert pool.map(str.upper, items) == [item.upper() for item in items]
        assert pool.map(tasks.square, range(16_000)) == [n * n for n in range(16_000)]


def _plain(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(9 if depth < 2 else 6)
    if kind == 0:
        return chance.choice([None, True, False])
    if kind == 1:
        return chance.randrange(-(1 << 40), 1 << 40) >> chance.randrange(40)
    if kind == 2:
        return chance.random()
    if kind == 3:
        return "x" * chance.randrange(60)
    if kind == 4:
        return b"y" * chance.randrange(60)
    if kind == 5:
        return complex(chance.random(), 1)
    parts = [_plain(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 6:
        return parts
    return tuple(parts) if kind == 7 else dict(enumerate(parts))


def test_a_plain_object_is_pickled_for_a_cell_just_when_its_pickle_fits() -> None:
    chance, fitted = random.Random(13), 0
    for _ in range(400):
        value = [_plain(chance, 0) for _ in range(chance.randrange(250))]
        pickled = pickle.dumps(value, 5)
        fits = len(pickled) <= _dispatch.DATA_MAX
        assert _dispatch.plain_dumps(value) == (pickled if fits else None)
        fitted += fits
    assert 50 < fitted < 350


@pytest.mark.parametrize(
    "item", [None, True, 0, 255, 256, 65535, 65536, -1, 1 << 31, -(1 << 31) - 1, 1 << 63, 0.5, "text", b"bytes"]
)  # fmt: skip
def test_as_many_items_as_fit_into_a_cell_are_plain(item: Any) -> None:
    count = 1
    while len(pickle.dumps((item,) * (count + 1), 5)) <= _dispatch.DATA_MAX:
        count += 1
    assert _dispatch.plain_dumps((item,) * count) is not None
    assert _dispatch.plain_dumps((item,) * (count + 1)) is None
