"""The Pool has the interface of multiprocessing.Pool: the same calls give the same results."""

from __future__ import annotations

import functools
import multiprocessing
import multiprocessing.pool
import operator
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from pool_support import LONG
from processes import stat_fields
from waiting import eventually

import cableway as cw
from cableway._core.cpus import usable_cpus


@pytest.fixture(scope="module")
def standard() -> Iterator[Any]:
    """The standard library's pool, for comparison."""
    with multiprocessing.get_context("fork").Pool(2) as made:
        yield made


def test_every_method_gives_the_same_as_the_standard_pool(pool: cw.Pool, standard: Any) -> None:
    items = list(range(37))
    pairs = [(x, x + 1) for x in items]
    calls: list[Callable[[Any], Any]] = [
        lambda p: p.apply(tasks.add, (1,), {"z": 5}),
        lambda p: p.apply(tasks.add, [1, 2]),
        lambda p: p.apply_async(tasks.add, (1, 2)).get(LONG),
        lambda p: p.map(tasks.square, items),
        lambda p: p.map(tasks.slow_square, items, chunksize=4),
        lambda p: p.map(tasks.square, iter(items), 1),
        lambda p: p.map(tasks.square, np.arange(5)),
        lambda p: p.map(tasks.square, "ab" and range(3)),
        lambda p: p.map_async(tasks.square, items, chunksize=100).get(LONG),
        lambda p: p.starmap(tasks.add, pairs),
        lambda p: p.starmap_async(tasks.add, pairs, chunksize=3).get(LONG),
        lambda p: list(p.imap(tasks.slow_square, items)),
        lambda p: list(p.imap(tasks.slow_square, iter(items), chunksize=5)),
        lambda p: sorted(p.imap_unordered(tasks.slow_square, items)),
        lambda p: sorted(p.imap_unordered(tasks.slow_square, iter(items), chunksize=5)),
        lambda p: p.map(tasks.square, []),
        lambda p: p.map(tasks.square, iter(())),
        lambda p: list(p.imap(tasks.square, [])),
        lambda p: list(p.imap(tasks.square, iter(()))),
        lambda p: list(p.imap_unordered(tasks.square, iter(()))),
        lambda p: p.map(functools.partial(tasks.add, 5), items),
        lambda p: p.map(operator.neg, items),
        lambda p: p.map(str, items),
        lambda p: p.map("{}-{}".format, items[:0]),
    ]
    for number, call in enumerate(calls):
        assert call(pool) == call(standard), number


def test_results_come_as_they_are_ready_unordered_and_in_order(
    forked: cw.Pool, tmp_path: Path
) -> None:
    assert list(forked.imap(tasks.nap, [0.3, 0.0])) == [0.3, 0.0]
    go, here = str(tmp_path / "go"), str(tmp_path)
    results = forked.imap_unordered(tasks.wait_for, [go, here])
    assert results.next(LONG) == here
    Path(go).touch()
    assert list(results) == [go]


def test_a_slow_task_holds_no_other_back(forked: cw.Pool, tmp_path: Path) -> None:
    slow = forked.apply_async(tasks.wait_for, (go := str(tmp_path / "go"),))
    assert forked.map(tasks.square, range(100), chunksize=1) == [x * x for x in range(100)]
    assert not slow.ready()
    Path(go).touch()
    assert slow.get(LONG) == go


def test_results_tell_whether_they_are_ready(forked: cw.Pool, tmp_path: Path) -> None:
    result = forked.apply_async(tasks.wait_for, (go := str(tmp_path / "go"),))
    assert not result.ready()
    with pytest.raises(ValueError, match="not ready"):
        result.successful()
    result.wait(0.01)
    assert not result.ready()
    with pytest.raises(cw.Timeout):
        result.get(timeout=0.01)
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(timeout=0)
    with pytest.raises(TimeoutError):
        result.get(timeout=-1)
    Path(go).touch()
    assert result.get(timeout=LONG) == go
    assert result.ready() and result.successful()
    bad = forked.apply_async(tasks.fail, (1,))
    bad.wait()
    assert bad.ready() and not bad.successful()


def test_imap_next_takes_a_timeout(forked: cw.Pool, tmp_path: Path) -> None:
    go, here = str(tmp_path / "go"), str(tmp_path)
    results = forked.imap(tasks.wait_for, [go, here])
    with pytest.raises(multiprocessing.TimeoutError):
        results.next(timeout=0.05)
    Path(go).touch()
    assert results.next(timeout=LONG) == go
    assert next(results) == here
    for _ in range(2):
        with pytest.raises(StopIteration):
            results.next(timeout=1)


def test_imap_reads_its_input_only_some_tasks_ahead(forked: cw.Pool) -> None:
    read = 0

    def endless() -> Iterator[float]:
        nonlocal read
        while True:
            read += 1
            yield 0.01

    results = forked.imap(tasks.nap, endless())
    assert [next(results) for _ in range(5)] == [0.01] * 5
    time.sleep(0.2)
    assert read < 200


