"""Errors: each outcome has its class, and each sentence says what was asked, what was found and what to do."""

from __future__ import annotations

import base64
import hashlib
import multiprocessing
import os
import pickle
import re
import signal
import time
import zlib

import numpy as np
import pytest

import cableway as cw
from cableway import client
from cableway._core import dtypes
from cableway.errors import from_status


def test_the_classes_are_what_they_replace():
    assert issubclass(cw.NameNotFound, KeyError)
    assert issubclass(cw.LimitExceeded, MemoryError)
    assert issubclass(cw.Timeout, TimeoutError) and issubclass(
        cw.Timeout, multiprocessing.TimeoutError
    )
    classes = [
        cw.BrokerLost, cw.DeviceError, cw.LimitExceeded, cw.NameNotFound, cw.NameTaken, cw.ProducerDied, cw.QueueBlocked,
        cw.RemoteError, cw.Stale, cw.Timeout, cw.WorkerDied,
    ]  # fmt: skip
    for kind in classes:
        assert issubclass(kind, cw.Error)
        error = kind("a sentence")
        assert str(error) == "a sentence"
        assert str(pickle.loads(pickle.dumps(error))) == "a sentence"


def test_codes_that_nobody_expects_are_errors_still():
    assert type(from_status(-5, "x")) is cw.Error
    assert "EIO" in str(from_status(-5, ""))


