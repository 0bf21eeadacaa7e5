"""What a Pool has beyond multiprocessing's: retries, time limits, captured stderr, progress, resizing, figures."""

from __future__ import annotations

import gc
import io
import itertools
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import option_tasks as tasks
import pytest
from pool_support import LONG, gone, workers_of
from waiting import eventually

import cableway as cw
from cableway._pool import progress as progress_bars


@pytest.fixture(params=[cw.Pool, cw.Executor], ids=["Pool", "Executor"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def run(pool: Any, function: Any, *args: Any) -> Any:
    """One call of a Pool or an Executor, waited for."""
    if isinstance(pool, cw.Pool):
        return pool.apply_async(function, args).get(LONG)
    return pool.submit(function, *args).result(LONG)


# ---- retries


def test_a_task_whose_worker_died_is_run_again(kind: Any, tmp_path: Path) -> None:
    with kind(2, retries=2) as pool:
        assert run(pool, tasks.die_at_first, str(tmp_path / "apply"), 2) == "done"
        with pytest.raises(cw.WorkerDied):
            run(pool, tasks.die_at_first, str(tmp_path / "often"), 3)
        assert run(pool, abs, -1) == 1


@pytest.mark.parametrize("way", ["map", "starmap", "imap", "imap_unordered", "generator"])
def test_items_whose_worker_died_are_run_again(way: str, tmp_path: Path) -> None:
    calls = [(str(tmp_path / str(i)), i % 2) for i in range(6)]
    with cw.Pool(2, retries=1) as pool:
        if way == "starmap":
            found = pool.starmap(tasks.die_at_first, calls, 2)
        elif way == "map":
            found = pool.map(tasks.die_at_first_of, calls, 1)
        elif way == "generator":
            found = list(pool.imap(tasks.die_at_first_of, iter(calls), 2))
        else:
            found = list(getattr(pool, way)(tasks.die_at_first_of, calls, 1))
    assert found == ["done"] * 6


def test_an_exception_is_never_retried(kind: Any, tmp_path: Path) -> None:
    count = tmp_path / "count"
    with kind(1, retries=3) as pool, pytest.raises(tasks.Fault):
        run(pool, tasks.count_and_fail, str(count))
    assert count.read_text() == "."


def test_large_arguments_are_sent_again(tmp_path: Path) -> None:
    import numpy as np

    big = np.arange(100_000.0)
    with cw.Pool(1, retries=1) as pool:
        assert pool.apply(tasks.die_at_first_with, (str(tmp_path / "x"), big)) == big.sum()


# ---- time limits


def test_a_task_that_overruns_ends_alone(kind: Any) -> None:
    with kind(
        2, task_timeout=2.5
    ) as pool:  # and more than what a quick one takes on a busy machine
        with pytest.raises(cw.TaskTimeout, match=r"task_timeout of 2\.5 s.*time\.sleep") as told:
            run(pool, __import__("time").sleep, LONG)
        assert isinstance(told.value, cw.WorkerDied) and isinstance(told.value, TimeoutError)
        assert gone(told.value.pid or 0)
        assert run(pool, abs, -3) == 3


def test_a_time_limit_counts_from_the_beginning_of_a_task() -> None:
    with cw.Pool(1, task_timeout=3) as pool:
        assert pool.map(tasks.nap, [0.1] * 35, chunksize=1) == [0.1] * 35


def test_a_task_that_overran_is_not_retried(tmp_path: Path) -> None:
    with cw.Pool(1, task_timeout=2, retries=2) as pool, pytest.raises(cw.TaskTimeout):
        pool.apply(tasks.count_and_sleep, (str(tmp_path / "count"), LONG))
    assert (tmp_path / "count").read_text() == "."


# ---- stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_a_dead_worker_printed_last_is_told(
    method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with cw.Pool(1, capture_stderr=True, context=method) as pool:
        with pytest.raises(cw.WorkerDied, match="the last words") as told:
            pool.apply(tasks.print_and_die, ("the last words",))
        assert told.value.stderr is not None and told.value.stderr.endswith("the last words\n")
        pool.apply(tasks.print_error, ("passed on",))
    pool.join()  # it has been written then; capfd loses what comes while it reads
    assert "passed on" in capfd.readouterr().err


def test_much_that_is_printed_blocks_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    with cw.Pool(1, capture_stderr=True) as pool:
        assert pool.apply(tasks.print_error, ("x" * 3_000_000,)) is None
        with pytest.raises(cw.WorkerDied) as told:
            pool.apply(os._exit, (1,))
    assert told.value.stderr is not None and len(told.value.stderr) == 8192


def test_a_worker_that_cannot_start_tells_what_it_printed() -> None:
    pool = cw.Pool(1, initializer=tasks.print_and_die, initargs=("no start",), capture_stderr=True)
    with pool, pytest.raises(cw.WorkerDied, match="no start"):
        pool.apply(abs, (1,))


# ---- progress


class Bar:
    def __init__(self, total: int | None) -> None:
        self.total, self.count, self.closed = total, 0, False

    def update(self, count: int) -> None:
        self.count += count

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("way", ["map", "starmap", "imap", "imap_unordered"])
def test_progress_reaches_the_end(way: str) -> None:
    made: list[Bar] = []

    def bar(total: int | None) -> Bar:
        made.append(Bar(total))
        return made[0]

    with cw.Pool(2) as pool:
        items = [(i,) for i in range(23)] if way == "starmap" else range(23)
        found = getattr(pool, way)(abs, items, 5, progress=bar)
        assert sorted(found) == list(range(23))
    assert (made[0].total, made[0].count, made[0].closed) == (23, 23, True)


def test_progress_is_closed_when_the_call_fails() -> None:
    made: list[Bar] = []
    with cw.Pool(2) as pool, pytest.raises(tasks.Fault):
        pool.map(tasks.fail, range(4), progress=lambda total: made.append(Bar(total)) or made[0])
    assert made[0].closed


def test_progress_of_an_unknown_length() -> None:
    made: list[Bar] = []
    with cw.Pool(1) as pool:
        ahead = pool.imap(
            abs, iter(range(5)), progress=lambda total: made.append(Bar(total)) or made[0]
        )
        assert next(ahead) == 0
        assert (made[0].total, made[0].count) == (None, 1)


def test_progress_in_a_log_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with cw.Pool(1) as pool:
        pool.map(abs, range(8), progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("8 of 8 (100 %) done in ")


def test_progress_in_a_terminal_is_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    tqdm = pytest.importorskip("tqdm.auto")
    assert isinstance(progress_bars._default(3), tqdm.tqdm)


def test_progress_in_a_notebook_is_tqdm_although_its_stderr_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tqdm = pytest.importorskip("tqdm.auto")
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert not isinstance(progress_bars._default(3), tqdm.tqdm)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    assert isinstance(progress_bars._default(3), tqdm.tqdm)


@pytest.mark.parametrize("bad", [5, "yes", object()])
def test_progress_must_be_callable(bad: Any) -> None:
    with cw.Pool(1) as pool, pytest.raises(TypeError, match="progress must be"):
        pool.map(abs, [1], progress=bad)


# ---- how far imap reads ahead


def counted(seen: list[int]) -> Iterator[int]:
    for i in itertools.count():
        seen.append(i)
        yield i


def test_imap_reads_as_far_ahead_as_it_was_told() -> None:
    seen: list[int] = []
    with cw.Pool(2) as pool:
        results = pool.imap(abs, counted(seen), buffersize=3)
        assert [next(results) for _ in range(10)] == list(range(10))
        assert len(seen) <= 10 + 3 + 1
        pool.terminate()


def test_a_closed_pool_does_what_imap_was_given() -> None:
    done: list[int] = []
    pool = cw.Pool(1)
    results = pool.imap(abs, (done.append(i) or i for i in range(20)), buffersize=2)
    pool.close()
    pool.join()
    assert len(done) == 20 and list(results) == list(range(20))


@pytest.mark.parametrize("chunksize", [1, 3])
def test_a_dropped_imap_with_buffersize_lets_its_pool_go(chunksize: int) -> None:
    seen: list[int] = []
    ended: list[bool] = []

    def numbers() -> Iterator[int]:
        try:
            yield from counted(seen)
        finally:
            ended.append(True)

    pool = cw.Pool(2)
    engine = pool._engine
    results = pool.imap(lambda x: x, numbers(), chunksize, buffersize=3)
    assert [next(results) for _ in range(5)] == list(range(5))
    del results
    assert eventually(lambda: bool(ended) and not engine._feeding)
    read = len(seen)
    found = pool.map(abs, range(4))
    assert found == list(range(4)) and len(seen) == read
    unused = [each for each in engine.functions._by_pickle.values() if not each.pinned]
    assert [each.users for each in unused] == [0]
    with pytest.warns(ResourceWarning, match="unclosed running"):
        del pool
        gc.collect()
    engine.join()


def test_a_pool_whose_imap_alone_is_dropped_while_its_results_come_ends() -> None:
    for _ in range(20):
        pool = cw.Pool(1)
        results = pool.imap(abs, itertools.count(), buffersize=2)
        next(results)
        del results
        pool.close()
        pool.join()


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2"])
def test_a_bad_buffersize_is_refused(bad: Any) -> None:
    with cw.Pool(1) as pool, pytest.raises(ValueError, match="buffersize"):
        pool.imap(abs, [1], buffersize=bad)


# ---- resizing, figures


def test_a_pool_grows_and_shrinks_while_it_works(kind: Any) -> None:
    with kind(1) as pool:
        assert run(pool, abs, -1) == 1
        pool.resize(3)
        if kind is cw.Pool:
            found = pool.map_async(tasks.nap, [0.02] * 60, chunksize=1)
            assert len(workers_of(pool, 3)) == 3
            pool.resize(1)
            assert found.get(LONG) == [0.02] * 60
            assert eventually(
                lambda: sum(w["pid"] is not None for w in pool.stats()["workers"]) == 1, LONG
            )
        assert run(pool, abs, -2) == 2


@pytest.mark.parametrize(
    ("bad", "said"),
    [(0, "at least 1 worker, 0"), (-1, "at least 1"), (100_000, "room for 32 workers")],
)
def test_a_size_that_cannot_be_is_refused(kind: Any, bad: int, said: str) -> None:
    with kind(1) as pool, pytest.raises(ValueError, match=said):
        pool.resize(bad)


def test_figures_count_what_was_done(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with kind(2) as pool:
        for _ in range(10):
            run(pool, tasks.nap, 0.01)
        stats = pool.stats()
        assert stats["tasks"] == 10 and stats["seconds"] >= 0.1
        assert stats["bytes_in"] > 0 and stats["bytes_out"] > 0
        assert sum(worker["tasks"] for worker in stats["workers"]) == 10
        pool.print_stats()
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["all", "10"]


@pytest.mark.parametrize(
    "bad", [{"retries": -1}, {"retries": 1.5}, {"task_timeout": 0}, {"task_timeout": -1.0}]
)
def test_bad_options_are_refused(kind: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        kind(1, **bad)
