"""A signal's handler that raises while the main thread takes results: what it raises comes out where the pool was called,
and nowhere else; and nobody's result suffers from it.

Runs in `make test-more`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from pool_support import LONG, nobody_collects

import cableway as cw
from cableway._core.handler_errors import is_handlers

STORM = Path(__file__).parent / "alarm_storm.py"
ALARMS = 5000 if os.environ.get("CABLEWAY_SOAK") else 400
# Where a handler's exception cannot be raised to anybody: Python's own finalisers and callbacks. Ours are in C.
PYTHONS_OWN = ("_releaseLock", "_acquireLock", "importlib", "weakref")


def storm(what: str, kind: str, method: str = "fork") -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(STORM), "cableway", what, kind, str(ALARMS), method],
        capture_output=True,
        text=True,
        timeout=LONG + ALARMS / 10,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("kind", ["arrays", "plain"])
@pytest.mark.parametrize(
    "what",
    ["Custom", "CustomBase", "TimeoutError", "ValueError", "SystemExit", "KeyboardInterrupt"],
)
def test_what_a_handler_raises_is_raised_to_its_thread_and_harms_no_result(
    what: str, kind: str
) -> None:
    found = storm(what, kind)
    lost = [each for each in found["lost"] if not any(own in each for own in PYTHONS_OWN)]
    assert not lost, found
    assert set(found["main"]) <= {"ok", "raised", "swallowed"}, found
    # One that came when the call had ended, or that Python's own finaliser met, is no loss of ours.
    assert found["main"]["raised"] >= found["raised"] * 0.99, found
    assert set(found["others"]) == {"ok"}, found


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_same_with_workers_that_do_not_come_by_fork(method: str) -> None:
    found = storm("Custom", "arrays", method)
    assert set(found["main"]) <= {"ok", "raised", "swallowed"}, found
    assert set(found["others"]) == {"ok"}, found


class Alarm(Exception):
    """A handler's."""


class Late:
    """Unpickling it in the parent meets an alarm, the first time or each time."""

    def __init__(self, path: str, always: bool) -> None:
        self.path, self.always = path, always

    def __reduce__(self) -> Any:
        return late, (os.getpid(), self.path, self.always)


def late(sender: int, path: str, always: bool) -> str:
    """The user's own code, which is interrupted."""
    if os.getpid() != sender:
        first = not Path(path).exists()
        Path(path).touch()
        if first and threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGALRM)
        if always:
            raise LookupError("cannot be unpickled here")
    return "unpickled"


def make_late(path: str, always: bool) -> Late:
    return Late(path, always)


@pytest.fixture
def alarms() -> Any:
    """A handler that raises."""

    def handler(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarms")
@pytest.mark.parametrize("way", ["apply", "apply_async"])
def test_an_alarm_while_a_result_is_unpickled_is_the_callers(
    way: str, tmp_path: Path, forked: cw.Pool
) -> None:
    arguments = (str(tmp_path / "a"), False)
    if way == "apply":
        with pytest.raises(Alarm):
            forked.apply(make_late, arguments)
    else:
        with nobody_collects(forked):
            result = forked.apply_async(make_late, arguments)
            with pytest.raises(Alarm):
                result.get(LONG)
        assert result.get(LONG) == "unpickled"  # it was not lost
    assert forked.apply(tasks.square, (3,)) == 9


@pytest.mark.usefixtures("alarms")
def test_an_alarm_and_a_result_that_cannot_be_unpickled_are_two_things(
    tmp_path: Path, forked: cw.Pool
) -> None:
    with nobody_collects(forked):
        result = forked.apply_async(make_late, (str(tmp_path / "a"), True))
        with pytest.raises(Alarm):
            result.get(LONG)
    with pytest.raises(cw.pool.MaybeEncodingError, match="cannot be unpickled here"):
        result.get(LONG)


def test_a_result_that_cannot_be_unpickled_raises_nothing_else(
    tmp_path: Path, forked: cw.Pool
) -> None:
    (tmp_path / "a").touch()
    for _ in range(5):
        with pytest.raises(cw.pool.MaybeEncodingError, match="cannot be unpickled here"):
            forked.apply(make_late, (str(tmp_path / "a"), True))
        with pytest.raises(cw.pool.MaybeEncodingError, match="cannot be unpickled here"):
            forked.map(same_late, [str(tmp_path / "a")] * 3)


def same_late(path: str) -> Late:
    return Late(path, True)


class Reluctant:
    """Pickling it meets an alarm, once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.more = np.zeros(30_000)

    def __reduce__(self) -> Any:
        if not self.path.exists():
            self.path.touch()
            signal.raise_signal(signal.SIGALRM)
        return np.sum, (self.more,)


@pytest.mark.usefixtures("alarms")
def test_an_alarm_while_a_task_is_pickled_leaves_the_task_to_be_sent(
    tmp_path: Path, forked: cw.Pool
) -> None:
    with pytest.raises(Alarm):
        forked.apply_async(tasks.same, (Reluctant(tmp_path / "a"),))
    assert forked.apply_async(tasks.same, (Reluctant(tmp_path / "a"),)).get(LONG) == 0


def test_the_value_s_own_exception_is_told_from_a_handler_s() -> None:
    def fails() -> None:
        raise LookupError

    assert not is_handlers(LookupError(), fails)
    assert is_handlers(Alarm(), fails) and is_handlers(Alarm(), lambda: None)
    assert not is_handlers(cw.BrokerLost(), lambda: None)  # it has passed
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(is_handlers(Alarm(), lambda: None)))
    thread.start()
    thread.join()
    assert found == [False]  # no handler runs there
