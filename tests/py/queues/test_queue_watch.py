"""A queue's descriptors: readable when and only when an item waits, whoever puts and takes, whoever dies."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import queue as standard
import random
import select
import signal
import threading
import time
from multiprocessing import connection
from typing import Any

import pytest
from conftest import Script, eventually

import cableway as cw

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
LONG = 60
KINDS = [cw.Queue, cw.JoinableQueue, cw.SimpleQueue]


def readable(q: Any) -> bool:
    return bool(select.select([q._reader], [], [], 0)[0])


def writable(q: Any) -> bool:
    return bool(select.select([], [q._writer], [], 0)[1])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def forked(function: Any, *args: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=function, args=args)
    process.start()
    return process


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_readable_when_and_only_when_an_item_waits(kind: Any) -> None:
    q, held = kind(), 0
    chosen = random.Random(os.environ.get("CABLEWAY_SEED", "14"))
    for _ in range(500):
        assert readable(q) == (held > 0) == q._reader.poll() == (not q.empty())
        if held and chosen.random() < 0.5:
            assert q.get() == "x"
            held -= 1
        else:
            q.put("x")
            held += 1


def test_what_another_process_puts_and_takes_shows() -> None:
    q, go, gone = cw.Queue(), cw.Queue(), cw.Queue()

    def other() -> None:
        for n in range(200):
            q.put(n)
            assert go.get() == n
            if n % 2:
                assert q.get() == n
                gone.put(n)

    process = forked(other)
    for n in range(200):
        assert connection.wait([q._reader], LONG) == [q._reader]
        if n % 2 == 0:
            assert q.get_nowait() == n
            assert not readable(q)
        go.put(n)
        if n % 2:
            assert gone.get() == n
            assert eventually(lambda: not readable(q) or not q.empty())
    process.join()
    assert process.exitcode == 0


def test_who_is_killed_leaves_it_right() -> None:
    q: Any = cw.Queue()

    def put_and_take() -> None:
        while True:
            for n in range(random.randrange(4)):
                q.put(n)
            for _ in range(random.randrange(4)):
                try:
                    q.get_nowait()
                except Exception:
                    break

    assert not readable(q)
    for _ in range(20):
        processes = [forked(put_and_take) for _ in range(2)]
        for process in processes:
            time.sleep(random.random() / 20)
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        assert eventually(lambda: readable(q) == (not q.empty()))
        while readable(q):
            q.get_nowait()
        assert q.empty()
        q.put(1)
        assert readable(q) and q.get() == 1 and not readable(q)


def test_a_full_queue_is_not_writable() -> None:
    q: Any = cw.Queue(2)
    for _ in range(3):
        assert writable(q)
        q.put(1)
        assert writable(q)
        q.put(2)
        assert not writable(q) and readable(q)
        process = forked(q.get)
        assert select.select([], [q._writer], [], LONG)[1]
        process.join()
        assert q.get() == 2
    unbounded, threads = cw.Queue(), threading.active_count()
    assert writable(unbounded) and threading.active_count() == threads  # it never changes


def test_it_costs_nothing_until_it_is_asked_for_and_nothing_when_the_queue_is_gone() -> None:
    gc.collect()
    q: Any = cw.Queue()
    q.put(1)
    q.get()
    before = descriptors(), threading.active_count()
    assert q._reader is not None and before == (descriptors(), threading.active_count())
    q._reader.fileno()
    q._writer.fileno()
    assert (descriptors(), threading.active_count()) == (before[0] + 2, before[1] + 1)
    assert q._reader.fileno() == q._reader.fileno() != q._writer.fileno()
    reader = q._reader
    q.close()
    assert reader.closed and eventually(lambda: (descriptors(), threading.active_count()) == before)
    with pytest.raises(OSError, match="handle is closed"):
        reader.fileno()
    dropped: Any = cw.Queue()
    dropped._reader.fileno()
    del dropped
    assert eventually(lambda: (descriptors(), threading.active_count()) == before)


def test_a_child_has_its_own() -> None:
    q: Any = cw.Queue()
    reader = q._reader
    mine = reader.fileno()

    def child() -> None:
        assert not readable(q)
        q.put(1)
        assert readable(q) and q._reader == reader and reader.poll()
        assert q.get() == 1 and not readable(q)

    process = forked(child)
    process.join()
    assert process.exitcode == 0
    assert eventually(lambda: not readable(q)) and reader.fileno() == mine
    q.put(2)
    assert readable(q)


def test_an_event_loop_gets_every_item() -> None:
    q: Any = cw.Queue()
    count, found = 300, []

    def put_all() -> None:
        for n in range(count):
            q.put(n)

    async def main() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def take() -> None:
            found.append(q.get_nowait())
            if len(found) == count:
                done.set()

        loop.add_reader(q._reader.fileno(), take)
        await asyncio.wait_for(done.wait(), LONG)
        loop.remove_reader(q._reader.fileno())

    process = forked(put_all)
    asyncio.run(main())
    process.join()
    assert found == list(range(count))


def test_a_handler_that_takes_items_at_any_moment_leaves_it_right() -> None:
    q: Any = cw.Queue()
    taken: list[int] = []
    came = [0]

    def take(_number: int, _frame: Any) -> None:
        came[0] += 1
        with contextlib.suppress(standard.Empty):
            taken.append(q.get_nowait())

    before = signal.signal(signal.SIGALRM, take)
    try:
        for n in range(3000):
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 40e-6))
            q.put(n)
            while came[0] == n:
                time.sleep(0)
            assert readable(q) == (not q.empty())
            with contextlib.suppress(standard.Empty):
                taken.append(q.get_nowait())
            assert q.empty() and not readable(q)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert taken == list(range(3000))


def test_the_interpreter_ends_while_it_is_watched(script: Script) -> None:
    done = script("""
        import cableway as cw
        q = cw.Queue(1)
        q._reader.fileno(), q._writer.fileno()
        q.put(1)
        print("end")
    """)
    assert (done.stdout, done.stderr) == ("end\n", "")


# ---- ours for a whole program


@pytest.mark.parametrize("where", ["multiprocessing", "multiprocessing.queues"])
def test_ours_in_place_of_multiprocessings_leaves_its_thread_pool_alone(
    script: Script, where: str
) -> None:
    done = script(f"""
        import multiprocessing, multiprocessing.pool, multiprocessing.queues
        import {where} as place
        import cableway as cw

        multiprocessing.Pool = cw.Pool
        place.Queue, place.SimpleQueue, place.JoinableQueue = cw.Queue, cw.SimpleQueue, cw.JoinableQueue

        def square(x):
            return x * x

        if __name__ == "__main__":
            from multiprocessing.pool import ThreadPool

            for _ in range(3):
                with ThreadPool(3) as threads, multiprocessing.Pool(2) as pool:
                    again = threads.map_async(square, range(100), 1)
                    assert pool.map(square, range(100)) == again.get(60) == [x * x for x in range(100)]
                    assert threads.map(lambda n: pool.apply(square, (n,)), range(20)) == [n * n for n in range(20)]
                    threads.close()
                    threads.join()
            q = multiprocessing.Queue()
            process = multiprocessing.Process(target=q.put, args=(1,))
            process.start()
            assert q.get() == 1
            process.join()
            print(type(q).__module__)
    """)
    assert (done.stdout, done.stderr) == ("cableway.queue\n", "")


def test_no_descriptor_is_one_of_standard_output_where_that_is_closed(script: Script) -> None:
    """Whatever is printed would make the queue readable."""
    done = script("""
        import os, sys
        out = os.dup2(1, 50)
        for fd in range(3):
            os.close(fd)
        import cableway as cw
        q = cw.Queue(maxsize=3)
        found = [q._reader.fileno(), q._writer.fileno()]
        left = []
        for fd in range(3):
            try:
                left.append(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                pass
        left = [link for link in left if "/libffi." not in link]  # it may keep itself open
        os.write(out, repr((min(found) > 2, left)).encode())
        os._exit(0)
    """)
    assert done.stdout == "(True, [])"
