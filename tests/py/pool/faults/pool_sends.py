"""How work is sent to a pool or an executor, for pool_idioms.py: what it returns takes the results, in some order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

FAILS_AT = 5

Take = Callable[[], Any]
Send = Callable[[Any, int], Take]


def square(x: int) -> int:
    return x * x


def multiply(x: int, y: int) -> int:
    return x * y


def square_or_fail(x: int) -> int:
    if x == FAILS_AT:
        raise LookupError("the fifth")
    return x * x


def told(call: Callable[[], Any]) -> Any:
    """What a call gives, or the type of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def by_apply(pool: Any, n: int) -> Take:
    got = [pool.apply(square, (i,)) for i in range(min(n, 40))]
    return lambda: got + [x * x for x in range(len(got), n)]


def by_apply_async(pool: Any, n: int) -> Take:
    results = [pool.apply_async(square, (i,)) for i in range(n)]
    return lambda: [result.get() for result in results]


def by_callback(pool: Any, n: int) -> Take:
    got: list[int] = []
    results = [pool.apply_async(square, (i,), callback=got.append) for i in range(n)]

    def take() -> list[int]:
        for result in results:
            result.wait()
        return list(got)

    return take


def by_map(pool: Any, n: int, chunksize: int | None = None) -> Take:
    got = pool.map(square, range(n), chunksize)
    return lambda: got


def by_map_in_ones(pool: Any, n: int) -> Take:
    return by_map(pool, n, 1)


def by_map_async(pool: Any, n: int) -> Take:
    return pool.map_async(square, range(n), 1).get  # type: ignore[no-any-return]


def by_map_async_in_chunks(pool: Any, n: int) -> Take:
    return pool.map_async(square, list(range(n))).get  # type: ignore[no-any-return]


def by_map_callback(pool: Any, n: int) -> Take:
    got: list[list[int]] = []
    result = pool.map_async(square, range(n), 1, callback=got.append)

    def take() -> list[int]:
        result.wait()
        return got[0] if n else []  # there is no callback then in the standard library

    return take


def by_failing_map(pool: Any, n: int) -> Take:
    result = pool.map_async(square_or_fail, range(n), 1)
    whole = [x * x for x in range(n)]
    return lambda: whole if told(result.get) == ("LookupError" if n > FAILS_AT else whole) else []


def by_starmap(pool: Any, n: int) -> Take:
    got = pool.starmap(multiply, [(x, x) for x in range(n)])
    return lambda: got


def by_starmap_async(pool: Any, n: int) -> Take:
    return pool.starmap_async(multiply, ((x, x) for x in range(n)), 1).get  # type: ignore[no-any-return]


class Taken:
    """An iterator's results; two threads may take from it."""

    def __init__(self, results: Iterator[Any]) -> None:
        self._results = results

    def __call__(self) -> list[Any]:
        return list(self._results)


def by_imap(pool: Any, n: int) -> Take:
    return Taken(pool.imap(square, range(n)))


def by_imap_in_chunks(pool: Any, n: int) -> Take:
    return Taken(pool.imap(square, list(range(n)), 7))


def by_imap_of_generator(pool: Any, n: int) -> Take:
    return Taken(pool.imap(square, (x for x in range(n))))


def by_unordered(pool: Any, n: int) -> Take:
    return Taken(pool.imap_unordered(square, range(n)))


def by_unordered_in_chunks(pool: Any, n: int) -> Take:
    return Taken(pool.imap_unordered(square, range(n), 16))


def by_unordered_of_generator(pool: Any, n: int) -> Take:
    return Taken(pool.imap_unordered(square, (x for x in range(n)), 3))


def by_failing_imap(pool: Any, n: int) -> Take:
    results = pool.imap(square_or_fail, range(n))

    def take() -> list[int]:
        got = [told(lambda: next(results)) for _ in range(n)]
        if n > FAILS_AT and got[FAILS_AT] == "LookupError":
            got[FAILS_AT] = FAILS_AT**2
        return got

    return take


SENDS: tuple[Send, ...] = (
    by_unordered, by_map_async, by_imap, by_apply_async, by_callback, by_unordered_of_generator, by_map_callback,
    by_starmap_async, by_imap_of_generator, by_failing_imap, by_map_async_in_chunks, by_unordered_in_chunks, by_apply,
    by_map, by_map_in_ones, by_failing_map, by_starmap, by_imap_in_chunks,
)  # fmt: skip


def by_submit(executor: Any, n: int) -> Take:
    begun = [executor.submit(square, i) for i in range(n)]
    return lambda: [future.result() for future in begun]


def by_submit_as_completed(executor: Any, n: int) -> Take:
    begun = [executor.submit(square, i) for i in range(n)]
    return lambda: [future.result() for future in futures.as_completed(begun)]


def by_submit_and_wait(executor: Any, n: int) -> Take:
    begun = [executor.submit(square, i) for i in range(n)]
    return lambda: [future.result() for future in futures.wait(begun).done]


def by_done_callback(executor: Any, n: int) -> Take:
    got: list[int] = []
    all_told = threading.Event()

    def tell(future: futures.Future[int]) -> None:
        got.append(future.result())
        if len(got) == n:
            all_told.set()

    for i in range(n):
        executor.submit(square, i).add_done_callback(tell)

    def take() -> list[int]:
        if n:
            all_told.wait()
        return list(got)

    return take


def by_executor_map(executor: Any, n: int) -> Take:
    results = executor.map(square, range(n))
    return lambda: list(results)


def by_executor_map_in_chunks(executor: Any, n: int) -> Take:
    results = executor.map(square, range(n), chunksize=16)
    return lambda: list(results)


EXECUTOR_SENDS: tuple[Send, ...] = (
    by_submit, by_executor_map, by_submit_as_completed, by_done_callback, by_submit_and_wait, by_executor_map_in_chunks,
)  # fmt: skip
