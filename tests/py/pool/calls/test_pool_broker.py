"""A Pool and the broker: what needs none, and what goes on when it is lost."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pool_tasks as tasks
import pytest
from conftest import Script, broker_pid, disconnect, eventually, running_broker, stop_broker
from pool_support import LONG, workers_of

import cableway as cw

BIG = np.arange(40_000.0)


@pytest.fixture
def no_broker(broker_folder: Path) -> Iterator[None]:
    """None runs, and this process knows none."""
    disconnect()
    stop_broker(broker_folder)
    yield
    disconnect()


def kill_broker(folder: Path) -> None:
    os.kill(running_broker(folder), signal.SIGKILL)
    assert eventually(lambda: broker_pid(folder) == 0)


def small_tasks_work(pool: cw.Pool) -> bool:
    return pool.map_async(tasks.square, range(6), chunksize=1).get(LONG) == [0, 1, 4, 9, 16, 25]


def large_tasks_work(pool: cw.Pool) -> bool:
    """False: they raise what they shall raise while one side does not have the new broker."""
    try:
        cw.put("pool/alive", BIG)
        results = pool.map_async(tasks.doubled, [BIG] * 4).get(LONG)
    except (cw.BrokerLost, cw.Stale) as error:
        print(error)
        return False
    return all((array == BIG * 2).all() for array in results)


@pytest.mark.usefixtures("no_broker")
def test_small_tasks_need_no_broker(method: str, broker_folder: Path) -> None:
    with cw.Pool(2, context=method) as pool:
        assert small_tasks_work(pool)
        assert broker_pid(broker_folder) == 0
        assert large_tasks_work(pool)  # which start one
        assert broker_pid(broker_folder) != 0


def test_the_pool_outlives_its_broker(method: str, broker_folder: Path) -> None:
    with cw.Pool(2, context=method) as pool:
        assert large_tasks_work(pool)
        kill_broker(broker_folder)
        assert small_tasks_work(pool)
        assert eventually(lambda: large_tasks_work(pool))


def test_workers_that_come_after_the_broker_was_lost(method: str, broker_folder: Path) -> None:
    with cw.Pool(2, context=method) as pool:
        assert large_tasks_work(pool)
        before = workers_of(pool, 2)
        kill_broker(broker_folder)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(cw.WorkerDied):
            pool.apply_async(tasks.killed, (None,)).get(LONG)
        assert small_tasks_work(pool)
        assert before.isdisjoint(workers_of(pool, 2))
        assert broker_pid(broker_folder) == 0
        assert eventually(lambda: large_tasks_work(pool))
        assert broker_pid(broker_folder) != 0


def test_workers_connect_as_their_parent(method: str) -> None:
    with cw.connect(namespace="pool-apart"):
        cw.put("here", BIG)
        with cw.Pool(1, context=method) as pool:
            assert pool.apply_async(cw.names).get(LONG) == ["here"]
    with cw.Pool(1, context=method) as pool:
        assert pool.apply_async(cw.names).get(LONG) == []


def test_the_memory_for_tasks_goes_with_the_pool(method: str) -> None:
    def mapped() -> int:
        gc.collect()
        descriptors = 0
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                descriptors += "cw-pool " in os.readlink(f"/proc/self/fd/{name}")
        return descriptors + Path("/proc/self/maps").read_text().count("memfd:cw-pool ")

    def use() -> int:
        with cw.Pool(2, context=method) as pool:
            assert small_tasks_work(pool)
            return mapped()

    before = mapped()
    assert use() > before
    assert eventually(lambda: mapped() <= before)


def test_too_little_memory_for_tasks_is_told(script: Script) -> None:
    done = script(
        """
        import resource
        import cableway as cw
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            cw.Pool(2)
        except cw.LimitExceeded as error:
            print(error)
        """
    )
    assert "RLIMIT_FSIZE" in done.stdout
