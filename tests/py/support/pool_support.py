"""What the Pool's tests have in common."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pool_tasks as tasks
from processes import stat_fields
from waiting import eventually

import cableway as cw

LONG = 60  # seconds after which a test has failed; nothing here takes long


def in_thread(function: Callable[..., Any], *args: Any) -> tuple[threading.Thread, list[Any]]:
    """Calls a function on a thread: what it returned or raised is in the list then."""
    said: list[Any] = []

    def call() -> None:
        try:
            said.append(function(*args))
        except BaseException as error:
            said.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread, said


def joined(thread: threading.Thread) -> None:
    """It has ended, or does now."""
    thread.join(LONG)
    assert not thread.is_alive()


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return stat_fields(pid)[0] in "ZX"
    except OSError:
        return True


def workers_of(pool: cw.Pool, count: int) -> set[int]:
    """The pids of a pool's workers, once so many have run a task."""
    found: set[int] = set()

    def all_seen() -> bool:
        found.update(pool.map(tasks.pid_after_a_while, range(2 * count), chunksize=1))
        return sum(not gone(pid) for pid in found) == count

    assert eventually(all_seen, LONG), f"{count} workers, of which {found} have answered"
    return {pid for pid in found if not gone(pid)}


@contextlib.contextmanager
def nobody_collects(pool: Any) -> Iterator[None]:
    """The parent's helper does something else, and no other thread listens."""
    go_on, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait()

    pool._engine.defer(wait)
    assert begun.wait(LONG)
    try:
        yield
    finally:
        go_on.set()


def answers_of(pool: Any) -> int:
    """How many answers the workers have published."""
    dispatch = pool._engine.dispatch
    return sum(dispatch.look_at(slot)[1] for slot in range(len(pool.stats()["workers"])))
