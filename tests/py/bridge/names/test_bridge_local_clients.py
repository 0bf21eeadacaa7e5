"""A node's own bridge: what its broker and its clients have of it when it stands, is slow, or has nothing to do.

Runs in `make test-more`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import bridge_support
import numpy as np
import pytest
from bridge_support import Node
from conftest import eventually
from processes import stat_fields

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

WAITS = "import cableway as cw; print('asks', flush=True); cw.get('//b/open/never', timeout=None)"


@pytest.fixture
def two() -> Iterator[tuple[Node, Node]]:
    """Two nodes that know each other."""
    with bridge_support.acquainted("--read", "open/*", "--write", "in/*") as made:
        yield made


@pytest.fixture(params=["io_uring", "epoll"])
def by_each_engine(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    """The same by either engine, with one array under open/x at the second."""
    with bridge_support.net("a", "b") as made:
        made.acquaint("--read", "open/*")
        made.start(**({"CABLEWAY_BRIDGE_EPOLL": "1"} if request.param == "epoll" else {}))
        made.connected()
        with made.nodes["b"].here():
            cw.put("open/x", [1])
        yield made.nodes["a"], made.nodes["b"]


def stopped(pid: int) -> bool:
    return stat_fields(pid)[0] == "T"


def stop(node: Node) -> int:
    """Stops a node's bridge, as a debugger or a kernel that thrashes would."""
    pid = node.bridge_pid()
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: stopped(pid))
    return pid


def test_a_bridge_that_stands_is_replaced_and_its_requests_are_answered(
    two: tuple[Node, Node],
) -> None:
    a, b = two
    with b.here():
        cw.put("open/x", [1, 2])
    with a.here():
        pid = stop(a)
        assert cw.get("//b/open/x").numpy().tolist() == [1, 2]
        assert f"(pid {pid}) has said nothing" in a.said()
        assert a.bridge_pid() not in (0, pid)


def test_replicas_do_not_outlive_a_bridge_that_stands(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("open/x", [1])
    with a.here():
        held = cw.get("//b/open/x")
    stop(a)
    with b.here():
        cw.put("open/x", [2])
    with a.here():
        assert eventually(lambda: cw.get("//b/open/x").numpy().tolist() == [2], 30)
        assert held.numpy().tolist() == [1]


def test_a_bridge_that_stands_and_serves_others_alone_is_replaced(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("open/x", [1, 2], keep=True)
    with a.here():
        assert cw.get("//b/open/x").numpy().tolist() == [1, 2]
    assert b.sees(a)  # the last that anybody asks of this bridge here
    pid = stop(b)
    assert eventually(lambda: f"(pid {pid}) has said nothing" in b.said(), 30), b.said()
    assert eventually(lambda: b.bridge_pid() not in (0, pid) and a.sees(b) and b.sees(a))
    with a.here():
        assert cw.get("//b/open/x").numpy().tolist() == [1, 2]


def test_ctrl_c_ends_a_get_whose_bridge_stands(two: tuple[Node, Node]) -> None:
    a, _ = two
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], env=a.environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None and child.stdout.readline() == "asks\n"
        stop(a)
        assert not eventually(lambda: child.poll() is not None, 0.3)
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=30)[1]
        assert "KeyboardInterrupt" in said


def test_a_timeout_bounds_the_way_here_and_nothing_is_lost(two: tuple[Node, Node]) -> None:
    a, b = two
    values = np.arange(100_000)
    with b.here():
        cw.put("open/slow", values)
    pid = stop(b)
    with a.here():
        for seconds in (0.1, 0.3):
            with pytest.raises(cw.Timeout, match=rf"did not arrive.*timeout: {seconds} s"):
                cw.get("//b/open/slow", timeout=seconds)
        os.kill(pid, signal.SIGCONT)
        assert (cw.get("//b/open/slow", timeout=30).numpy() == values).all()
        with pytest.raises(cw.Timeout):
            cw.get("//b/open/none", timeout=0.1)


def cpu_seconds(pid: int) -> float:
    """What a process has used, all its threads."""
    words = stat_fields(pid)
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_bridge_takes_no_cpu(by_each_engine: tuple[Node, Node]) -> None:
    a, b = by_each_engine
    with a.here():
        held = cw.get("//b/open/x")  # a replica that stands: it is looked after
        pids = [a.bridge_pid(), b.bridge_pid()]

        def at_rest() -> bool:
            before = [cpu_seconds(pid) for pid in pids]
            begun = time.monotonic()
            time.sleep(3)  # nothing is waited for: this is the idleness that is measured
            passed = time.monotonic() - begun
            used = [cpu_seconds(pid) - first for pid, first in zip(pids, before, strict=True)]
            return max(used) < 0.05 * passed  # one that spins takes all of it

        assert eventually(at_rest, 20)  # what came before may still end on a machine that is busy
        assert held.numpy().tolist() == [1]


def test_a_replica_whose_name_ended_with_its_users_is_fetched_again() -> None:
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        made.acquaint("--read", "*")
        made.start(CABLEWAY_NAMES_LINGER_SECONDS="3")
        made.connected()
        with b.here():
            cw.put("x", [1], keep=True)
        with a.here():
            assert cw.get("//b/x").numpy().tolist() == [1]
        assert eventually(lambda: "names ended" in a.said(), 30)
        with a.here():
            assert cw.get("//b/x").numpy().tolist() == [1]
            fast_path_of(a).unlink()
        with a.here():
            assert cw.get("//b/x").numpy().tolist() == [1]


def fast_path_of(node: Node) -> Path:
    (found,) = node.folder.glob("*.door")
    return found


