"""Captured stderr of workers, whatever this process's own stderr is: nobody waits for it, and last words are kept."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import option_tasks as tasks
import pytest
from pool_support import LONG

import cableway as cw
from cableway._pool.launch import stderr

WAYS = ["full", "full, not blocking", "closed", "nobody reads", "pty hung up"]


def _stderr(way: str) -> list[int]:
    """Puts a stderr of a kind in place; descriptors to be closed afterwards."""
    if way == "closed":
        os.close(2)
        return []
    if way == "pty hung up":
        theirs, ours = os.openpty()
        os.close(theirs)
        os.dup2(ours, 2)
        return [ours]
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    if way == "nobody reads":
        os.close(reading)
        return []
    os.set_blocking(2, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(2, b"." * 4096)
    os.set_blocking(2, way == "full")
    return [reading]


@contextmanager
def stderr_of(way: str) -> Iterator[list[int]]:
    saved = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 10)
    left = []
    try:
        left = _stderr(way)
        yield left
    finally:
        os.dup2(saved, 2)
        for fd in [saved, *left]:
            os.close(fd)


@pytest.mark.parametrize("way", WAYS)
def test_a_pool_works_and_ends_whatever_becomes_of_stderr(method: str, way: str) -> None:
    with stderr_of(way):
        pool = cw.Pool(2, context=method, capture_stderr=True)
        for _ in range(4):
            pool.apply_async(tasks.print_error, ("x" * 100_000,)).get(LONG)
        with pytest.raises(cw.WorkerDied, match="the last words") as told:
            pool.apply_async(tasks.print_and_die, ("the last words",)).get(LONG)
        assert told.value.stderr is not None and told.value.stderr.endswith("the last words\n")
        assert pool.apply_async(abs, (-1,)).get(LONG) == 1
        pool.terminate()
        pool.join()


def test_what_is_dropped_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stderr, "WAITING_BYTES", 100_000)
    with stderr_of("full") as (reading,):
        pool = cw.Pool(1, capture_stderr=True)
        for _ in range(4):
            pool.apply(tasks.print_error, ("x" * 60_000,))
        with pytest.raises(cw.WorkerDied, match="the last words"):  # all before it has been read
            pool.apply(tasks.print_and_die, ("the last words",))
        read: list[bytes] = []

        def reader() -> None:
            while True:
                read.append(os.read(reading, 65536))
                if b"end of it" in b"".join(read[-2:]):
                    return

        thread = threading.Thread(target=reader)
        thread.start()
        pool.close()
        pool.join()
        os.write(2, b"end of it")
        thread.join()
    text = b"".join(read).decode()
    printed = 4 * 60_001 + len("the last words\n")
    said = text.split("[cableway: ")[1:]
    assert said and all(
        " bytes that workers printed to stderr were dropped here" in s for s in said
    )
    passed_on = text.count("x") + text.count("the last words\n") * 15
    assert abs(passed_on + sum(int(s.split()[0]) for s in said) - printed) <= 4 + 15


def test_all_has_been_passed_on_when_a_pool_has_ended(capfd: pytest.CaptureFixture[str]) -> None:
    with cw.Pool(2, capture_stderr=True) as pool:
        pool.map(tasks.print_error, [f"line {i}" for i in range(200)])
        pool.close()
        pool.join()
    assert set(capfd.readouterr().err.splitlines()) == {f"line {i}" for i in range(200)}


def test_a_child_that_prints_without_end_does_not_hide_a_death() -> None:
    with stderr_of("full"), cw.Pool(1, capture_stderr=True) as pool:
        with pytest.raises(cw.WorkerDied):
            pool.apply_async(tasks.leave_a_child_that_prints).get(LONG)
        assert pool.apply_async(abs, (-1,)).get(LONG) == 1
