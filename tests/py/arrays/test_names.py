"""Names: put, get, wait, remove, names, from one process and from several."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from waiting import eventually

import cableway as cw
from cableway import client


def test_put_and_get():
    x = np.arange(12.0).reshape(3, 4)
    w = cw.put("weights", x)
    assert w.name == "weights" and np.array_equal(w, x)
    found = cw.get("weights")
    assert found.name == "weights" and np.array_equal(found, x)
    found[0, 0] = 42
    assert w.numpy()[0, 0] == 42
    assert x[0, 0] == 0


def test_another_process_sees_the_same_memory(script):
    w = cw.put("shared", np.zeros(4, "i8"))
    done = script("""
        import cableway as cw
        w = cw.get("shared")
        w[1] = 17
        print(w)
        cw.put("back", w.numpy() * 2)
    """)
    assert "shared" in done.stdout
    assert w.tolist() == [0, 17, 0, 0]
    assert cw.get("back").tolist() == [0, 34, 0, 0]


def test_a_name_outlives_its_maker(script):
    script("import cableway as cw, numpy as np; cw.put('left', np.arange(1000))")
    assert cw.get("left").numpy().sum() == 499500


@pytest.mark.parametrize(
    "dtype",
    [
        "?", "i1", ">i4", "u8", "f2", "f4", "f8", "g", "c8", "c16", "S5", "U7", "V3", "M8[ns]", "m8[D]", "M8[25s]",
        [("x", "i4"), ("y", ">f8", (2, 3))],
        [("deep", [("a", "u1"), ("b", "S4")], (2,)), ("täg", "?")],
        {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [4, 0], "itemsize": 16},
        {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2]},
        {"names": ["a"], "formats": ["i4"], "titles": ["the a"]},
        np.dtype([("a", "u1"), ("b", "f8")], align=True),
    ],
)  # fmt: skip
def test_every_dtype_without_objects(dtype):
    dtype = np.dtype(dtype)
    x = np.frombuffer(np.random.default_rng(1).bytes(dtype.itemsize * 6), "u1").view(
        f"V{dtype.itemsize}"
    )
    x = (
        x.astype(f"V{dtype.itemsize}").view(dtype).reshape(2, 3)
        if dtype.kind not in "?"
        else np.ones((2, 3), "?")
    )
    cw.put("d", x)
    found = cw.get("d")
    assert found.dtype == dtype and found.dtype.isalignedstruct == dtype.isalignedstruct
    assert found.numpy().tobytes() == x.tobytes()


def test_replace_at_once_and_whole():
    old = cw.put("x", [1, 2, 3])
    new = cw.put("x", [[4.0]])
    assert old.tolist() == [1, 2, 3] and new.tolist() == [[4.0]]
    assert cw.get("x").shape == (1, 1)
    with pytest.raises(cw.NameTaken, match="x"):
        cw.put("x", [5], replace=False)
    assert cw.get("x").shape == (1, 1)
    cw.remove("x")
    cw.put("x", [5], replace=False)


def test_readers_see_the_old_or_the_new_one_while_it_is_replaced():
    cw.put("x", np.zeros(100))
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not stop.is_set():
            with cw.get("x") as x:
                values = x.numpy().copy()
            if not (values == values[0]).all():
                wrong.append(values)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(300):
        cw.put("x", np.full(100, i))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_put_of_ours_does_not_copy():
    w = cw.empty((4, 5), "f4")
    w[...] = 1
    named = cw.put("x", w)
    assert w.name is None and named.name == "x"
    w[0, 0] = 9
    assert cw.get("x").numpy()[0, 0] == 9
    cw.put("view", w.numpy()[1:, ::2])
    w[1, 2] = 8
    view = cw.get("view")
    assert view.shape == (3, 3) and view.strides == (20, 8) and view.numpy()[0, 1] == 8
    cw.put("copy", w, copy=True)
    w[0, 0] = 10
    assert cw.get("copy").numpy()[0, 0] == 9
    assert cw.put("asview", np.asarray(w), copy=False).numpy()[0, 0] == 10
    with pytest.raises(ValueError, match="copy=False"):
        cw.put("foreign", np.zeros(3), copy=False)


@pytest.mark.parametrize(
    "key",
    [
        np.s_[::-1],
        np.s_[:, ::-2],
        np.s_[2, :],
        np.s_[::-1, ::-1, 1:],
        np.s_[1, 2, 3, ...],
        np.s_[3:1],
    ],
)
def test_parts_can_be_named(key):
    x = np.arange(60).reshape(3, 4, 5)
    w = cw.asarray(x)
    cw.put("part", w[key])
    found = cw.get("part")
    assert np.array_equal(found, x[key])
    assert found.size == 0 or found.strides == w[key].strides
    assert np.array_equal(found[...].numpy(), x[key])
    cw.put("again", found)
    assert np.array_equal(cw.get("again"), x[key])
    if found.size:
        w[key] = -5
        assert (found.numpy() == -5).all()


def test_put_takes_anything_like_an_array():
    for value in (
        5,
        2.5,
        True,
        [1, 2],
        (3.0, 4),
        [[1], [2]],
        b"bytes",
        "text",
        range(4),
        np.float32(3),
    ):
        assert np.array_equal(cw.put("v", value), np.asarray(value))
    assert cw.put("v", bytearray(b"abc")).shape == np.asarray(bytearray(b"abc")).shape


def test_names():
    assert cw.names() == []
    for name in ("b", "a/2", "a/1", "ä"):
        cw.put(name, 0)
    assert cw.names() == ["a/1", "a/2", "b", "ä"]
    assert cw.names("a/") == ["a/1", "a/2"]
    assert cw.names("zzz") == []
    cw.remove("b")
    assert "b" not in cw.names()


def test_many_names():
    for i in range(3000):
        cw.put(f"n/{i:05}", i)
    assert len(cw.names("n/")) == 3000
    assert int(cw.get("n/01234")) == 1234
    for i in range(3000):
        cw.remove(f"n/{i:05}")
    assert cw.names("n/") == []


def test_missing():
    with pytest.raises(cw.NameNotFound, match="nothing"):
        cw.get("nothing")
    with pytest.raises(KeyError):
        cw.remove("nothing")


def test_get_with_patience():
    began = time.monotonic()
    with pytest.raises(cw.Timeout, match="late"):
        cw.get("late", timeout=0.2)
    with pytest.raises(TimeoutError):
        cw.wait("late", timeout=0.1)
    with pytest.raises(cw.Timeout):
        cw.wait("late", timeout=0)
    assert time.monotonic() - began > 0.25
    timer = threading.Timer(0.2, lambda: cw.put("late", [1, 2]))
    timer.start()
    assert cw.get("late", timeout=None).tolist() == [1, 2]
    timer.join()
    cw.wait("late", timeout=0)
    cw.wait("late")
    assert cw.get("late", timeout=5).tolist() == [1, 2]


def test_waiting_across_processes(script):
    timer = threading.Timer(0.5, lambda: cw.put("go", 123))
    timer.start()
    assert script("import cableway as cw; print(int(cw.get('go', timeout=30)))").stdout == "123\n"
    timer.join()


def test_many_threads_wait_for_different_names():
    found: dict[int, int] = {}

    def wait(i: int) -> None:
        found[i] = int(cw.get(f"t/{i}", timeout=30))

    threads = [threading.Thread(target=wait, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for i in range(8):
        cw.put(f"t/{i}", i)
    for thread in threads:
        thread.join()
    assert found == {i: i for i in range(8)}


@pytest.mark.parametrize(
    "call", ["cw.wait('never')", "cw.get('never', timeout=None)", "cw.wait('never', timeout=60)"]
)
def test_control_c_ends_a_wait(call, tmp_path):
    code = f"import cableway as cw\ncw.names()\ntry:\n    print('up', flush=True)\n    {call}\nexcept KeyboardInterrupt:\n    print('out', cw.names())"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "up\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=30)  # half of what it would wait
    assert out == "out []\n" and child.returncode == 0


def test_signal_handlers_run_and_the_wait_goes_on():
    seen = []
    old = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)

        def some_in_one_wait() -> bool:
            before = len(seen)
            with pytest.raises(cw.Timeout):
                cw.wait("never", timeout=0.4)
            return len(seen) - before >= 3

        assert eventually(some_in_one_wait)  # those that come late come as one
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_namespaces_keep_names_apart(script):
    cw.put("x", 1)
    with cw.connect(namespace="other") as connection:
        assert connection.namespace == "other"
        assert cw.names() == []
        mine = cw.put("x", 2)
        assert int(cw.get("x")) == 2
    assert int(mine) == 2
    assert int(cw.get("x")) == 1
    env = {**os.environ, "CABLEWAY_NAMESPACE": "other"}
    assert script("import cableway as cw; print(int(cw.get('x')))", env=env).stdout == "2\n"
    assert "closed" in repr(connection)
    with pytest.raises(ValueError, match="closed"):
        _ = connection.address


def test_an_array_of_one_namespace_can_be_put_in_another_without_a_copy():
    w = cw.put("x", np.arange(4))
    with cw.connect(namespace="second"):
        cw.put("y", w, copy=False)
        w[0] = 77
        assert cw.get("y").tolist() == [77, 1, 2, 3]
        cw.remove("y")


def test_connection():
    with cw.connect() as connection:
        assert connection.namespace == "" and not connection.lost
        assert os.path.exists(connection.address)
        os.kill(connection.broker_pid, 0)
        assert str(connection.broker_pid) in repr(connection)
        assert connection.settings == (None, None)
    connection.close()
    with cw.connect(connection.settings[0]) as again, cw.connect(again.address) as same:
        assert same.instance == again.instance


def test_keep(script):
    cw.put("kept", [1], keep=True)
    assert cw.get("kept").tolist() == [1]


def test_threads_share_the_connection():
    errors = []

    def work(k: int) -> None:
        try:
            for i in range(200):
                cw.put(f"{k}", np.full(50, i))
                with cw.get(f"{k}") as x:
                    assert x.numpy()[0] == i
                if i % 50 == 0:
                    cw.names()
            cw.remove(f"{k}")
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_closed_connection_leaves_no_trace():
    cw.put("x", 1)
    with cw.connect(namespace="inner"):
        assert cw.names() == []
        cw.connect(namespace="innermost").close()
        assert client.current().namespace == "inner"
    assert client.current().namespace == "" and client._settings == (None, None)
    first = cw.connect(namespace="first")
    second = cw.connect(namespace="second")
    first.close()
    assert client.current() is second
    second.close()
    assert cw.names() == ["x"]


def test_connecting_again_and_again_keeps_few(script):
    done = script("""
        import os, cableway as cw
        cw.connect()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            cw.connect(namespace="again")
            cw.put("x", 1)
        print(len(os.listdir("/proc/self/fd")) - before < 20)
    """)
    assert done.stdout == "True\n"


class Unread:
    """Something array-like that nobody may look at."""

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        raise AssertionError("it was read")


def test_a_put_that_is_refused_reads_and_copies_nothing():
    cw.put("taken", [1, 2])
    with pytest.raises(cw.NameTaken, match='"taken" is taken'):
        cw.put("taken", Unread(), replace=False)
    with pytest.raises(ValueError, match="remote"):
        cw.put("free", Unread(), remote="write")
    with pytest.raises(ValueError, match="name"):
        cw.put("a//b", Unread())
    assert cw.get("taken").tolist() == [1, 2] and "free" not in cw.names()
    cw.put("free", [3], replace=False)
    cw.remove("free")
    cw.put("free", [4], replace=False)
    assert cw.get("free").tolist() == [4]


def test_put_leaves_the_callers_array_as_it_was():
    w = cw.zeros(2)
    named = cw.put("named", w)
    assert w.name is None and named.name == "named" and np.shares_memory(w.numpy(), named.numpy())
    assert cw.put("again", named).name == "again" and named.name == "named"


def test_a_timeout_may_be_larger_than_any_float():
    w = cw.put("there", 1)
    cw.wait("there", 10**400)
    assert cw.get("there", 10**400) == 1
    w.wait(10**400)
    for use in (cw.wait, cw.get):
        with pytest.raises(cw.Timeout):
            use("never", -(10**400))


@pytest.mark.parametrize("prefix", ["//", "///x", "//a b", "//.a/", f"//{'n' * 64}/"])
def test_names_of_a_node_that_cannot_be_are_a_bad_argument(prefix: str) -> None:
    with pytest.raises(ValueError, match="//NODE/NAME"):
        cw.names(prefix)
    with pytest.raises(ValueError, match="//NODE/NAME"):
        cw.get(prefix + "x")


class _Place:
    """`torch.device` in a Python without PyTorch."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def type(self) -> str:
        return self.name.partition(":")[0]

    def __str__(self) -> str:
        return self.name


_Place.__module__, _Place.__name__ = "torch", "device"


def test_a_device_of_pytorch_is_one() -> None:
    assert cw.zeros(2, device=_Place("cpu")).device == "cpu"  # type: ignore[arg-type]
    assert cw.put("placed", [1, 2], device=_Place("cpu")).device == "cpu"  # type: ignore[call-overload]
    assert cw.get("placed", device=_Place("cpu")).device == "cpu"  # type: ignore[call-overload]
    assert cw.zeros(2, device=_Place("cpu:0")).device == "cpu"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'mps' is not a device"):
        cw.zeros(2, device=_Place("mps"))  # type: ignore[arg-type]
