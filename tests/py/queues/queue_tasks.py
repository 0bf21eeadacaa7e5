"""Functions for the processes of the queues' tests: spawn and forkserver find them by this module's name."""

from __future__ import annotations

import logging
import logging.handlers
import os
import queue
import signal
import time
from typing import Any

import cableway as cw


def put_many(q: Any, writer: int, count: int) -> None:
    for i in range(count):
        q.put((writer, i))


def put_long(q: Any, wrote: Any, count: int) -> None:
    """So many items of which the queue grows."""
    for i in range(count):
        q.put((i, "x" * 100))
    wrote.put(count)


def get_until_none(source: Any, target: Any) -> None:
    while (item := source.get()) is not None:
        target.put(item)
    target.put(None)


def echo(source: Any, target: Any) -> None:
    target.put(source.get())


def say_and_get(source: Any, target: Any) -> None:
    source.empty()  # it is open: from here on no broker is asked
    target.put("here")
    target.put(source.get())


def say_and_put(target: Any, said: Any, item: Any) -> None:
    target.empty()  # it is open: from here on no broker is asked
    said.put("here")
    target.put(item)
    said.put("put")


def put_and_die(q: Any, items: list[Any]) -> None:
    for item in items:
        q.put(item)
    os.kill(os.getpid(), signal.SIGKILL)


def double_in_place(source: Any, target: Any) -> None:
    array = source.get()
    array *= 2
    target.put(array.sum())
    target.put(array)


def storm_writer(q: Any, writer: int) -> None:
    i = 0
    while True:
        q.put((writer, i, bytes(i % 500)))
        i += 1


def storm_reader(q: Any, out: Any) -> None:
    while True:
        writer, i, payload = q.get()
        assert len(payload) == i % 500
        out.put((writer, i))


def work(q: Any, seconds: float) -> None:
    while True:
        q.get()
        time.sleep(seconds)
        q.task_done()


def fill_array(q: Any) -> None:
    array = q.get()
    assert isinstance(array, cw.Array)
    array[...] = 7
    q.task_done()


def send_queue(source: Any) -> None:
    q = source.get()
    q.put("through a queue that came through a queue")


def spin() -> None:
    while True:
        pass


def log(q: Any, process: int, count: int) -> None:
    logger = logging.Logger(f"of {process}")
    logger.addHandler(logging.handlers.QueueHandler(q))
    for i in range(count):
        logger.info("%s %s", process, i)


def drain_at_once(q: Any, out: Any) -> None:
    found = []
    while True:
        try:
            found.append(q.get_nowait())
        except queue.Empty:
            break
    out.put(found)
