"""Queues whose broker dies: what is small goes on between all who have the queue, and who waits waits on.

Runs in `make test-more`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue as standard
import signal
from typing import Any

import numpy as np
import pytest
import queue_tasks as tasks
from conftest import broker_pid, disconnect, eventually, running_broker
from processes import stat_fields

import cableway as cw

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")


def started(method: str, target: Any, *arguments: Any) -> Any:
    process = multiprocessing.get_context(method).Process(
        target=target, args=arguments, daemon=True
    )
    process.start()
    return process


def asleep(process: Any) -> bool:
    return bool(stat_fields(process.pid)[0] == "S")


def test_who_waits_when_the_broker_dies_gets_the_next_item_that_is_put(
    method: str, broker_folder: Any
) -> None:
    q, full, out = cw.Queue(), cw.Queue(1), cw.Queue()
    full.put("first")
    reader = started(method, tasks.say_and_get, q, out)
    assert out.get(timeout=30) == "here"
    writer = started(method, tasks.say_and_put, full, out, "second")
    assert out.get(timeout=30) == "here"
    assert eventually(lambda: asleep(reader) and asleep(writer))
    os.kill(running_broker(broker_folder), signal.SIGKILL)
    assert eventually(lambda: broker_pid(broker_folder) == 0)
    assert reader.exitcode is None and writer.exitcode is None
    q.put("item")  # a reader need not begin anew, and loses nothing
    assert out.get(timeout=30) == "item"
    assert full.get(timeout=30) == "first"
    assert [out.get(timeout=30), full.get(timeout=30)] == ["put", "second"]
    for process in (reader, writer):
        process.join(30)
        assert process.exitcode == 0
    disconnect()


def knows_of_it() -> bool:
    """Whether this process has learned of its broker's death; it looks four times a second."""
    try:
        cw.names()
    except cw.BrokerLost:
        return True
    return False


def test_the_queue_outlives_its_maker_and_its_broker(broker_folder: Any) -> None:
    q = cw.Queue()
    q.put("small")
    os.kill(running_broker(broker_folder), signal.SIGKILL)
    assert eventually(lambda: broker_pid(broker_folder) == 0)
    q.put("also small")
    assert [q.get(), q.get()] == ["small", "also small"]
    with pytest.raises(standard.Empty):
        q.get(timeout=0.05)
    # Its lock is free a moment before its sockets are closed: until then no call hears of its death.
    assert eventually(lambda: hears_of_the_loss(q))
    with pytest.raises(cw.BrokerLost, match="large parts cannot be put: .* Make a new queue"):
        q.put(np.zeros(1 << 20))
    assert q.empty()
    q.put("small still goes")
    assert q.get() == "small still goes"
    disconnect()  # what comes next meets a new broker, and not this one's last quarter of a second


def hears_of_the_loss(q: Any) -> bool:
    """Whether this process has met the next broker, which does not know the queue."""
    with contextlib.suppress(cw.BrokerLost):
        cw.names()
    with pytest.raises(cw.BrokerLost) as told:
        q.put(np.zeros(1 << 20))
    return "large parts cannot be put" in str(told.value)


def kill_broker(folder: Any) -> None:
    os.kill(running_broker(folder), signal.SIGKILL)
    assert eventually(lambda: broker_pid(folder) == 0)


def test_what_one_process_has_put_it_takes_however_far_the_queue_grew(broker_folder: Any) -> None:
    """Megabytes of small items lie in many pieces of memory: it has them all open."""
    q = cw.Queue()
    for i in range(20_000):
        q.put((i, "x" * 100))
    kill_broker(broker_folder)
    assert [q.get() for _ in range(20_000)] == [(i, "x" * 100) for i in range(20_000)]
    assert q.empty()
    disconnect()


def test_a_reader_that_has_taken_one_item_since_the_queue_grew_takes_them_all(
    method: str, broker_folder: Any
) -> None:
    q, wrote = cw.Queue(), cw.Queue()
    writer = started(method, tasks.put_long, q, wrote, 5000)
    assert wrote.get(timeout=30) == 5000
    writer.join(30)  # nobody else has the queue
    assert q.get() == (0, "x" * 100)
    kill_broker(broker_folder)
    assert [q.get() for _ in range(1, 5000)] == [(i, "x" * 100) for i in range(1, 5000)]
    disconnect()


def test_what_a_queue_grew_into_and_its_reader_had_not_opened_is_told_as_lost(
    method: str, broker_folder: Any
) -> None:
    """The error is another than that of one lost item: who goes on after that would go on for ever."""
    q, wrote = cw.Queue(), cw.Queue()
    q.put("first")
    writer = started(method, tasks.put_long, q, wrote, 5000)
    assert wrote.get(timeout=30) == 5000
    writer.join(30)
    kill_broker(broker_folder)
    got = []
    with pytest.raises(cw.Stale, match="memory that the queue grew into"):
        while True:
            got.append(q.get(timeout=30))
    assert 0 < len(got) < 5000  # those in the memory that it had
    with pytest.raises(cw.Stale, match="make a new queue"):
        q.get(timeout=30)
    with pytest.raises(cw.BrokerLost, match="Make a new queue"):
        q.put("small")
    disconnect()


@pytest.mark.parametrize("kind", [cw.Queue, cw.JoinableQueue, cw.SimpleQueue])
def test_a_queue_that_was_never_used_outlives_its_broker(kind: Any, broker_folder: Any) -> None:
    q = kind()
    os.kill(running_broker(broker_folder), signal.SIGKILL)
    assert eventually(lambda: broker_pid(broker_folder) == 0)
    assert eventually(knows_of_it)
    q.put("small")
    assert q.get() == "small" and q.empty()
    disconnect()
