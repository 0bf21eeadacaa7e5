"""Arrays of other nodes that are here and have no name yet: found by everybody, and no longer than they are true."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import bridge_support
import pytest
from bridge_support import Node
from conftest import eventually
from test_bridge_local_clients import stopped

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

WRITES = 300
PUTS = """
import sys, cableway as cw
with cw.connect(sys.argv[1]):
    for i in range(1, int(sys.argv[2]) + 1):
        cw.put("open/x", [i])
"""
GETS = """
import sys, cableway as cw
with cw.connect(sys.argv[1]):
    held = [cw.get("//b/open/0")]
    print("one", flush=True)
    sys.stdin.readline()
    held.append(cw.get("//b/open/x"))
    print("two", flush=True)
    sys.stdin.readline()
"""


class Interrupt(Exception):
    """What a signal's handler raises."""


@pytest.fixture
def two() -> Iterator[tuple[Node, Node]]:
    """Two nodes that know each other."""
    with bridge_support.acquainted("--read", "open/*", "--write", "open/*") as made:
        yield made


def test_what_has_no_name_yet_is_found_without_asking_anybody(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        for i in range(10):
            cw.put(f"open/{i}", [i])
    assert a.process is not None
    asked = (a.process.pid, a.bridge_pid())

    def go_on() -> None:
        for pid in asked:
            os.kill(pid, signal.SIGCONT)

    alone = 0
    with a.here():
        cw.get("//b/open/0")  # the slab and the replica cache are known from here on
        for i in range(1, 10):
            late = threading.Timer(3, go_on)  # a machine that is slow: then it is asked after all
            late.start()
            os.kill(asked[0], signal.SIGSTOP)  # no name is written
            assert eventually(lambda: stopped(asked[0]))
            first = cw.get(f"//b/open/{i}")
            os.kill(asked[1], signal.SIGSTOP)
            assert eventually(lambda: stopped(asked[1]))
            assert cw.get(f"//b/open/{i}").numpy().tolist() == [i] == first.numpy().tolist()
            alone += stopped(asked[0]) and stopped(asked[1])
            late.cancel()
            go_on()
        assert alone


def read_until(value: int, seen: list[int], lock: threading.Lock) -> None:
    """Reads until it is there; what anybody has seen before is never newer than what comes."""
    while seen[0] < value:
        with lock:
            before = seen[0]
        found = int(cw.get("//b/open/x").numpy()[0])
        assert found >= before
        with lock:
            seen[0] = max(seen[0], found)


def test_who_has_read_a_later_value_never_reads_an_earlier_one(two: tuple[Node, Node]) -> None:
    a, b = two
    seen, lock = [0], threading.Lock()
    b.put("open/x", [0])
    with a.here(), concurrent.futures.ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read_until, WRITES, seen, lock) for _ in range(2)]
        subprocess.run([sys.executable, "-c", PUTS, b.folder, str(WRITES)], check=True, timeout=60)
        for reader in readers:
            reader.result(60)


def test_what_was_put_from_here_is_read_from_then_on(two: tuple[Node, Node]) -> None:
    a, b = two
    seen, lock = [0], threading.Lock()
    b.put("open/x", [0])
    with a.here(), concurrent.futures.ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read_until, WRITES, seen, lock) for _ in range(2)]
        for i in range(1, WRITES + 1):
            cw.put("//b/open/x", [i])
            with lock:
                seen[0] = max(seen[0], i)
            assert int(cw.get("//b/open/x").numpy()[0]) == i
        for reader in readers:
            reader.result(60)


def test_the_replica_cache_of_a_dead_bridge_counts_no_more(two: tuple[Node, Node]) -> None:
    a, b = two
    b.put("open/x", [1])
    with a.here():
        for value in range(2, 6):
            held = cw.get("//b/open/x")
            os.kill(a.bridge_pid(), signal.SIGKILL)
            b.put("open/x", [value])
            assert eventually(lambda v=value: cw.get("//b/open/x").numpy().tolist() == [v], 60)
            assert held.numpy().tolist() == [value - 1]


def test_what_a_bridge_that_stands_had_to_tell_is_told_no_more(two: tuple[Node, Node]) -> None:
    a, b = two
    b.put("open/0", [0])
    b.put("open/x", [1])
    assert a.process is not None
    broker, bridge = a.process.pid, a.bridge_pid()

    def told() -> bool:
        try:
            assert cw.get("//b/open/x", timeout=0.2).numpy().tolist() == [1]
        except cw.Timeout:
            return False
        return True

    with a.here():
        cw.get("//b/open/0")  # the slab and the replica cache are known from here on
        os.kill(broker, signal.SIGSTOP)  # no name is written
        assert eventually(lambda: stopped(broker))
        held = cw.get("//b/open/x")
        os.kill(bridge, signal.SIGSTOP)
        assert eventually(lambda: stopped(bridge))
        b.put("open/x", [2])
        assert eventually(lambda: not told(), 30)
        os.kill(broker, signal.SIGCONT)  # which finds that its bridge stands
        assert eventually(lambda: cw.get("//b/open/x").numpy().tolist() == [2], 60)
        assert held.numpy().tolist() == [1]


def test_a_signal_ends_a_look_for_which_the_broker_is_needed(two: tuple[Node, Node]) -> None:
    a, b = two
    b.put("open/0", [0])
    b.put("open/x", [1])
    assert a.process is not None
    broker = a.process.pid

    def interrupt(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    command = [sys.executable, "-c", GETS, a.folder]
    with (
        a.here(),
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other,
    ):
        assert other.stdin and other.stdout
        with pytest.raises(cw.NameNotFound):
            cw.get("//b/open/none")  # the replica cache is known from here on, and no slab
        assert other.stdout.readline() == "one\n"
        late = threading.Timer(30, os.kill, (broker, signal.SIGCONT))
        late.start()
        os.kill(broker, signal.SIGSTOP)  # no name is written, no slab is opened
        assert eventually(lambda: stopped(broker))
        print("go", file=other.stdin, flush=True)
        assert other.stdout.readline() == "two\n"
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Interrupt):
                cw.get("//b/open/x")
            assert stopped(broker)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            late.cancel()
            os.kill(broker, signal.SIGCONT)
        assert cw.get("//b/open/x").numpy().tolist() == [1]
        other.communicate("end\n", 60)
