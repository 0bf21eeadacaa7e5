"""A Ctrl-C at any moment of what the main thread does for others: nobody waits for ever because of it.

Runs in `make test-more`.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent import futures
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from ctrl_c import children
from pool_support import workers_of
from waiting import eventually

import cableway as cw

LONG = 20


def put_here() -> cw.Array:
    """An array that nobody else holds."""
    return cw.asarray([1, 2, 3])


# CPython looks for signals when a function begins, after a call, and in a loop.
_LOOKS = {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "FOR_ITER"}
_OURS = Path(cw.__file__).parent
_PARTS = tuple(
    str(_OURS / name)
    for name in ("_pool/", "pool.py", "_executor/", "executor.py", "_array/", "array.py")
)
assert all(Path(part).exists() for part in _PARTS)
_PLACES_MAX = 1500


@functools.cache
def _protected(code: CodeType) -> list[tuple[int, int, int]]:
    """Which parts of a function have a handler for exceptions: begin, end, the handler."""
    return [(each.start, each.end, each.target) for each in dis._parse_exception_table(code)]  # type: ignore[attr-defined]


def _handler(code: CodeType, offset: int) -> int | None:
    return next((to for start, end, to in _protected(code) if start <= offset < end), None)


class CtrlC:
    """Raises KeyboardInterrupt at one place of the engine's code: the number-th where CPython looks for signals.

    It can be raised only before the next instruction, where CPython raises it at the call itself: so places are left
    out between which a `with` or `try` ends.
    """

    def __init__(self, number: int) -> None:
        self.left = number
        self._last: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_PARTS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._look

    def forget(self) -> None:
        """Holds no frame any more, nor what those hold."""
        self._last.clear()

    def _look(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return":
            self._last.pop(frame, None)
        if event == "opcode":
            code, at = frame.f_code, frame.f_lasti
            before = self._last.get(frame)
            self._last[frame] = at
            if (
                before is not None
                and dis.opname[code.co_code[before]] in _LOOKS
                and _handler(code, before) == _handler(code, at)
            ):
                self.left -= 1
                if self.left == 0:
                    raise KeyboardInterrupt
        return self._look


def interrupted(number: int, call: Any) -> bool:
    """Runs call, with a Ctrl-C at one place. False: it ended before it came there."""
    interrupter = CtrlC(number)
    sys.settrace(interrupter)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
        interrupter.forget()
    return interrupter.left <= 0


def everywhere(once: Any) -> None:
    """once(number) for every place, until the call is through before it comes there."""
    number, through = 1, 0
    while through < 3 and number < _PLACES_MAX:
        through = 0 if once(number) else through + 1
        number += 1 if number < 60 else 3


@pytest.mark.skipif(sys.version_info < (3, 11), reason="looks for signals at every opcode")
def test_a_ctrl_c_while_delivering_for_others_loses_nothing(forked: cw.Pool) -> None:
    big = np.arange(20_000.0)

    def once(number: int) -> bool:
        heard: list[Any] = []
        one = forked.apply_async(tasks.nap, (0.001,), callback=heard.append)
        bad = forked.apply_async(tasks.fail, (number,), error_callback=heard.append)
        some = forked.map_async(tasks.square, range(20), chunksize=3)
        arrays = forked.map_async(tasks.same, [big, big + 1], chunksize=1)
        handed = forked.apply_async(put_here)
        row = forked.imap(tasks.square, range(9), chunksize=2)
        loose = forked.imap_unordered(tasks.square, range(9), chunksize=2)
        last = forked.apply_async(tasks.nap, (0.003,))
        hit = interrupted(number, last.wait)
        assert one.get(LONG) == 0.001, number
        with pytest.raises(tasks.Fault):
            bad.get(LONG)
        assert some.get(LONG) == [x * x for x in range(20)], number
        first, second = arrays.get(LONG)
        assert (first == big).all() and (second == big + 1).all(), number
        assert handed.get(LONG).numpy().tolist() == [1, 2, 3], number
        assert [row.next(LONG) for _ in range(9)] == [x * x for x in range(9)], number
        assert sorted(loose.next(LONG) for _ in range(9)) == [x * x for x in range(9)], number
        assert len(heard) == 2, number
        return hit

    everywhere(once)
    assert forked.apply(tasks.square, (3,)) == 9


@pytest.mark.skipif(sys.version_info < (3, 11), reason="looks for signals at every opcode")
def test_a_ctrl_c_while_sending_for_others_sends_each_task_once(forked: cw.Pool) -> None:
    def once(number: int) -> bool:
        before = forked.stats()["tasks"]
        waiting = forked.map_async(
            tasks.square, range(700), chunksize=1
        )  # more than there is room for
        hit = interrupted(number, waiting.wait)
        assert waiting.get(LONG) == [x * x for x in range(700)], number
        assert forked.stats()["tasks"] - before == 700, number
        return hit

    everywhere(once)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="looks for signals at every opcode")
def test_a_ctrl_c_anywhere_leaves_the_executor_working() -> None:
    with cw.Executor(2, mp_context="fork") as executor:

        def once(number: int) -> bool:
            futures = [executor.submit(tasks.nap, 0.001) for _ in range(3)]
            bad = executor.submit(tasks.fail, 1)
            heard: list[Any] = []
            futures[0].add_done_callback(heard.append)
            bad.add_done_callback(heard.append)
            hit = interrupted(number, lambda: executor.submit(tasks.nap, 0.003).result())
            assert [future.result(LONG) for future in futures] == [0.001] * 3, number
            assert isinstance(bad.exception(LONG), tasks.Fault), number
            executor.submit(abs, 1).add_done_callback(heard.append)
            assert eventually(lambda: len(heard) == 3, LONG), number
            return hit

        everywhere(once)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="looks for signals at every opcode")
@pytest.mark.parametrize("large", [False, True])
def test_a_ctrl_c_while_futures_are_cancelled_leaves_none_unsettled(large: bool) -> None:
    value = np.zeros(50_000) if large else 0.0  # a message with a block, or a plain task
    with cw.Executor(1, mp_context="fork") as executor:

        def once(number: int) -> bool:
            busy = executor.submit(tasks.nap, 0.002)
            waiting = [executor.submit(tasks.same, value) for _ in range(3)]
            heard: list[Any] = []
            told: list[Any] = []
            for future in waiting[:2]:
                future.add_done_callback(heard.append)
            listener = threading.Thread(target=lambda: told.append(futures.wait(waiting, LONG)))
            listener.start()
            hit = interrupted(number, lambda: [future.cancel() for future in waiting])
            for future in waiting:
                try:
                    future.result(LONG)
                except futures.CancelledError:
                    pass
            listener.join()
            assert not told[0].not_done, number
            assert eventually(lambda: len(heard) == 2, LONG), number
            assert busy.result(LONG) == 0.002, number
            return hit

        everywhere(once)
        engine = executor._engine
        assert engine is not None
        assert eventually(lambda: not engine._submit_queue._in_flight), (
            engine._submit_queue._in_flight
        )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="looks for signals at every opcode")
def test_a_ctrl_c_in_a_shutdown_that_cancels_leaves_none_unsettled() -> None:
    def once(number: int) -> bool:
        executor = cw.Executor(1, mp_context="fork")
        calls = [executor.submit(tasks.nap, 0.001) for _ in range(3)]
        row = executor.map(tasks.nap, [0.001] * 400)  # more than there is room for
        hit = interrupted(number, lambda: executor.shutdown(cancel_futures=True))
        executor.shutdown()
        for call in calls:
            assert call.cancelled() or call.result(LONG) == 0.001, number
        with contextlib.suppress(futures.CancelledError):
            assert list(row) == [0.001] * 400, number
        return hit

    number, through = 1, 0
    while through < 2 and number < _PLACES_MAX:
        through = 0 if once(number) else through + 1
        number += 7


def test_what_a_handler_raises_is_not_lost_when_the_task_fails_meanwhile(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with cw.Pool(1) as pool:
        (pid,) = workers_of(pool, 1)

        def interrupt() -> None:
            assert eventually(mark.exists, LONG)
            os.kill(os.getpid(), signal.SIGINT)

        def handler(*_: object) -> None:
            os.kill(pid, signal.SIGKILL)
            # Its successor begins after the call was told that its worker has died.
            assert eventually(lambda: pool.stats()["workers"][0]["pid"] not in (pid, None), LONG)
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, handler)
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                pool.apply(tasks.mark_and_wait, ((str(mark), str(tmp_path / "go")),))
        finally:
            signal.signal(signal.SIGINT, before)
            interrupter.join()
        assert pool.apply(tasks.square, (3,)) == 9


def own_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("cableway-pool")]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="looks for signals at every opcode")
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # in a finaliser, too
@pytest.mark.parametrize("kind", [cw.Pool, cw.Executor])
def test_a_ctrl_c_while_it_starts_or_ends_leaves_no_worker(kind: Any) -> None:
    """Wherever it comes: until the block begins nobody has the Pool but the interpreter, which drops it."""
    context = multiprocessing.get_context("fork")
    before = children()

    def use() -> None:
        with kind(2, context=context):
            pass

    def use_executor() -> None:
        with kind(2, mp_context=context) as executor:
            executor.submit(tasks.square, 3).result(LONG)

    def once(number: int) -> bool:
        hit = interrupted(number, use if kind is cw.Pool else use_executor)
        assert eventually(lambda: children() <= before, LONG), number
        assert eventually(lambda: not own_threads(), LONG), number
        return hit

    everywhere(once)


@pytest.mark.parametrize("kind", ["Pool", "Executor"])
def test_signals_at_any_moment_of_its_life_leave_no_worker_and_break_no_thread(kind: str) -> None:
    """The real thing: also between the instructions that a trace can reach, as while a fork returns."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("ctrl_c.py")), kind, "120"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "cableway-pool" not in done.stderr
    interrupts, left = map(int, done.stdout.split())
    assert interrupts > 20  # of 120: it was in the block
    assert left == 0
