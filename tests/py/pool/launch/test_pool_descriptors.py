"""An ended Pool or Executor keeps neither descriptors nor memory, without a garbage collection. Runs in `make test-more`."""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import option_tasks as tasks
import pytest
from pool_support import LONG
from waiting import eventually

import cableway as cw


def with_block(pool: Any) -> None:
    with pool:
        assert list(pool.map(abs, [-1, 2])) == [1, 2]
    if isinstance(pool, cw.Pool):
        pool.join()


def closed(pool: Any) -> None:
    assert list(pool.map(abs, [-1, 2])) == [1, 2]
    if isinstance(pool, cw.Pool):
        pool.close()
        pool.join()
    else:
        pool.shutdown()


def terminated(pool: Any) -> None:
    if isinstance(pool, cw.Pool):
        pool.apply_async(tasks.nap, (60,))
        pool.terminate()
    else:
        pool.submit(tasks.nap, 0.01)
        pool.shutdown(cancel_futures=True)


def a_death(pool: Any) -> None:
    with pool, pytest.raises(cw.WorkerDied):
        list(pool.map(os._exit, [1]))


def an_exception(pool: Any) -> None:
    with pool, pytest.raises(TypeError):
        list(pool.map(abs, ["text"]))


def an_array(pool: Any) -> None:
    with pool:
        assert [len(a) for a in pool.map(bytearray, [200_000])] == [200_000]


def dropped(pool: Any) -> None:
    assert list(pool.map(abs, [-1, 2])) == [1, 2]


@pytest.fixture
def collected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
    gc.enable()


def descriptors() -> list[str]:
    """What this process has open; another thread may close one meanwhile."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(entry))
    return sorted(found)


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("cw-pool")


MAKERS: dict[str, Callable[[str], Any]] = {
    "Pool": lambda method: cw.Pool(2, context=method),
    "captured": lambda method: cw.Pool(1, context=method, capture_stderr=True),
    "Executor": lambda method: cw.Executor(2, method),
}


@pytest.mark.parametrize(
    "end", [with_block, closed, terminated, a_death, an_exception, an_array, dropped]
)
@pytest.mark.parametrize("kind", MAKERS)
def test_an_ended_pool_keeps_no_descriptor_and_no_memory(
    method: str, kind: str, end: Callable[[Any], None], collected: None
) -> None:
    make = MAKERS[kind]
    with_block(make(method))  # what is made once for all: a server, a broker
    if end is an_array:
        end(make(method))
    gc.collect()
    before = mappings()
    there = descriptors()
    for _ in range(3):
        end(make(method))
    if end is dropped:
        assert eventually(lambda: len(descriptors()) <= len(there), LONG)
        assert eventually(lambda: mappings() <= before, LONG)
    assert len(descriptors()) <= len(there), sorted(set(descriptors()) - set(there))
    assert mappings() <= before


def test_an_ended_pool_that_is_kept_has_no_descriptor(collected: None) -> None:
    def made() -> cw.Pool:
        pool = cw.Pool(2)
        closed(pool)
        return pool

    made()
    there = len(descriptors())
    kept = [made() for _ in range(3)]
    assert len(descriptors()) == there
    assert [pool.stats()["tasks"] for pool in kept] == [2, 2, 2]
