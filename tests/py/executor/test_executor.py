"""`cableway.Executor`: what it promises beyond CPython's own tests (test_executor_cpython.py)."""

from __future__ import annotations

import asyncio
import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import weakref
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from conftest import Script, eventually

import cableway as cw
import cableway.executor
from cableway._pool.engine import Engine
from cableway.executor import ExecutorBroken, ExecutorTimeout, ExecutorWorkerDied

METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(params=METHODS)
def executor(request):
    with cw.Executor(2, request.param) as made:
        yield made


@pytest.fixture
def forked():
    with cw.Executor(2, "fork") as made:
        yield made


def test_calls_run_in_workers_and_give_results_in_order(executor):
    assert executor.submit(tasks.add, 1, 2, z=3).result(60) == 6
    assert executor.submit(tasks.pid).result(60) != os.getpid()
    expected = [x * y for x, y in zip(range(100), range(7, 107), strict=True)]
    for chunksize in (1, 7, 1000):
        assert (
            list(executor.map(_times, range(100), range(7, 107), chunksize=chunksize)) == expected
        )
    assert list(executor.map(_times, [], [])) == []


def _times(x: int, y: int) -> int:
    return x * y


@pytest.mark.parametrize("end", [tasks.killed, lambda: os._exit(3), lambda: tasks.exit_softly(4)])
def test_a_worker_that_dies_fails_its_own_task_alone(forked, end):
    others = [forked.submit(tasks.nap, 0.2) for _ in range(4)]
    lost = forked.submit(end)
    error = lost.exception(60)
    assert isinstance(error, ExecutorWorkerDied)
    assert isinstance(error, cw.WorkerDied) and isinstance(error, BrokenProcessPool)
    assert error.pid and error.exitcode in (-signal.SIGKILL, 3, 4)
    assert [other.result(60) for other in others] == [0.2] * 4
    assert list(forked.map(tasks.square, range(20))) == [x * x for x in range(20)]


def test_a_map_raises_where_its_worker_died_and_others_go_on(forked):
    results = forked.map(tasks.kill_at_three, range(6))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ExecutorWorkerDied):
        next(results)
    assert forked.submit(tasks.square, 3).result(60) == 9


def test_exceptions_bring_the_workers_traceback(executor):
    error = executor.submit(tasks.fail, 3).exception(60)
    assert isinstance(error, tasks.Fault) and error.number == 7
    assert "in fail" in str(error.__cause__)


def test_what_cannot_be_pickled_or_read_fails_its_own_task(forked):
    for function, argument, kind in (
        (tasks.same, tasks.CannotBePickled(), RuntimeError),
        (tasks.same, tasks.CannotBeRead(), RuntimeError),
        (tasks.unpicklable_result, None, multiprocessing.pool.MaybeEncodingError),  # type: ignore[attr-defined]
        (tasks.unreadable_fault, None, Exception),
    ):
        assert isinstance(forked.submit(function, argument).exception(60), kind)
    assert forked.submit(lambda x: x + 1, 1).result(60) == 2


def test_a_future_can_be_cancelled_until_a_worker_begins_it(forked, tmp_path):
    begun = [forked.submit(tasks.wait_for, str(tmp_path / "go")) for _ in range(2)]
    assert eventually(lambda: all(future.running() for future in begun))
    waiting = [forked.submit(tasks.square, 2) for _ in range(3)]
    assert waiting[1].cancel() and not begun[0].cancel()
    (tmp_path / "go").touch()
    done, pending = futures.wait(waiting, timeout=60)
    assert not pending and waiting[1].cancelled()
    assert waiting[0].result() == waiting[2].result() == 4
    with pytest.raises(futures.CancelledError):
        waiting[1].result()


def test_a_map_that_is_not_read_on_begins_no_more(forked, tmp_path):
    results = forked.map(_touch, [tmp_path] * 100, range(100))
    next(results)
    results.close()  # type: ignore[attr-defined]
    (tmp_path / "go").touch()
    forked.shutdown()
    assert len(list(tmp_path.iterdir())) < 20


def _touch(folder: Path, number: int) -> None:
    (folder / str(number)).touch()
    if number:
        tasks.wait_for(str(folder / "go"))


@pytest.mark.parametrize("options", [{}, {"buffersize": 2}])
def test_map_times_out_and_the_executor_goes_on(forked, tmp_path, options):
    here, go = str(tmp_path), str(tmp_path / "go")
    for timeout in (0.3, 3, 30):  # the time in which the first result comes, too
        results = forked.map(tasks.wait_for, [here, go], timeout=timeout, **options)
        try:
            assert next(results) == here
            break
        except ExecutorTimeout:
            pass
    with pytest.raises(ExecutorTimeout) as caught:
        next(results)
    assert isinstance(caught.value, futures.TimeoutError) and isinstance(caught.value, TimeoutError)
    Path(go).touch()
    assert forked.submit(tasks.square, 3).result(60) == 9


