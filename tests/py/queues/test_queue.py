"""Queues: multiprocessing's interface, many writers and readers, deaths, arrays."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import queue as standard
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import queue_tasks as tasks
from cli_support import suspend
from conftest import Script, eventually

import cableway as cw

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(params=METHODS)
def context(request: pytest.FixtureRequest) -> Any:
    """A start method."""
    return multiprocessing.get_context(request.param)


def started(context: Any, target: Callable[..., object], *arguments: Any) -> Any:
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def ended(*processes: Any) -> None:
    for process in processes:
        process.join(30)
        assert process.exitcode == 0


# ---- the interface, beside the standard library's


@pytest.mark.parametrize("make", [cw.Queue, multiprocessing.Queue])
def test_put_and_get_as_the_standard_library_does(make: Any) -> None:
    q = make(3)
    assert q.empty() and not q.full()
    q.put(1)
    q.put(2, True, None)
    q.put_nowait([3, {"x": None}])
    assert q.full() and q.qsize() == 3
    for refused in (
        lambda: q.put(4, False),
        lambda: q.put_nowait(4),
        lambda: q.put(4, timeout=0.01),
        lambda: q.put(4, True, -1),
    ):
        with pytest.raises(standard.Full):
            refused()
    assert [q.get(), q.get(True, 5), q.get(timeout=5)] == [1, 2, [3, {"x": None}]]
    for refused in (
        lambda: q.get(False),
        q.get_nowait,
        lambda: q.get(timeout=0.01),
        lambda: q.get(True, -1),
    ):
        with pytest.raises(standard.Empty):
            refused()
    q.close()
    q.join_thread()
    for refused in (lambda: q.put(1), q.get):
        with pytest.raises(ValueError, match="is closed"):
            refused()


def test_timeouts_are_kept() -> None:
    q = cw.Queue(1)
    begun = time.monotonic()
    with pytest.raises(standard.Empty):
        q.get(timeout=0.2)
    assert time.monotonic() - begun >= 0.2
    q.put(1)
    begun = time.monotonic()
    with pytest.raises(standard.Full):
        q.put(2, timeout=0.2)
    assert time.monotonic() - begun >= 0.2


def test_after_close_nothing_works() -> None:
    for q in (cw.Queue(), cw.JoinableQueue(), cw.SimpleQueue()):
        q.put(1)
        q.close()
        q.close()
        for call in (lambda q=q: q.put(1), q.get, q.empty, lambda q=q: pickle.dumps(q)):
            with pytest.raises(ValueError, match="is closed"):
                call()
        assert "closed" in repr(q)
    with pytest.raises(AssertionError):
        cw.Queue().join_thread()
    cw.Queue().cancel_join_thread()


def test_a_closed_copy_leaves_others_alone() -> None:
    q = cw.Queue()
    other = pickle.loads(pickle.dumps(q))
    q.put("x")
    q.close()
    assert other.get() == "x"


@pytest.mark.parametrize("make", [cw.JoinableQueue, multiprocessing.JoinableQueue])
def test_joinable(make: Any) -> None:
    q = make()
    q.join()
    with pytest.raises(ValueError, match="task_done"):
        q.task_done()
    for i in range(4):
        q.put(i)
    for _ in range(4):
        q.get()
        q.task_done()
    q.join()
    with pytest.raises(ValueError):
        q.task_done()


def test_join_waits(context: Any) -> None:
    q = cw.JoinableQueue()
    workers = [started(context, tasks.work, q, 0.01) for _ in range(2)]
    for i in range(20):
        q.put(i)
    q.join()
    assert q.empty()
    for worker in workers:
        worker.kill()


def test_simple_queue() -> None:
    q = cw.SimpleQueue()
    assert q.empty()
    q.put({1})
    assert not q.empty() and q.get() == {1}


def test_bad_arguments_are_refused() -> None:
    for bad in (0, -1):
        with pytest.raises(ValueError):
            cw.Queue(maxbytes=bad)
    with pytest.raises(TypeError):
        cw.Queue("3")  # type: ignore[arg-type]
    assert cw.Queue(-1).full() is False


def test_put_raises_what_pickling_raises_and_goes_on() -> None:
    q = cw.Queue()
    with pytest.raises((pickle.PicklingError, AttributeError)):
        q.put(lambda: None)
    with pytest.raises(TypeError):
        q.put([np.zeros(100_000), threading.Lock()])
    q.put(True)
    assert q.get() is True and q.empty()


# ---- what travels


@pytest.mark.parametrize(
    "item",
    [
        None, True, 7, -1.5, 1 << 100, "text", "x" * 100_000, b"", b"y" * 17_000, b"z" * 3_000_000,
        (1, [2, {"three": {4}}]), bytearray(100_000), ["x" * 10_000] * 10, list(range(50_000)),
    ],
)  # fmt: skip
def test_every_object_comes_back(item: Any) -> None:
    q = cw.Queue()
    q.put(item)
    found = q.get()
    assert found == item and type(found) is type(item)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("count", [10, 100_000])
def test_numpy_arrays_are_the_receivers_to_write(count: int, order: Any) -> None:
    q = cw.Queue()
    sent = np.asarray(np.random.rand(count, 3), order=order)
    q.put({"a": sent, "b": sent[::2]})
    found = q.get()
    assert (found["a"] == sent).all() and (found["b"] == sent[::2]).all()
    assert found["a"].flags.writeable and found["a"].flags.f_contiguous == sent.flags.f_contiguous
    found["a"][:] = 0
    assert (found["b"] == sent[::2]).all() and sent.any()


def test_memory_is_used_again_when_the_views_are_gone() -> None:
    q = cw.Queue()
    places = set()
    for i in range(20):
        q.put(np.full(1 << 18, i, "u1"))
        found = q.get()
        assert (found == i).all()
        places.add(found.__array_interface__["data"][0])
        del found
    assert len(places) <= 2
    kept = []
    for i in range(4):
        q.put(np.full(1 << 18, i, "u1"))
        kept.append(q.get())
    assert all((array == i).all() for i, array in enumerate(kept))


def test_numpy_arrays_go_to_other_processes(context: Any) -> None:
    source, target = cw.Queue(), cw.Queue()
    array = np.arange(100_000.0)
    process = started(context, tasks.double_in_place, source, target)
    source.put(array)
    assert target.get(timeout=30) == array.sum() * 2
    assert (target.get(timeout=30) == array * 2).all()
    ended(process)


def test_arrays_travel_by_handle(context: Any) -> None:
    q = cw.JoinableQueue()
    array = cw.zeros(1000)
    q.put(array)
    process = started(context, tasks.fill_array, q)
    q.join()
    assert array.tolist() == [7] * 1000
    ended(process)
    read = cw.get(cw.put("x", [1, 2]).name or "", readonly=True)
    q.put((read, read[1:]))
    whole, part = q.get()
    assert whole.readonly and part.tolist() == [2]
    assert whole.name == "x"


def test_an_array_lives_in_the_queue_alone() -> None:
    q = cw.Queue()
    for i in range(50):
        q.put(cw.full(20_000, i))
    gc.collect()
    assert [float(q.get()[0]) for _ in range(50)] == [float(i) for i in range(50)]


def test_a_queue_travels(context: Any) -> None:
    q, carrier = cw.Queue(2, maxbytes=1000), cw.SimpleQueue()
    carrier.put(q)
    process = started(context, tasks.send_queue, carrier)
    assert q.get(timeout=30) == "through a queue that came through a queue"
    ended(process)
    other = pickle.loads(pickle.dumps(q))
    other.put(1)
    q.put(2)
    assert other.full() and [q.get(), other.get()] == [1, 2]


# ---- bounds


def test_a_hundred_thousand_items_before_the_first_is_read() -> None:
    q = cw.Queue()
    for i in range(100_000):
        q.put(i)
    assert q.qsize() == 100_000
    assert all(q.get() == i for i in range(100_000))


def test_bounded_in_bytes() -> None:
    q = cw.Queue(maxbytes=1_000_000)
    q.put(np.zeros(800_000, "u1"))
    assert 800_000 < q.nbytes() < 801_000
    with pytest.raises(standard.Full):
        q.put(np.zeros(200_000, "u1"), timeout=0.05)
    q.put(b"x" * 1000)
    with pytest.raises(ValueError, match="never fit"):
        q.put(np.zeros(1_000_001, "u1"))
    q.put(cw.zeros(100_000, "u1"))
    with pytest.raises(standard.Full):
        q.put_nowait(cw.zeros(100_000, "u1"))
    q.get()
    q.put(cw.zeros(100_000, "u1"))
    assert [len(q.get()) for _ in range(3)] == [1000, 100_000, 100_000]
    assert q.nbytes() == 0


# ---- many ends


def test_many_writers_and_readers(context: Any) -> None:
    source, target = cw.Queue(50), cw.Queue()
    writers = [started(context, tasks.put_many, source, w, 500) for w in range(3)]
    readers = [started(context, tasks.get_until_none, source, target) for _ in range(3)]
    ended(*writers)
    for _ in readers:
        source.put(None)
    ended(*readers)
    found = [item for _ in range(1503) if (item := target.get(timeout=10)) is not None]
    assert sorted(found) == [(w, i) for w in range(3) for i in range(500)]
    assert target.empty() and source.empty()


def test_threads_of_one_process() -> None:
    source, target = cw.Queue(10), cw.Queue()
    threads = [threading.Thread(target=tasks.put_many, args=(source, w, 300)) for w in range(3)]
    readers = [
        threading.Thread(target=tasks.get_until_none, args=(source, target)) for _ in range(3)
    ]
    for thread in threads + readers:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in readers:
        source.put(None)
    for thread in readers:
        thread.join()
    found = [item for _ in range(903) if (item := target.get(timeout=10)) is not None]
    assert sorted(found) == [(w, i) for w in range(3) for i in range(300)]


def test_each_writers_items_come_in_its_order(context: Any) -> None:
    q = cw.Queue(20)
    writers = [started(context, tasks.put_many, q, w, 300) for w in range(2)]
    found = [q.get(timeout=30) for _ in range(600)]
    ended(*writers)
    for w in range(2):
        assert [i for writer, i in found if writer == w] == list(range(300))


# ---- deaths


def test_what_a_killed_writer_had_put_is_there(context: Any) -> None:
    q = cw.Queue()
    big = np.arange(50_000.0)
    items = [1, "two", big, cw.full(50_000, 3.0), [big, big]]
    process = started(context, tasks.put_and_die, q, items)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert q.get(timeout=10) == 1 and q.get(timeout=10) == "two"
    assert (q.get(timeout=10) == big).all()
    assert float(q.get(timeout=10)[9]) == 3.0
    assert all((array == big).all() for array in q.get(timeout=10))
    with pytest.raises(standard.Empty):
        q.get_nowait()


def test_readers_and_writers_killed_at_random_lose_only_their_own() -> None:
    context = multiprocessing.get_context("fork")
    rounds = 200 if os.environ.get("CABLEWAY_SOAK") else 12
    q, out = cw.Queue(30), cw.Queue()
    writers = {w: started(context, tasks.storm_writer, q, w) for w in range(3)}
    readers = [started(context, tasks.storm_reader, q, out) for _ in range(3)]
    seen: list[tuple[int, int]] = []

    def drain(most: int = 200) -> None:  # the readers may be quicker than we are
        for _ in range(most):
            try:
                seen.append(out.get_nowait())
            except standard.Empty:
                return

    for killed in range(rounds):
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            drain()
            time.sleep(0.005)
        if len(writers) and killed % 2:
            w = next(iter(writers))
            writers.pop(w).kill()
            writers[max([*writers, w]) + 1 + killed] = started(
                context, tasks.storm_writer, q, max([*writers, w]) + 1 + killed
            )
        else:
            readers.pop(0).kill()
            readers.append(started(context, tasks.storm_reader, q, out))
    before = len(seen)
    assert eventually(lambda: drain() or len(seen) > before + 100, 30), "it goes on"  # type: ignore[func-returns-value]
    for process in writers.values():
        process.kill()
    assert eventually(lambda: drain() or q.empty())  # type: ignore[func-returns-value]
    time.sleep(0.2)
    for process in readers:
        process.kill()
    drain(1 << 30)
    assert len(set(seen)) == len(seen), "nothing comes twice"
    missing = 0
    for writer in {w for w, _ in seen}:
        numbers = {i for w, i in seen if w == writer}
        missing += max(numbers) + 1 - len(numbers)
    assert missing <= 2 * rounds, f"{missing} missing after {rounds} deaths"


def test_a_stopped_reader_holds_up_nobody(context: Any) -> None:
    q, out = cw.Queue(), cw.Queue()
    process = started(context, tasks.storm_reader, q, out)
    q.put((0, 0, b""))
    assert out.get(timeout=30) == (0, 0)
    time.sleep(0.1)
    suspend(process.pid)  # asleep in get()
    for i in range(100):
        q.put(i)
    assert [q.get(timeout=5) for _ in range(100)] == list(range(100))
    process.kill()


# ---- fork, signals, ends


def test_a_queue_works_in_a_forked_child() -> None:
    context = multiprocessing.get_context("fork")
    q, out = cw.Queue(), cw.Queue()
    q.put("before")
    assert q.get() == "before"
    process = started(context, tasks.echo, q, out)
    q.put(np.ones(100_000))
    assert out.get(timeout=30).sum() == 100_000
    ended(process)


def test_ctrl_c_ends_a_wait(script: Script) -> None:
    done = script(
        """
        import os, signal, threading, time
        import cableway as cw

        q = cw.Queue(1)
        make_room = lambda *_: (print("handled"), threading.Thread(target=q.get).start())
        signal.signal(signal.SIGUSR1, make_room)

        def interrupt(number):
            threading.Timer(0.2, os.kill, (os.getpid(), number)).start()

        try:
            interrupt(signal.SIGINT)
            q.get()
        except KeyboardInterrupt:
            print("get")
        q.put(1)
        try:
            interrupt(signal.SIGINT)
            q.put(2)
        except KeyboardInterrupt:
            print("put")
        interrupt(signal.SIGUSR1)
        q.put(3, timeout=50)
        print(q.get())
        """
    )
    assert done.stdout.split() == ["get", "put", "handled", "3"]


def test_an_idle_reader_sleeps() -> None:
    context = multiprocessing.get_context("fork")
    q, out = cw.Queue(), cw.Queue()
    process = started(context, tasks.echo, q, out)

    def switches() -> int:
        with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
            return sum(int(line.split()[1]) for line in status if "_ctxt_switches" in line)

    def sleeps() -> bool:
        before = switches()
        time.sleep(2)
        return switches() <= before + 5  # each half second it looks for signals

    assert eventually(sleeps)  # once it has begun
    q.put(1)
    assert out.get(timeout=10) == 1
    ended(process)


def test_exit_with_items_in_it(script: Script) -> None:
    done = script(
        """
        import cableway as cw, numpy as np
        q = cw.Queue()
        q.put(np.zeros(100_000))
        q.put(q)
        q.get()
        """
    )
    assert done.stderr == ""