def test_a_get_asks_the_bridge_alone(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        for i in range(10):
            cw.put(f"open/{i}", [i])
    assert a.process is not None
    broker, alone = a.process.pid, 0
    with a.here():
        first = cw.get("//b/open/0")  # the slab is known from here on
        for i in range(1, 10):
            os.kill(broker, signal.SIGSTOP)
            goes_on = threading.Timer(
                3, os.kill, (broker, signal.SIGCONT)
            )  # who waits for long on the fast path asks it
            goes_on.start()
            assert eventually(lambda: stopped(broker))
            assert cw.get(f"//b/open/{i}").numpy().tolist() == [i]
            alone += stopped(broker)
            goes_on.cancel()
            os.kill(broker, signal.SIGCONT)
        assert alone
        with pytest.raises(cw.NameNotFound, match="open/none"):
            cw.get("//b/open/none")
        assert first.numpy().tolist() == [0]
    with b.here():
        cw.put("open/1", [7])
    with a.here():
        assert eventually(lambda: cw.get("//b/open/1").numpy().tolist() == [7])


def test_without_a_fast_path_the_broker_is_asked(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("open/x", [1])
    fast_path_of(a).unlink()
    with a.here():
        assert cw.get("//b/open/x").numpy().tolist() == [1]


def test_nonsense_on_the_fast_path_harms_nobody(by_each_engine: tuple[Node, Node]) -> None:
    a, b = by_each_engine
    with b.here():
        cw.put("open/y", [2])
    pid, path = a.bridge_pid(), str(fast_path_of(a))

    def comes() -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.connect(path)
        made.settimeout(30)
        return made

    def hears(one: socket.socket) -> bytes:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            return one.recv(65536)
        return b""

    get = struct.pack("<IIHHI16sQIIQQQ", 1, 0, 11, 0, 0, b"", 0, 0, 0, 0, 0, 0) + b"\0//b/open/x"
    with comes() as one:  # what a client says
        one.send(get)
        status, text_bytes = struct.unpack("<iI", one.recv(65536)[:8])
        assert status == 0 and text_bytes
    for bad in (
        b"x",
        b"\0" * 72,
        b"\xff" * 8192,
        b"\xff" * 9000,
        get[:60],
        get[:4] + b"\xff" * 80,
    ):
        with comes() as one:
            one.send(bad)
            said = hears(one)  # an error, or the end
            assert not said or struct.unpack("<i", said[:4])[0] < 0
    with comes() as one:
        with contextlib.suppress(BrokenPipeError):
            for _ in range(3):  # more than one at a time
                one.send(get.replace(b"open/x", b"open/y"))
        heard = [hears(one) for _ in range(3)]
        assert not heard[2] or all(heard)  # let go, or each was answered before the next came
    with contextlib.ExitStack() as crowd:
        for _ in range(300):
            crowd.enter_context(comes())
        with a.here():
            assert cw.get("//b/open/y").numpy().tolist() == [2]
    with a.here():
        assert cw.get("//b/open/x").numpy().tolist() == [1]
    assert a.bridge_pid() == pid
    a.stop()
    assert not list(a.folder.glob("*.door"))


def test_descriptors_that_are_no_replica_cache_are_closed(two: tuple[Node, Node]) -> None:
    a, _ = two
    path = fast_path_of(a)
    path.unlink()
    said = b"no such luck"
    answer = struct.pack("<iIQIIQQQ", -errno.EREMOTEIO, len(said), 0, 0, 0, 0, 0, 0) + said
    handed = [0, 1, 2, 3, 8, 253]

    def serve(listener: socket.socket) -> None:
        one, _ = listener.accept()
        with one, open("/dev/null") as null:
            for count in handed:
                assert one.recv(65536)
                socket.send_fds(one, [answer], [null.fileno()] * count)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, a.here():
        listener.bind(str(path))
        listener.listen()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            served = pool.submit(serve, listener)
            open_then = []
            for _ in handed:
                with pytest.raises(cw.RemoteError, match="no such luck"):
                    cw.get("//b/open/x")
                open_then.append(len(os.listdir("/proc/self/fd")))
            served.result(30)
    # The server's own end closes with the last answer.
    assert len(set(open_then[:-1])) == 1 and open_then[-1] <= open_then[0]


def ask_on_the_fast_path(node: Node, key: bytes) -> int:
    """The status of a GET as a client would send it, with any key."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.connect(str(fast_path_of(node)))
        one.settimeout(30)
        one.send(struct.pack("<IIHH60x", 1, 0, len(key), 0) + key)
        (status,) = struct.unpack("<i", one.recv(65536)[:4])
        return int(status)


@pytest.mark.parametrize(
    "key",
    [b"\0//b/open/x\0y", b"\0//b/\xff", b"\0//b/", b"not one\0//b/open/x", b"\0//b//b/open/x"],
)
def test_a_name_that_cannot_be_does_not_cost_others_the_connection(
    two: tuple[Node, Node], key: bytes
) -> None:
    a, b = two
    with b.here():
        cw.put("open/x", [1])
    with a.here():
        held = cw.get("//b/open/x")
        before = a.said().count("ended: ") + b.said().count("ended: ")
        assert ask_on_the_fast_path(a, key) == -errno.EINVAL
        assert ask_on_the_fast_path(a, b"\0//b/open/x") == 0
        assert a.said().count("ended: ") + b.said().count("ended: ") == before
        assert held.numpy().tolist() == [1]


def test_threads_that_get_at_once_each_have_their_array(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        for i in range(200):
            cw.put(f"open/{i}", np.full(i % 7 + 1, i))
    with a.here(), concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: cw.get(f"//b/open/{i}").numpy().copy(), range(200)))
    assert all((values == i).all() and len(values) == i % 7 + 1 for i, values in enumerate(found))
