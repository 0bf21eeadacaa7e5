"""An input that raises: what it gave before comes, all of it, and then the exception."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import cableway as cw


def double(x: int) -> int:
    return 2 * x


def double_slowly(x: int) -> int:
    time.sleep(0.05)
    return 2 * x


def numbers(count: int) -> Iterator[int]:
    yield from range(count)
    raise KeyError("from the input")


@pytest.mark.parametrize("method", ["imap", "imap_unordered"])
@pytest.mark.parametrize("options", [{}, {"buffersize": 2}])
@pytest.mark.parametrize(("count", "chunk"), [(0, 1), (1, 1), (10, 1), (200, 1), (200, 10)])
def test_all_results_come_before_what_the_input_has_raised(
    method: str, options: dict[str, Any], count: int, chunk: int
) -> None:
    with cw.Pool(2, context="fork") as pool:
        for _ in range(5):
            results = getattr(pool, method)(double, numbers(count), chunk, **options)
            found = []
            with pytest.raises(KeyError, match="from the input"):
                for result in results:
                    found.append(result)
            assert sorted(found) == [2 * i for i in range(count)]
            with pytest.raises(StopIteration):
                next(results)


def test_a_slow_last_task_is_waited_for_after_the_input_has_raised() -> None:
    with cw.Pool(2, context="fork") as pool:
        results = pool.imap_unordered(double_slowly, numbers(3))
        assert sorted(next(results) for _ in range(3)) == [0, 2, 4]
        with pytest.raises(KeyError):
            next(results)
        pool.close()
        pool.join()