@pytest.mark.parametrize("chunksize", [1, 3])
def test_buffersize_bounds_how_far_the_input_is_read(forked, chunksize):
    taken = []

    def numbers():
        for number in itertools.count():
            taken.append(number)
            yield number

    results = forked.map(tasks.square, numbers(), buffersize=4, chunksize=chunksize)
    assert len(taken) == 4 * chunksize
    assert [next(results) for _ in range(10)] == [x * x for x in range(10)]
    assert len(taken) <= 10 + 5 * chunksize
    results.close()  # type: ignore[attr-defined]


def test_wrong_arguments_are_refused():
    for arguments in ({"max_workers": 0}, {"max_tasks_per_child": 0}):
        with pytest.raises(ValueError):
            cw.Executor(**arguments)
    with pytest.raises(TypeError):
        cw.Executor(1, initializer=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        cw.Executor(1, max_tasks_per_child=1.5)  # type: ignore[arg-type]
    with cw.Executor(1) as executor:
        for wrong in ({"chunksize": 0}, {"buffersize": 0}):
            with pytest.raises(ValueError):
                executor.map(abs, [1], **wrong)
        with pytest.raises(NotImplementedError):
            pickle.dumps(executor)


def test_callbacks_run_once_and_a_slow_or_failing_one_holds_up_no_result(forked, capsys):
    heard: list[Any] = []
    go = threading.Event()
    slow = forked.submit(tasks.nap, 0.1)
    slow.add_done_callback(lambda future: go.wait(60))
    slow.add_done_callback(lambda future: 1 / 0)
    slow.add_done_callback(heard.append)
    assert slow.result(60) == 0.1
    assert forked.submit(tasks.square, 3).result(60) == 9
    assert not heard
    go.set()
    assert eventually(lambda: heard == [slow])


def test_a_callback_may_submit_and_wait(forked):
    heard: list[Any] = []
    first = forked.submit(tasks.nap, 0.05)
    first.add_done_callback(lambda _: heard.append(forked.submit(tasks.square, 4).result(60)))
    assert eventually(lambda: heard == [16])


def test_asyncio_runs_in_it(forked):
    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(forked, tasks.square, x) for x in range(20)]
        with pytest.raises(tasks.Fault):
            await loop.run_in_executor(forked, tasks.fail, 1)
        with pytest.raises(cw.WorkerDied):
            await loop.run_in_executor(forked, tasks.killed)
        return await asyncio.gather(*calls)

    assert asyncio.run(main()) == [x * x for x in range(20)]


@pytest.mark.parametrize("method", METHODS)
def test_an_initializer_runs_in_each_worker_and_again_after_a_death(method):
    with cw.Executor(1, method, tasks.remember, (1, 2)) as executor:
        assert executor.submit(tasks.remembered).result(60) == [1, 2]
        assert executor.submit(tasks.killed).exception(60)
        assert executor.submit(tasks.remembered).result(60) == [1, 2]


def test_a_failing_initializer_is_told_to_every_future_and_to_submit():
    executor = cw.Executor(2, initializer=tasks.refuse_to_start, initargs=("no",))
    error = executor.submit(abs, 1).exception(60)
    assert isinstance(error, ExecutorBroken) and isinstance(error, BrokenProcessPool)
    assert isinstance(error.__cause__, tasks.Fault)
    assert eventually(lambda: isinstance(_refusal(executor), ExecutorBroken))
    executor.shutdown()


@pytest.mark.parametrize("method", METHODS)
def test_a_failing_initializer_is_told_when_what_its_worker_had_to_say_is_out(method, tmp_path):
    mark = tmp_path / "ended"  # as a logging queue's thread sends on until its process ends
    executor = cw.Executor(1, method, tasks.refuse_and_end_slowly, (str(mark), 0.5))
    assert isinstance(executor.submit(abs, 1).exception(60), ExecutorBroken)
    assert mark.exists()
    executor.shutdown()


def test_a_failing_initializer_is_told_also_when_its_worker_does_not_end(tmp_path):
    initargs = (str(tmp_path / "ended"), 1000.0)
    executor = cw.Executor(1, "fork", tasks.refuse_and_end_slowly, initargs)
    assert isinstance(executor.submit(abs, 1).exception(60), ExecutorBroken)
    executor.shutdown()


def test_the_first_future_tells_also_when_the_workers_have_failed_at_once(monkeypatch):
    class Broken(Engine):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            assert eventually(lambda: self.error is not None)

    monkeypatch.setattr(cableway.executor, "Engine", Broken)
    executor = cw.Executor(2, initializer=tasks.refuse_to_start, initargs=("no",))
    assert isinstance(executor.submit(abs, 1).exception(60), ExecutorBroken)
    executor.shutdown()


def _refusal(executor: Any) -> BaseException | None:
    try:
        executor.submit(abs, 1).exception(60)
    except RuntimeError as error:
        return error
    return None


def test_workers_that_cannot_start_break_it_instead_of_hanging():
    with cw.Executor(1, "fork", tasks.die_at_start) as executor:
        assert isinstance(executor.submit(abs, 1).exception(60), ExecutorBroken)


