"""Large arrays go over several connections to a peer: all bytes once, whole and checked, whatever becomes of a connection."""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import bridge_raw as raw
import bridge_support
import numpy as np
import pytest
from bridge_proxy import FROM, Proxy
from bridge_raw import Raw, asking, frame, hello
from bridge_support import Node
from conftest import eventually

import causeway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

MIB = 1 << 20
RUN = 7  # of the raw peer's bridge
EPOLL = {"CAUSEWAY_BRIDGE_EPOLL": "1"}


def values(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([size, seed]).integers(0, 256, size, dtype=np.uint8)


def connections(one: Node, other: Node, kind: str = "stream") -> list[dict[str, int]]:
    """The connections of a kind that one has with the other."""
    peers = json.loads(one.command("peers", "--json").stdout)
    links = next(peer["links"] for peer in peers if peer["name"] == other.name)
    return [link for link in links if link["kind"] == kind]


def has_streams(one: Node, other: Node, count: int) -> bool:
    return len(connections(one, other)) == count


def fetch(a: Node, name: str, expected: np.ndarray) -> None:
    with a.here():
        assert (cw.get(f"//b/{name}").numpy() == expected).all()


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
    """Two nodes with up to four connections; a alone dials."""
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
    """a reaches b through a proxy, over up to four connections."""
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        with Proxy(b.port) as proxy:
            a.knows(b, "--read", "*", address=f"127.0.0.1:{proxy.port}")
            b.knows(a, "--read", "*", "--write", "*", address="")
            for node in (a, b):
                node.options = ["--streams", "4"]
                node.start()
            assert eventually(lambda: a.sees(b)), a.said()
            yield a, b, proxy


# ---- how many


def test_small_arrays_make_no_streams_and_large_ones_go_over_all(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("small", values(MIB))
    fetch(a, "small", values(MIB))
    assert has_streams(a, b, 0) and has_streams(b, a, 0)
    spread(a, b, 3)
    assert eventually(lambda: has_streams(b, a, 3))
    assert a.state_of(b)["streams"] == "4"
    expected = values(64 * MIB, 1)
    with b.here():
        cw.put("large", expected)
    before, main = connections(a, b), connections(a, b, "link")
    fetch(a, "large", expected)
    came = [
        now["bytes_in"] - then["bytes_in"]
        for now, then in zip(
            connections(a, b, "link") + connections(a, b), main + before, strict=True
        )
    ]
    assert all(count > 256 * 1024 for count in came), came  # each carried some
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
    assert eventually(lambda: has_streams(a, b, 3)) and eventually(lambda: has_streams(b, a, 3))
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
        made.start()
        made.connected()
        spread(a, b, min(int(ours), int(theirs)) - 1)
        with b.here():
            cw.put("large", values(48 * MIB))
        fetch(a, "large", values(48 * MIB))
        assert has_streams(a, b, min(int(ours), int(theirs)) - 1)
        assert "cannot be had" not in a.said() + b.said()  # nobody was refused


def test_the_configuration_says_how_many(tmp_path: Path) -> None:
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        made.acquaint("--read", "*")
        config = tmp_path / "causeway.conf"
        config.write_text("[bridge]\nstreams = 3\n")
        made.start(CAUSEWAY_CONFIG=str(config))
        made.connected()
        spread(a, b, 2)


@pytest.mark.parametrize("number", ["0", "17", "-1", "two", "4x", ""])
def test_a_wrong_number_is_refused(number: str) -> None:
    done = subprocess.run(
        [bridge_support.program("causewayd"), "--foreground", "--streams", number],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "1 to 16" in done.stderr and "streams" in done.stderr


# ---- what becomes of connections


@pytest.mark.parametrize("kind", ["get", "put"])
def test_streams_that_are_cut_give_back_what_they_had(
    cut: tuple[Node, Node, Proxy], kind: str
) -> None:
    a, b, proxy = cut
    spread(a, b, 3)
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
    spread(a, b, 3)  # they come again


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
    spread(a, b, 3)


def test_a_peer_that_stops_in_the_midst_is_found_and_found_again(two: tuple[Node, Node]) -> None:
    a, b = two
    spread(a, b, 3)
    expected = values(200 * MIB, 5)
    told: list[BaseException] = []
    with b.here():
        cw.put("large", expected)
    pid = b.bridge_pid()
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
        os.kill(pid, signal.SIGSTOP)
        try:  # the streams end as the link does
            assert eventually(lambda: not a.sees(b), 20)
            assert eventually(lambda: has_streams(a, b, 0), 20)
        finally:
            os.kill(pid, signal.SIGCONT)
        thread.join(60)
        assert not thread.is_alive()
        assert eventually(lambda: a.sees(b), 20)
    fetch(a, "large", expected)
    spread(a, b, 3)


def test_streams_end_with_their_link_and_come_again(cut: tuple[Node, Node, Proxy]) -> None:
    a, b, proxy = cut
    spread(a, b, 3)
    proxy.cut_oldest()
    assert eventually(lambda: "no other connection any more" in a.said() + b.said())
    assert eventually(lambda: a.sees(b))
    spread(a, b, 3)


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
    spread(a, b, 3)
    expected = values(64 * MIB, 6)
    program = """
import sys, numpy as np, causeway as cw
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
    spread(a, b, 3)
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
    spread(a, b, 3)


# ---- who breaks the rules


@pytest.fixture(scope="module")
def victim() -> Iterator[tuple[Node, Node, Node]]:
    """a and b are good; b knows evil's key, whose broker never runs."""
    with bridge_support.net("a", "b", "evil") as made:
        a, b, evil = made.nodes.values()
        a.knows(b, "--read", "*")
        b.knows(a, "--read", "*", "--write", "*")
        b.knows(evil, "--read", "open/*", address="")
        for node in (a, b):
            node.options = ["--streams", "3"]
            node.start()
        assert eventually(lambda: a.sees(b)), a.said()
        with b.here():
            cw.put("open/large", np.zeros(8 * MIB, "u1"))
            cw.put("secret", np.ones(8 * MIB, "u1"))
        yield a, b, evil


@pytest.fixture(autouse=True)
def no_harm(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test against the victim it serves others as before, by the same bridge."""
    if "victim" not in request.fixturenames:
        yield
        return
    a, b, _ = request.getfixturevalue("victim")
    before = b.bridge_pid()
    yield
    assert b.bridge_pid() == before, b.said()
    fetch(a, "open/large", np.zeros(8 * MIB, "u1"))


def greeted(b: Node, evil: Node, version: int = 2) -> tuple[Raw, int, list[tuple[int, bytes]]]:
    """A link of evil's, the run of b's bridge, and what b said until it answered."""
    link = Raw(evil.keys, b.port, hello(versions=(1, version), run=RUN))
    link.send(frame(raw.PING, id=99))
    said, run = [], 0
    while True:
        size, op, _, id, _, _ = struct.unpack("<IHHQiI", link._exactly(24) or b"")
        body = link._exactly(size - 24) or b""
        if op == raw.HELLO:
            run = struct.unpack_from("<Q", body, 16)[0]
        elif op == raw.PING | raw.REPLY and id == 99:
            return link, run, said
        elif op == raw.PING:
            link.send(frame(raw.PING | raw.REPLY, id=id))
        else:
            said.append((op, body))


def opened(link: Raw) -> int:
    """The number of a source."""
    link.send(asking(raw.OPEN, b"open/large", id=5))
    answer = link.receive()
    assert answer is not None and answer[0] == raw.OPEN | raw.REPLY and answer[2] == 0
    return int(struct.unpack_from("<Q", answer[3])[0])


def read(source: int, offset: int = 0, length: int = 65536, id: int = 1) -> bytes:
    return frame(raw.READ, struct.pack("<QQII", source, offset, length, 0), id=id)


def begin(b: Node, evil: Node, run: int) -> Raw:
    """A stream of evil's that was let in."""
    stream = Raw(evil.keys, b.port, raw.stream(RUN, run))
    answer = stream.receive()
    assert answer is not None and answer[0] == raw.STREAM | raw.REPLY and answer[2] == 0
    stream.send(frame(raw.PING, id=50))
    answer = stream.receive()
    assert answer is not None and answer[:3] == (raw.PING | raw.REPLY, 50, 0)
    return stream


def test_a_peer_of_the_first_version_hears_nothing_of_streams(
    victim: tuple[Node, Node, Node],
) -> None:
    _, b, evil = victim
    link, _, said = greeted(b, evil, 1)
    with link:
        assert said == []
        link.send(frame(raw.STREAMS, struct.pack("<II", 4, 0)))
        assert link.ended()
    link, _, said = greeted(b, evil, 2)
    with link:
        assert said == [(raw.STREAMS, struct.pack("<II", 3, 0))]


def test_a_stream_serves_what_its_peer_may_read(victim: tuple[Node, Node, Node]) -> None:
    _, b, evil = victim
    link, run, _ = greeted(b, evil)
    with link:
        source = opened(link)
        with begin(b, evil, run) as stream:
            stream.send(read(source, 8 * MIB - 65536))
            answer = stream.receive()
            assert answer is not None and answer[2] == 0 and answer[3][24:] == bytes(65536)
        link.close()
    assert eventually(lambda: has_streams(b, evil, 0))


def test_a_source_of_another_peer_is_not_there(victim: tuple[Node, Node, Node]) -> None:
    a, b, evil = victim
    link, run, _ = greeted(b, evil)
    with link, begin(b, evil, run) as stream:
        source = opened(link)
        fetching = threading.Thread(
            target=fetch, args=(a, "secret", np.ones(8 * MIB, "u1"))
        )  # a has a source of b's
        fetching.start()
        for other in range(source + 1, source + 40):
            stream.send(read(other, id=other & 0xFFFF))
            answer = stream.receive()
            assert answer is not None and answer[2] == -116, answer  # ESTALE
        fetching.join(30)


def test_a_stream_needs_an_open_link_of_the_same_two_bridges(
    victim: tuple[Node, Node, Node],
) -> None:
    _, b, evil = victim
    link, run, _ = greeted(b, evil)
    with link:
        for wrong in ((RUN + 1, run), (RUN, run + 1)):
            with Raw(evil.keys, b.port, raw.stream(*wrong)) as stream:
                answer = stream.receive()
                assert answer is not None and answer[2] == -1 and b"open connection" in answer[3]
                assert stream.ended()
    assert eventually(lambda: not b.sees(evil))
    with Raw(evil.keys, b.port, raw.stream(RUN, run)) as stream:
        answer = stream.receive()
        assert answer is not None and answer[2] == -1
        assert stream.ended()


def test_no_more_streams_than_agreed(victim: tuple[Node, Node, Node]) -> None:
    _, b, evil = victim
    link, run, _ = greeted(b, evil)
    with (
        link,
        begin(b, evil, run),
        begin(b, evil, run),
        Raw(evil.keys, b.port, raw.stream(RUN, run)) as third,
    ):
        answer = third.receive()
        assert answer is not None and answer[2] < 0 and b"--streams" in answer[3]
        assert third.ended()


BREACHES = {
    "open": asking(raw.OPEN, b"open/large"),
    "offer": frame(raw.OFFER, bytes(56)),
    "remove": asking(raw.REMOVE, b"open/large"),
    "close": frame(raw.CLOSE, struct.pack("<QII", 1, 0, 0)),
    "cancel": frame(raw.CANCEL, struct.pack("<Q", 1)),
    "changed": frame(raw.CHANGED, struct.pack("<QQII", 1, 1, 2, 0) + b"\0x"),
    "streams": frame(raw.STREAMS, struct.pack("<II", 4, 0)),
    "hello": hello(),
    "stream-again": raw.stream(1, 1),
    "unasked-data": frame(raw.READ | raw.REPLY, struct.pack("<QQII", 1, 0, 8, 0) + bytes(8)),
    "unasked-refusal": frame(raw.READ | raw.REPLY, b"no", status=-2),
    "unasked-pong": frame(raw.PING | raw.REPLY, id=12345),
    "too-long-read": read(1, length=262145),
    "no-op": frame(77),
}


@pytest.mark.parametrize("breach", BREACHES.values(), ids=BREACHES.keys())
def test_all_but_reads_and_pings_is_a_breach(
    victim: tuple[Node, Node, Node], breach: bytes
) -> None:
    _, b, evil = victim
    link, run, _ = greeted(b, evil)
    with link:
        with begin(b, evil, run) as stream:
            stream.send(breach)
            assert stream.ended()
        link.send(frame(raw.PING, id=7))  # the link is as it was
        assert eventually(lambda: has_streams(b, evil, 0)) and b.sees(evil)


def test_reading_past_the_end_is_a_breach(victim: tuple[Node, Node, Node]) -> None:
    _, b, evil = victim
    link, run, _ = greeted(b, evil)
    with link, begin(b, evil, run) as stream:
        stream.send(read(opened(link), 8 * MIB - 1, 2))
        assert stream.ended()


def test_nothing_may_follow_before_the_answer(victim: tuple[Node, Node, Node]) -> None:
    _, b, evil = victim
    link, run, _ = greeted(b, evil)
    with link:
        for more in (frame(raw.PING), read(1), b"\0"):
            with Raw(evil.keys, b.port, raw.stream(RUN, run) + more) as stream:
                assert stream.ended()


def test_who_asks_and_does_not_read_is_cut_off(victim: tuple[Node, Node, Node]) -> None:
    _, b, evil = victim
    link, run, _ = greeted(b, evil)
    with link, begin(b, evil, run) as stream:
        source = opened(link)
        for _ in range(1100):
            stream.send(read(source, 0, 262144))
        assert eventually(lambda: has_streams(b, evil, 0), 20)
