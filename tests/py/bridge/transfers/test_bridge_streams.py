"""Large arrays go over several connections to a peer: all bytes once, whole and checked, whatever becomes of a connection.

Runs in `make test-more`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import bridge_proxy
import bridge_support
import pytest
from bridge_proxy import FROM, Proxy
from bridge_support import Node
from conftest import eventually
from streams_support import MIB, connections, fetch, has_streams, values

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

EPOLL = {"CABLEWAY_BRIDGE_EPOLL": "1"}


def spread(a: Node, b: Node, count: int) -> None:
    """Fetches large arrays until there are so many streams."""
    numbers = iter(range(1000))

    def more() -> bool:
        with b.here():
            cw.put(name := f"spread/{next(numbers)}", values(8 * MIB))
        fetch(a, name, values(8 * MIB))
        with b.here():
            cw.remove(name)
        return has_streams(a, b, count)

    assert eventually(more, 20), a.said() + b.said()


@pytest.fixture(params=["io_uring", "epoll"])
def two(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    """Two nodes with a link and up to four streams; a alone dials."""
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        a.knows(b, "--read", "*", "--write", "*")
        b.knows(a, "--read", "*", "--write", "*", address="")
        for node in (a, b):
            node.options = ["--streams", "4"]
            node.start(**(EPOLL if request.param == "epoll" else {}))
        assert eventually(lambda: a.sees(b)), a.said()
        yield a, b


@pytest.fixture
def cut() -> Iterator[tuple[Node, Node, Proxy]]:
    """a reaches b through a proxy, over a link and up to four streams."""
    with bridge_proxy.proxied("--streams", "4") as made:
        yield made


# ---- how many


def test_small_arrays_make_no_streams_and_large_ones_go_over_all(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("small", values(MIB))
    fetch(a, "small", values(MIB))
    assert has_streams(a, b, 0) and has_streams(b, a, 0)
    spread(a, b, 4)
    assert eventually(lambda: has_streams(b, a, 4))
    assert a.state_of(b)["streams"] == "5"
    expected = values(64 * MIB, 1)
    with b.here():
        cw.put("large", expected)
    before, main = connections(a, b), connections(a, b, "link")
    fetch(a, "large", expected)
    came = [
        late["bytes_in"] - early["bytes_in"]
        for late, early in zip(
            connections(a, b, "link") + connections(a, b), main + before, strict=True
        )
    ]
    assert all(count > 256 * 1024 for count in came[1:]), came  # each carried some
    assert came[0] < 256 * 1024, came  # the link, whose loop serves all, carried requests alone
    assert expected.nbytes < sum(came) < 1.05 * expected.nbytes  # and all together no byte twice


def test_puts_go_over_streams_which_the_dialing_side_makes(two: tuple[Node, Node]) -> None:
    a, b = two
    expected = values(40 * MIB, 2)
    with a.here():  # b reads, and has no address of a's
        cw.put("//b/put", expected)
    with b.here():
        assert (cw.get("put").numpy() == expected).all()
        for seed in range(8):
            cw.put(f"//a/back/{seed}", values(16 * MIB, seed))
    assert eventually(lambda: has_streams(a, b, 4)) and eventually(lambda: has_streams(b, a, 4))
    assert {link["way"] for link in connections(a, b)} == {"to"}
    with a.here():
        for seed in range(8):
            assert (cw.get(f"back/{seed}").numpy() == values(16 * MIB, seed)).all()


@pytest.mark.parametrize(("ours", "theirs"), [("4", "2"), ("3", "1"), ("1", "4")])
def test_the_side_with_fewer_decides(ours: str, theirs: str) -> None:
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        made.acquaint("--read", "*")
        a.options, b.options = ["--streams", ours], ["--streams", theirs]
        wanted = min(int(ours), int(theirs))
        wanted = 0 if wanted == 1 else wanted
        made.start()
        made.connected()
        spread(a, b, wanted)
        with b.here():
            cw.put("large", values(48 * MIB))
        fetch(a, "large", values(48 * MIB))
        assert has_streams(a, b, wanted)
        assert "cannot be had" not in a.said() + b.said()  # nobody was refused


def test_the_configuration_says_how_many(tmp_path: Path) -> None:
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        made.acquaint("--read", "*")
        config = tmp_path / "cableway.conf"
        config.write_text("[bridge]\nstreams = 3\n")
        made.start(CABLEWAY_CONFIG=str(config))
        made.connected()
        spread(a, b, 3)


@pytest.mark.parametrize("number", ["0", "17", "-1", "two", "4x", ""])
def test_a_wrong_number_is_refused(number: str) -> None:
    done = subprocess.run(
        [bridge_support.program("cablewayd"), "--foreground", "--streams", number],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "1 to 16" in done.stderr and "streams" in done.stderr


# ---- what becomes of connections


@pytest.mark.parametrize("kind", ["get", "put"])
def test_streams_that_are_cut_give_back_what_they_had(
    cut: tuple[Node, Node, Proxy], kind: str
) -> None:
    a, b, proxy = cut
    spread(a, b, 4)
    chance = random.Random(seed := random.randrange(1 << 30))
    print("seed", seed)
    running, cuts = True, [0]

    def keep_cutting() -> None:
        while running:
            time.sleep(chance.random() / 20)
            cuts[0] += proxy.cut_younger()

    cutter = threading.Thread(target=keep_cutting)
    expected = values(96 * MIB, 3)
    main = connections(a, b, "link")
    with (b if kind == "get" else a).here():
        source = cw.put("cut/large", expected)
        cutter.start()
        try:
            for number in range(3):
                if kind == "get":
                    cw.put(f"cut/{number}", source)
                    fetch(a, f"cut/{number}", expected)
                else:
                    cw.put(f"//b/cut/{number}", source)
        finally:
            running = False
            cutter.join()
    assert cuts[0] >= 3
    if kind == "put":
        with b.here():
            for number in range(3):
                assert (cw.get(f"cut/{number}").numpy() == expected).all()
    # The link itself was spared: nothing began anew.
    now = connections(a, b, "link")
    assert [link["address"] for link in now] == [link["address"] for link in main]
    assert now[0]["seconds"] >= main[0]["seconds"]
    spread(a, b, 4)  # they come again


def test_all_connections_are_cut_at_random_bytes(cut: tuple[Node, Node, Proxy]) -> None:
    a, b, proxy = cut
    chance = random.Random(seed := random.randrange(1 << 30))
    print("seed", seed)
    expected = values(32 * MIB, 4)
    proxy.cut_each = lambda: (FROM, chance.randrange(3000, 4 * MIB))
    proxy.cut()
    number, limit = 0, time.monotonic() + 80
    while proxy.cuts < 6:
        number += 1
        with b.here():
            cw.put(f"large/{number}", expected)
        try:
            fetch(a, f"large/{number}", expected)
        except cw.RemoteError:
            assert time.monotonic() < limit
        with b.here():
            cw.remove(f"large/{number}")
    proxy.cut_each = None
    spread(a, b, 4)


def test_a_peer_that_stops_in_the_midst_is_found_and_found_again(two: tuple[Node, Node]) -> None:
    a, b = two
    spread(a, b, 4)
    expected = values(200 * MIB, 5)
    told: list[BaseException] = []
    with b.here():
        cw.put("large", expected)
    with a.here():
        before = int(a.state_of(b)["bytes_in"])

        def get() -> None:
            try:
                assert (cw.get("//b/large").numpy() == expected).all()
            except cw.RemoteError as error:
                told.append(error)

        thread = threading.Thread(target=get)
        thread.start()
        assert eventually(lambda: int(a.state_of(b)["bytes_in"]) > before + MIB)
        with b.standing():  # the streams end as the link does
            assert eventually(lambda: not a.sees(b), 20)
            assert eventually(lambda: has_streams(a, b, 0), 20)
        thread.join(60)
        assert not thread.is_alive()
        assert eventually(lambda: a.sees(b), 20)
    fetch(a, "large", expected)
    spread(a, b, 4)


def test_streams_end_with_their_link_and_come_again(cut: tuple[Node, Node, Proxy]) -> None:
    a, b, proxy = cut
    spread(a, b, 4)
    proxy.cut_oldest()
    assert eventually(lambda: "no other connection any more" in a.said() + b.said())
    assert eventually(lambda: a.sees(b))
    spread(a, b, 4)


def test_connections_that_were_to_be_streams_end_with_their_link(
    cut: tuple[Node, Node, Proxy],
) -> None:
    a, b, proxy = cut
    bridge = a.bridge_pid()
    with b.here():
        cw.put("large", values(8 * MIB), keep=True)
    proxy.mute = True
    fetch(a, "large", values(8 * MIB))  # over the link, while streams are dialed
    assert eventually(lambda: len(proxy.muted) == 4), a.said()
    proxy.mute = False
    proxy.cut_oldest()
    for connection in proxy.muted:
        connection.settimeout(30)
        while connection.recv(65536):
            pass  # the begin of TLS, then its end
    assert "no TLS handshake" not in a.said()  # it was their link, not their time
    assert eventually(lambda: a.sees(b))
    spread(a, b, 4)
    assert a.bridge_pid() == bridge


# ---- many at once, and what goes away


def together(calls: list[Callable[[], None]]) -> None:
    """Runs all at once; raises what the first raised."""
    raised: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    if raised:
        raise raised[0]


def test_many_arrays_at_once_both_ways(two: tuple[Node, Node]) -> None:
    a, b = two
    sizes = [5 * MIB + 1, 6 * MIB, 9 * MIB - 17, 70_001, 4 * MIB]
    with b.here():
        for i in range(20):
            cw.put(f"many/{i}", values(sizes[i % 5], i))
    with a.here():

        def get(i: int) -> None:
            assert (cw.get(f"//b/many/{i}").numpy() == values(sizes[i % 5], i)).all()

        def put(i: int) -> None:
            cw.put(f"//b/put/{i}", values(sizes[i % 5], 100 + i))

        together([lambda i=i: get(i) for i in range(20)] + [lambda i=i: put(i) for i in range(20)])
    with b.here():
        for i in range(20):
            assert (cw.get(f"put/{i}").numpy() == values(sizes[i % 5], 100 + i)).all()


def test_clients_that_die_and_names_that_go_in_the_midst(two: tuple[Node, Node]) -> None:
    a, b = two
    pids = [a.bridge_pid(), b.bridge_pid()]
    spread(a, b, 4)
    expected = values(64 * MIB, 6)
    program = """