BAD_NAMES = [
    "",
    "/",
    "a/",
    "/a",
    "a//b",
    ".",
    "..",
    "a/./b",
    "a/../b",
    "a\nb",
    "a\0b",
    "x" * 201,
    "ä" * 101,
    "\udc80",
    "\x7f",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_malformed_names(name):
    for call in (
        lambda: cw.put(name, [1]), lambda: cw.get(name), lambda: cw.wait(name, timeout=0.1), lambda: cw.remove(name),
        lambda: cw.get(name, timeout=1),
    ):  # fmt: skip
        with pytest.raises(ValueError) as caught:
            call()
        assert len(str(caught.value)) > 10


@pytest.mark.parametrize(
    "name", ["a", "x" * 200, "ä" * 100, "a/b/c", "a b", "...", ".a", "名前", "a:b@c"]
)
def test_well_formed_names(name):
    cw.put(name, [1])
    assert cw.names() == [name] and cw.get(name).name == name


@pytest.mark.parametrize("name", [None, 5, b"bytes", ["x"]])
def test_names_of_other_types(name):
    for call in (
        lambda: cw.put(name, [1]),
        lambda: cw.get(name),
        lambda: cw.wait(name, 0.1),
        lambda: cw.remove(name),
    ):
        with pytest.raises(TypeError, match="str"):
            call()


def test_a_bad_name_is_told_before_anything_is_copied():
    with pytest.raises(ValueError):
        cw.put("/bad", np.zeros(10))


def test_objects_are_refused_with_a_remedy():
    for value in (
        np.array([object()]),
        np.array(["a", None], object),
        np.zeros(2, [("x", "O")]),
        [{}, {}],
    ):
        with pytest.raises(TypeError, match=r"objects.*(convert|pickle)"):
            cw.put("x", value)
    with pytest.raises(TypeError, match="objects"):
        cw.empty(3, object)
    if hasattr(np.dtypes if hasattr(np, "dtypes") else np, "StringDType"):
        with pytest.raises(TypeError):
            cw.asarray(np.array(["a", "b"], np.dtypes.StringDType()))


@pytest.mark.parametrize(
    "text",
    [
        "[('a',())]",
        "[('a',()),('b',None,[])]",
        "{'names':['a'],'formats':['<f8'],'offsets':[99999999999999999999],'itemsize':8}",
        "{'names':['a'],'formats':['<f8'],'offsets':[0],'itemsize':99999999999999999999}",
        "('<f8',(99999999999999999999,))",
        "{'formats':['<f8']}",
        "[1]",
        "((1,),)",
        "{1:2}",
        "[('a','<f8',(-1,))]",
        "[" * 1000,
        "",
    ],
)
def test_texts_that_are_no_dtype_are_errors(text):
    """Whatever NumPy meets in them."""
    with pytest.raises(cw.Error):
        dtypes.decode(text)


def test_dtypes_that_text_cannot_tell():
    with pytest.raises(ValueError, match="2048"):
        cw.empty(1, [(hashlib.sha256(b"%d" % i).hexdigest(), "f8") for i in range(100)])


@pytest.mark.parametrize(
    "kind",
    [
        [(f"f{i}", "<f8") for i in range(300)],
        [
            (f"column number {i}", ["<f8", "<i4", "<M8[ns]", "S7"][i % 4], i % 3 + 1)
            for i in range(400)
        ],
    ],
    ids=["300", "400"],
)
def test_structs_of_some_hundred_fields_are_shared(kind):
    x = np.zeros(3, kind)
    x[x.dtype.names[0]] = 7
    cw.put("x", x)
    found = cw.get("x")
    assert found.dtype == x.dtype and (found.numpy() == x).all()
    assert pickle.loads(pickle.dumps(found)).dtype == x.dtype
    assert len(dtypes.encode(x.dtype)) <= 2048


def test_a_compressed_dtype_that_lies_is_an_error():
    def packed(text: bytes) -> str:
        return "|V8 of 300 fields, zlib " + base64.b85encode(zlib.compress(text)).decode()

    assert dtypes.decode(packed(b"[('a','<f8')]")).names == ("a",)
    good = packed(b"[('a','<f8')]")
    for text in (
        packed(b"[" * (1 << 28)),  # hundreds of MiB: no more than a MiB of it is made
        packed(b"\xff\xff"),
        packed(b""),
        packed(b"[('a','|O')]"),
        packed(packed(b"[('a','<f8')]").encode()),
        good[:-3],
        good[:-5] + "00000",
        "|V8 of 300 fields, zlib ",
        "|V8 of 300 fields, zlib \x7f",
    ):
        with pytest.raises(cw.Error):
            dtypes.decode(text)


def test_bad_shapes_orders_timeouts():
    for call in (
        lambda: cw.empty(-1), lambda: cw.empty((2, -3)), lambda: cw.empty(3, order="Z"), lambda: cw.asarray([1], order="Z"),
        lambda: cw.get("x", timeout=float("nan")), lambda: cw.empty((2**40, 2**40)), lambda: cw.empty((1,) * 65),
        lambda: cw.connect(namespace="a/b"), lambda: cw.connect(namespace="x" * 65), lambda: cw.connect(namespace="a\0"),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            call()
    for call in (
        lambda: cw.empty("3"),
        lambda: cw.empty(1.5),
        lambda: cw.get("x", timeout="1"),
        lambda: cw.empty(3, "nope"),
    ):
        with pytest.raises(TypeError):
            call()


def test_more_than_memory_is_a_limit():
    with pytest.raises(cw.LimitExceeded) as caught:
        cw.empty(2**46, "u1")
    assert isinstance(caught.value, MemoryError)
    assert cw.zeros(10).shape == (10,)


def test_file_size_limit_is_an_error_and_no_signal(script):
    done = script("""
        import resource, cableway as cw
        cw.names()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            cw.zeros(64 << 20, "u1")
        except cw.LimitExceeded as error:
            print("limit", error)
    """)
    assert done.stdout.startswith("limit")


def test_a_folder_that_is_not_ours(script, tmp_path):
    folder = tmp_path / "open"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    env = {**os.environ, "CABLEWAY_DIR": str(folder)}
    done = script(
        "import cableway as cw\ntry: cw.names()\nexcept cw.Error as error: print(error)", env=env
    )
    assert str(folder) in done.stdout


def test_a_folder_that_cannot_be_made(script):
    with pytest.raises(cw.BrokerLost, match="making the socket folder /nonexistent/x failed"):
        cw.connect("/nonexistent/x")
    with pytest.raises(ValueError, match="empty address"):
        cw.connect("")
    env = {**os.environ, "CABLEWAY_DIR": "here"}
    done = script("import cableway as cw; cw.names()", env=env, check=False)
    assert "ValueError: CABLEWAY_DIR is here, which" in done.stderr


def test_a_relative_address_is_the_same_broker_in_another_folder(script, tmp_path):
    (tmp_path / "b").mkdir(mode=0o700)
    code = f"""
        import os, pickle, signal, cableway as cw
        os.chdir({str(tmp_path)!r})
        connection = cw.connect("b")
        w = cw.put("x", [1, 2])
        os.chdir("/")
        child = os.fork()
        if not child:
            os._exit(cw.names() != ["x"])
        assert os.waitpid(child, 0)[1] == 0
        assert connection.address == {str(tmp_path / "b" / "cablewayd-v4.sock")!r}
        os.kill(connection.broker_pid, signal.SIGTERM)
        try: cw.wait("never")
        except cw.BrokerLost: pass
        cw.names()
        again = cw.client.current()
        print(again.address == connection.address)
        os.kill(again.broker_pid, signal.SIGTERM)
    """
    env = {
        name: value for name, value in os.environ.items() if not name.endswith(("JOBID", "JOB_ID"))
    }
    assert script(code, env=env).stdout == "True\n"


def test_a_script_in_a_pipe_ends(script):
    done = script("import cableway as cw; cw.put('x', [1]); print('done')")
    assert done.stdout == "done\n" and done.stderr == ""


def test_interpreter_shutdown_is_quiet(script):
    done = script("""
        import threading, cableway as cw, numpy as np
        w = cw.put("x", np.arange(10)); v = w.numpy(); d = np.from_dlpack(w); m = cw.get("x")[1:]
        class Late:
            def __del__(self): self.w.close()
        late = Late(); late.w = cw.get("x"); late.me = late
        threading.Thread(target=lambda: cw.wait("never"), daemon=True).start()
    """)
    assert done.stderr == "" and done.returncode == 0


def test_broker_killed():
    w = cw.put("x", np.arange(10))
    view = w.numpy()
    data = pickle.dumps(w)
    connection = client.current()
    first = connection.instance
    os.kill(connection.broker_pid, signal.SIGKILL)
    with pytest.raises(cw.BrokerLost, match=r"\.log"):
        for _ in range(100):  # within a second, on a machine that lets us run
            cw.get("x")
            time.sleep(0.01)
    assert connection.lost
    assert view.sum() == 45 and w.numpy().sum() == 45
    assert cw.names() == []
    assert client.current().instance != first
    with pytest.raises(cw.Stale, match="put it again and send it anew"):
        pickle.loads(data)
    again = cw.put("x", w)
    assert again.tolist() == list(range(10))
    with pytest.raises(ValueError, match="another broker"):
        cw.put("y", w, copy=False)
    with pytest.raises(cw.BrokerLost):
        pickle.dumps(w)
    assert cw.names() == ["x"]


def test_broker_killed_while_somebody_waits(script):
    code = """
        import threading, time, os, signal, cableway as cw
        from cableway import client
        pid, told, turns = client.current().broker_pid, threading.Event(), []
        def kill():
            os.kill(pid, signal.SIGKILL)
            while not told.is_set():  # a second is a hundred turns, on a machine that lets us run
                turns.append(time.sleep(0.01))
        killer = threading.Timer(0.3, kill)
        killer.start()
        try:
            cw.wait("never")
        except cw.BrokerLost:
            told.set()
            print("lost")
        killer.join()
        assert len(turns) <= 100, len(turns)
        print(cw.names())
    """
    assert script(code).stdout == "lost\n[]\n"


def test_killed_clients_leave_nothing(script):
    w = cw.put("x", np.arange(10))
    for _ in range(3):
        done = script(
            """
            import cableway as cw, os, numpy as np
            x = cw.get("x"); y = cw.put("mine", np.zeros(1000)); z = cw.empty(1000)
            os.kill(os.getpid(), 9)
        """,
            check=False,
        )
        assert done.returncode == -9
    assert w.tolist() == list(range(10))
    assert cw.get("mine").shape == (1000,)


LIMITS = {
    "MAX_NAMES=20": "for i in range(1000): cw.put(f'n{i}', i)",
    "MAX_BYTES=64000000": "held = [cw.zeros(8_000_000, 'u1') for _ in range(100)]",
    "MAX_USER_BYTES=64000000": "held = [cw.zeros(8_000_000, 'u1') for _ in range(100)]",
    "MAX_SLABS=3": "held = [cw.zeros(50_000_000, 'u1') for _ in range(10)]",
    "MAX_CLIENT_SLABS=3": "held = [cw.zeros(50_000_000, 'u1') for _ in range(10)]",
    "MAX_FDS=32": "held = [cw.connect() for _ in range(30)]",
    "MAX_CLIENTS=3": "held = [cw.connect() for _ in range(10)]",
    "MAX_CLIENT_LEASES=4096": "held = [cw.zeros(1) for _ in range(5000)]",
    "MAX_CLIENT_TRANSITS=10": "held = [keep.handle() for _ in range(20)]",
    "MAX_CLIENT_WAITS=2": (
        "from concurrent import futures; threads = futures.ThreadPoolExecutor(3); "
        "waits = [threads.submit(cw.wait, f'w{i}', 60) for i in range(3)]; "
        "one = futures.wait(waits, return_when=futures.FIRST_COMPLETED).done.pop(); "
        "held = [cw.put(f'w{i}', i) for i in range(3)]; "  # the others end
        "raise one.exception()"
    ),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_each_limit_is_a_limit_exceeded_and_all_goes_on(limit, script, tmp_path):
    folder = tmp_path / "b"
    folder.mkdir(mode=0o700)
    name, value = limit.split("=")
    done = script(
        f"""
        import os, signal, time, cableway as cw
        from cableway import client
        pid = client.current().broker_pid
        keep = cw.put("before", [1, 2, 3])
        try:
            {LIMITS[limit]}
            print("no limit")
        except cw.LimitExceeded as error:
            print("limit", error)
        held = None
        assert cw.get("before").tolist() == [1, 2, 3]
        for patience in range(3000):
            try:
                cw.put("before", [4])
                break
            except cw.LimitExceeded:  # what was closed comes back when the broker has heard of it
                time.sleep(0.01)
        assert cw.get("before").tolist() == [4]
        os.kill(pid, signal.SIGTERM)
        """,
        env={**os.environ, "CABLEWAY_DIR": str(folder), f"CABLEWAY_{name}": value},
    )
    told = rf"limit .*{name.lower()} allows .*`cableway limit set {name.lower()} NUMBER`.*cableway\.conf, or CABLEWAY_{name}\b"
    assert re.match(told, done.stdout), done.stdout