@pytest.mark.parametrize("method", METHODS)
def test_workers_are_replaced_after_their_tasks(method):
    with cw.Executor(1, method, max_tasks_per_child=2) as executor:
        pids = [executor.submit(tasks.pid).result(60) for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_shutdown_waits_for_what_was_submitted(forked):
    calls = [forked.submit(tasks.nap, 0.05) for _ in range(6)]
    results = forked.map(tasks.square, range(5))
    forked.shutdown()
    assert all(call.done() for call in calls) and list(results) == [0, 1, 4, 9, 16]
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        forked.submit(abs, 1)
    forked.shutdown()


def test_shutdown_cancels_what_was_not_begun(forked, tmp_path):
    go = tmp_path / "go"
    calls = [forked.submit(tasks.wait_for, str(go)) for _ in range(8)]
    results = forked.map(tasks.nap, [0.1] * 3)
    assert eventually(lambda: calls[0].running())

    def let_go() -> None:
        eventually(lambda: calls[-1].cancelled())
        go.touch()

    threading.Thread(target=let_go).start()
    forked.shutdown(cancel_futures=True)
    assert calls[0].result() == str(go)
    assert 4 <= sum(call.cancelled() for call in calls) <= 7
    with pytest.raises(futures.CancelledError):
        list(results)


@pytest.mark.parametrize("end", ["terminate_workers", "kill_workers"])
def test_ending_the_workers_fails_what_is_under_way(end):
    executor = cw.Executor(2, "fork")
    calls = [executor.submit(tasks.nap, 60) for _ in range(4)]
    assert eventually(lambda: calls[1].running())
    getattr(executor, end)()
    assert all(isinstance(call.exception(20), BrokenProcessPool) for call in calls)
    with pytest.raises(RuntimeError):
        executor.submit(abs, 1)


def test_a_dropped_executor_ends_once_its_work_is_done():
    executor = cw.Executor(2, "fork")
    calls = [executor.submit(tasks.nap, 0.1) for _ in range(4)]
    pids = {executor.submit(tasks.pid).result(60)}
    gone = weakref.ref(executor)
    del executor
    assert [call.result(60) for call in calls] == [0.1] * 4
    assert eventually(lambda: gc.collect() >= 0 and gone() is None)
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_threads_share_one(forked):
    found: list[Any] = []

    def use(number: int) -> None:
        found.extend(forked.submit(tasks.square, number * 50 + x).result(60) for x in range(50))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [x * x for x in range(200)]


def test_arrays_go_through_shared_memory_and_are_the_tasks_own(forked):
    values = np.arange(100_000.0)
    assert (forked.submit(tasks.doubled, values).result(60) == values * 2).all()
    assert forked.submit(tasks.overwrite, values).result(60) == 0
    assert values[-1] == 99_999
    shared = cw.zeros(10)
    forked.submit(tasks.fill, shared, 3).result(60)
    assert (shared.numpy() == 3).all()


def test_tasks_may_use_processes_and_executors_of_their_own(forked):
    assert forked.submit(_nested, 3).result(60) == [0, 1, 4]


def _nested(n: int) -> list[int]:
    with cw.Executor(1, "fork") as inner:
        return list(inner.map(tasks.square, range(n)))


def test_a_forked_child_is_told_that_it_is_not_its_own(forked):
    assert forked.submit(tasks.square, 2).result(60) == 4
    inside, outside = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            forked.submit(abs, 1)
        except RuntimeError as error:
            os.write(outside, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"belongs to the process" in os.read(inside, 1000)
    os.close(inside)
    os.close(outside)
    assert forked.submit(tasks.square, 3).result(60) == 9


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("end", ["", "executor.shutdown(wait=False)", "del executor"])
def test_the_interpreters_exit_waits_for_what_was_submitted(script: Script, method, end):
    done = script(
        f"""
        import time
        import cableway as cw

        def late(text):
            time.sleep(0.3)
            print(text, flush=True)

        if __name__ == "__main__":
            executor = cw.Executor(2, {method!r})
            executor.submit(late, "apple")
            {end}
        """
    )
    assert done.stdout == "apple\n" and not done.stderr


def test_after_the_interpreters_end_has_begun_nothing_is_taken(script: Script):
    done = script(
        """
        import atexit
        import cableway as cw

        @atexit.register
        def last():
            try:
                executor.submit(id, None)
            except RuntimeError as error:
                print(error)

        executor = cw.Executor(2, "fork")
        executor.submit(id, 42).result()
        """
    )
    assert done.stdout == "cannot schedule new futures after interpreter shutdown\n"
    assert not done.stderr


@pytest.mark.parametrize("recurs", [False, True])
def test_a_map_whose_results_are_dropped_anywhere_hangs_nothing(forked, recurs):
    """A finaliser takes back what was not begun, on a thread that may be in the middle of anything."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)  # collects wherever something is made
    try:
        for i in range(30):
            values = np.full(20_000, float(i))
            items = [values] * 40 if recurs else [values + k for k in range(40)]
            cycle = [forked.map(tasks.same, items)]
            cycle.append(cycle)
            next(cycle[0])
            del cycle
            assert (forked.submit(tasks.same, values).result(60) == values).all()
    finally:
        gc.set_threshold(*before)