def test_imaps_can_be_chained(forked: cw.Pool) -> None:
    inner = forked.imap(tasks.square, (x for x in range(50)))
    assert list(forked.imap(tasks.square, inner)) == [x**4 for x in range(50)]


def test_callbacks_run_before_the_result_is_ready(forked: cw.Pool) -> None:
    seen: list[Any] = []
    threads: list[str] = []

    def note(value: Any) -> None:
        threads.append(threading.current_thread().name)
        seen.append(value)

    forked.apply_async(tasks.square, (3,), callback=note).wait()
    assert seen == [9]
    forked.map_async(tasks.square, [1, 2], callback=note).wait()
    assert seen == [9, [1, 4]]
    forked.apply_async(tasks.fail, (1,), callback=note, error_callback=note).wait()
    assert isinstance(seen[-1], tasks.Fault)
    forked.starmap_async(tasks.fail_at_three, [(3,)], callback=note, error_callback=note).wait()
    assert seen[-1].number == 3
    assert threading.current_thread().name not in threads


def test_the_initializer_runs_in_each_worker(method: str) -> None:
    with cw.Pool(2, tasks.remember, (1, "two"), context=method) as pool:
        assert pool.map(tasks.remembered, range(8), chunksize=1) == [[1, "two"]] * 8


def test_workers_are_replaced_after_maxtasksperchild(method: str) -> None:
    with cw.Pool(2, maxtasksperchild=2, context=method) as pool:
        pids = pool.map(tasks.pid, range(12), chunksize=1)
        assert len(set(pids)) >= 6
        assert all(pids.count(pid) <= 2 for pid in pids)
        big = np.arange(50_000.0)
        for array in pool.map(tasks.doubled, [big] * 6, chunksize=1):
            assert (array == big * 2).all()
        pool.close()
        pool.join()


def test_workers_look_names_up_in_the_parents_namespace(method: str) -> None:
    with cw.connect(namespace="pool-test"):
        cw.put("x", [1.0, 2.0])
        with cw.Pool(1, context=method) as pool:
            assert pool.apply(tasks.sum_of_named, ("x",)) == 3.0


def test_bad_arguments_are_refused() -> None:
    for bad in (0, -1):
        with pytest.raises(ValueError):
            cw.Pool(bad)
        with pytest.raises(ValueError):
            cw.Pool(1, maxtasksperchild=bad)
    with pytest.raises(ValueError):
        cw.Pool(1, maxtasksperchild=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        cw.Pool(1, initializer=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        cw.Pool(1, context="by magic")
    with cw.Pool(1, context="fork") as pool:
        with pytest.raises(ValueError, match="Chunksize must be 1"):
            pool.imap(tasks.square, [1], 0)
        with pytest.raises(ValueError, match="Chunksize must be 1"):
            pool.map(tasks.square, [1], -3)
        with pytest.raises(TypeError):
            pool.map(tasks.square, 5)  # type: ignore[arg-type]
        with pytest.raises(NotImplementedError):
            pickle.dumps(pool)


def test_the_number_of_workers_is_that_of_the_cpus_left(tmp_path: Path) -> None:
    with cw.Pool() as pool:
        assert f"pool_size={usable_cpus()}" in repr(pool)
    affinity = len(os.sched_getaffinity(0))
    assert 1 <= usable_cpus() <= affinity
    (tmp_path / "self").mkdir()
    group = tmp_path / "fs" / "cgroup" / "outer" / "inner"
    group.mkdir(parents=True)
    (tmp_path / "self" / "cgroup").write_text("0::/outer/inner\n")
    assert usable_cpus(tmp_path, tmp_path) == affinity
    (group / "cpu.max").write_text("max 100000\n")
    (group.parent / "cpu.max").write_text("50000 100000\n")
    assert usable_cpus(tmp_path, tmp_path) == 1
    old = tmp_path / "fs" / "cgroup" / "cpu" / "box"
    old.mkdir(parents=True)
    (tmp_path / "self" / "cgroup").write_text("3:cpu,cpuacct:/box\n1:name=systemd:/\n")
    (old / "cpu.cfs_quota_us").write_text("-1")
    (old / "cpu.cfs_period_us").write_text("100000")
    assert usable_cpus(tmp_path, tmp_path) == affinity
    (old / "cpu.cfs_quota_us").write_text("100000")
    assert usable_cpus(tmp_path, tmp_path) == 1


def test_an_idle_pool_takes_no_cpu(forked: cw.Pool) -> None:
    pids = set(forked.map(tasks.pid, range(10), chunksize=1)) | {os.getpid()}

    def ticks() -> int:
        total = 0
        for pid in pids:
            words = stat_fields(pid)
            total += int(words[11]) + int(words[12])
        return total

    def at_rest() -> bool:
        before = ticks()
        time.sleep(2)
        return ticks() - before <= 1  # of 200 for each process

    time.sleep(0.2)
    assert eventually(at_rest, 20)  # what came before may still end on a machine that is busy