import sys, numpy as np, cableway as cw
x = cw.put("mine", np.ones(64 << 20, "u1"))
print("go", flush=True)
for i in range(1000):
    if sys.argv[1] == "put":
        cw.put(f"//b/dying", x)
    else:
        cw.get("//b/gone/0" if i % 2 else "//b/gone/1")
"""
    for kind in ("put", "get", "put", "get"):
        with b.here():
            for i in range(2):
                cw.put(f"gone/{i}", expected)
        client = subprocess.Popen(
            [sys.executable, "-c", program, kind], env=a.environment, stdout=subprocess.PIPE
        )
        assert client.stdout is not None and client.stdout.readline() == b"go\n"
        before = int(a.state_of(b)["bytes_in"]) + int(a.state_of(b)["bytes_out"])
        assert eventually(
            lambda then=before: (
                int(a.state_of(b)["bytes_in"]) + int(a.state_of(b)["bytes_out"]) > then + MIB
            )
        )
        with b.here():
            for i in range(2):
                cw.remove(f"gone/{i}")
        client.kill()
        client.wait()
        client.stdout.close()
    with b.here():
        cw.put("after", expected)
    fetch(a, "after", expected)
    assert [a.bridge_pid(), b.bridge_pid()] == pids, a.said() + b.said()


def test_a_bridge_that_is_killed_in_the_midst(two: tuple[Node, Node]) -> None:
    a, b = two
    spread(a, b, 4)
    expected = values(128 * MIB, 7)
    for node in (a, b):
        with b.here():
            cw.put(name := f"large/{node.name}", expected)
        before = int(a.state_of(b)["bytes_in"])
        with a.here():
            thread = threading.Thread(target=lambda n=name: cw.get(f"//b/{n}"))
            thread.start()
            assert eventually(lambda then=before: int(a.state_of(b)["bytes_in"]) > then + MIB)
            os.kill(node.bridge_pid(), signal.SIGKILL)
            thread.join(60)
            assert not thread.is_alive()
            assert eventually(lambda: a.sees(b), 20)
            assert (cw.get(f"//b/{name}").numpy() == expected).all()
    spread(a, b, 4)
