"""Fork: the child connects anew at first use, and arrays that it inherited work."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

import numpy as np
import pytest

import cableway as cw
from cableway import client

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")


def in_child(work: Callable[[], object]) -> int:
    """Runs work in a forked child and returns its exit status: 0 if nothing was raised."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(30)
            work()
            status = 0
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_inherited_arrays_are_the_same_memory():
    w = cw.put("w", np.zeros(10))
    view = w.numpy()

    def work() -> None:
        w[0] = 1
        view[1] = 2
        w[2:][0] = 3
        assert w.name == "w" and w.shape == (10,)

    assert in_child(work) == 0
    assert w.tolist()[:3] == [1, 2, 3]


def test_the_child_connects_anew():
    cw.put("w", [1, 2, 3])
    before = client.current()

    def work() -> None:
        assert cw.get("w").tolist() == [1, 2, 3]
        assert client.current() is not before
        cw.put("from child", np.arange(5))
        assert "w" in cw.names()

    assert in_child(work) == 0
    assert client.current() is before
    assert cw.get("from child").tolist() == [0, 1, 2, 3, 4]


def test_inherited_arrays_can_be_put_sliced_pickled_and_closed():
    w = cw.asarray(np.arange(10))
    never = cw.asarray([7])

    def work() -> None:
        cw.put("a", w)
        cw.put("b", w[::-1], copy=False)
        assert pickle.loads(pickle.dumps(w[2:4])).tolist() == [2, 3]
        cw.put("c", w.numpy()[1:], copy=False)
        w.close()
        gc.collect()
        assert never.tolist() == [7]

    assert in_child(work) == 0
    w[9] = 90
    assert (
        cw.get("b").numpy()[0] == 90
        and cw.get("a").numpy()[9] == 90
        and cw.get("c").numpy()[8] == 90
    )


def test_what_the_parent_closes_stays_with_the_child():
    w = cw.asarray(np.arange(1000))
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(30)
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            assert w.numpy().sum() == 499500
            found = pickle.loads(pickle.dumps(w))
            assert found.numpy().sum() == 499500
            status = 0
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os._exit(status)
    os.read(ready[0], 1)
    w.close()
    del w
    gc.collect()
    for _ in range(50):
        cw.full(1000, -1)
    time.sleep(0.05)
    os.write(go[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for fd in (*ready, *go):
        os.close(fd)


def test_the_childs_end_takes_nothing_from_the_parent():
    w = cw.put("w", np.arange(100))
    for _ in range(5):
        assert in_child(lambda: (cw.get("w"), w.close(), gc.collect())) == 0
    cw.remove("w")
    for _ in range(20):
        cw.full(100, -1)
    assert w.numpy().sum() == 4950


def test_grandchildren():
    w = cw.put("w", np.zeros(3))

    def grandchild() -> None:
        w[2] = 3
        assert cw.get("w").tolist() == [1, 2, 3]
        cw.put("deep", w)

    def work() -> None:
        w[0] = 1
        cw.put("mid", w)
        w[1] = 2
        assert in_child(grandchild) == 0

    assert in_child(work) == 0
    assert cw.get("deep").tolist() == [1, 2, 3]


def test_namespace_and_address_follow_into_the_child():
    with cw.connect(namespace="forked"):
        cw.put("n", 5)
        assert in_child(lambda: int(cw.get("n"))) == 0
        cw.remove("n")


def test_fork_while_other_threads_work():
    cw.put("w", np.arange(10))
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with cw.get("w"):
                cw.put(f"t{threading.get_ident()}", np.zeros(10))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert in_child(lambda: cw.get("w").tolist()) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_daemon_that_forks_before_anything_is_connected(script):
    script("""
        import os, cableway as cw
        if os.fork() == 0:
            cw.put("late", [1, 2])
            os._exit(0)
        os.wait()
        assert cw.get("late").tolist() == [1, 2]
    """)


def test_the_child_may_end_by_itself(script):
    done = script("""
        import os, sys, cableway as cw
        w = cw.put("w", [1, 2, 3])
        view = w.numpy()
        if os.fork() == 0:
            x = cw.get("w")
            sys.exit(0)
        os.wait()
        w2 = cw.get("w")
        print(view.sum())
    """)
    assert done.stdout == "6\n" and done.stderr == ""
