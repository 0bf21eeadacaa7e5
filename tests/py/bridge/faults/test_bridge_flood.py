"""Floods: thousands of connections that show no key, what they cost, that all are let go, and that a peer gets in
meanwhile; and what one peer may have of connections, lists and open arrays.

Runs in `make test-more`: thousands of connections take minutes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import bridge_raw as raw
import bridge_support
import numpy as np
import pytest
from bridge_raw import Raw, frame
from bridge_support import KEPT_BY_SANITIZER, Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

MANY = 10_000
UNKNOWN_MAX = 256  # CWB_UNKNOWN_MAX
OPEN_MAX = 1024  # CWB_REQUESTS_MAX: arrays that a peer has open
OURS_BYTES = 4096  # of our memory for one that has not shown its key


@pytest.fixture(params=["io_uring", "epoll"])
def node(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    """A node that has just begun to listen, and one whose key it knows and whose broker never runs."""
    with bridge_support.net("b", "peer") as made:
        b, peer = made.nodes.values()
        b.knows(peer, "--read", "*", address="")
        b.start(**({"CABLEWAY_BRIDGE_EPOLL": "1"} if request.param == "epoll" else {}))
        with b.here():
            cw.put("open", [7], keep=True)
        yield b, peer


@pytest.fixture
def descriptors() -> Iterator[int]:
    """How many connections this process may open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield before[1] - 500 if before[1] != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def opened(pid: int) -> int:
    """How many descriptors a process has."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def dirty_bytes(pid: int) -> int:
    """What memory of its own a process has."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.split("Private_Dirty:")[1].split()[0]) * 1024


def connect(port: int, number: int) -> socket.socket:
    """From one of ten addresses, so that no one address runs out of ports."""
    plain = socket.socket()
    plain.bind((f"127.0.0.{10 + number % 10}", 0))
    plain.connect(("127.0.0.1", port))
    return plain


def ended(plain: socket.socket) -> bool:
    """Whether the other side ends it."""
    plain.settimeout(30)
    try:
        while plain.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def served(b: Node, peer: Node) -> bool:
    """Whether a peer gets in, and what it asks for. Whoever has not yet shown its key may have to give way, as the
    oldest of too many: then a peer tries again, as here."""
    for _ in range(20):
        try:
            with Raw(peer.keys, b.port) as connection:
                connection.send(raw.asking(raw.OPEN, b"open"))
                answer = connection.receive()
                if answer is not None and answer[2] == 0:
                    return True
        except OSError:
            pass
    return False


@pytest.mark.timeout(120)
def test_10_000_connections_that_say_nothing(node: tuple[Node, Node], descriptors: int) -> None:
    b, peer = node
    pid = b.bridge_pid()
    count = min(MANY, descriptors)
    assert served(b, peer)  # what the first one to ask brings about stays: a slab is open
    assert eventually(lambda: not b.sees(peer))
    before, bytes_before = opened(pid), dirty_bytes(pid)
    silent = []
    try:
        for number in range(count):
            silent.append(connect(b.port, number))
            if number % 2000 == 1999:
                assert served(b, peer)
                # What is more than may be unknown at once is closed.
                assert eventually(lambda: opened(pid) - before <= UNKNOWN_MAX + 10), opened(pid)
        # 256 are kept at once, and what they cost is theirs for 2 s.
        grown = dirty_bytes(pid) - bytes_before
        assert grown < UNKNOWN_MAX * OURS_BYTES + (1 << 20) + KEPT_BY_SANITIZER, grown
        assert all(ended(plain) for plain in silent)
        assert eventually(lambda: opened(pid) <= before + 2), opened(pid)  # the peer's, perhaps
    finally:
        for plain in silent:
            plain.close()
    assert served(b, peer) and b.bridge_pid() == pid
    if count < MANY:
        pytest.skip(f"RLIMIT_NOFILE allows {count} connections, not {MANY}")


SAYING: dict[str, Callable[[Node], bytes]] = {
    "nothing": lambda _: b"",
    "part-of-a-hello": lambda _: b"\x16\x03\x01\x07\xf0\x01\x00\x07\xec\x03\x03" + bytes(2000),
}


@pytest.mark.parametrize("saying", SAYING)
def test_who_has_not_shown_its_key_costs_4_kib(node: tuple[Node, Node], saying: str) -> None:
    b, peer = node
    pid = b.bridge_pid()
    assert served(b, peer)  # what the first connection alone needs is there
    assert eventually(lambda: not b.sees(peer))
    count = 250
    data = SAYING[saying](peer)
    before = opened(pid)
    grown = None
    for _ in range(10):  # all must be there at once, and 2 s after its begin each goes
        bytes_before = dirty_bytes(pid)
        silent = [connect(b.port, number) for number in range(count)]
        for plain in silent:
            plain.sendall(data)
        if eventually(
            lambda: opened(pid) - before >= count - 5,  # the peer's may still be closing
            1.5,
        ):
            grown = dirty_bytes(pid) - bytes_before
            if opened(pid) - before < count - 5:
                grown = None
        for plain in silent:
            assert ended(plain)
            plain.close()
        assert eventually(lambda: opened(pid) <= before + 5)
        if grown is not None:
            break
    assert grown is not None, "the connections were never there at once"
    print(f"{saying}: {grown / count:.0f} bytes each")
    assert grown <= count * OURS_BYTES + KEPT_BY_SANITIZER, grown / count


def test_who_began_a_handshake_is_let_go_and_leaves_nothing(node: tuple[Node, Node]) -> None:
    b, peer = node
    pid = b.bridge_pid()
    hello = raw.client_hello(peer.keys)
    sizes = []
    for _ in range(3):
        before = opened(pid)
        silent = [connect(b.port, number) for number in range(250)]
        for plain in silent:
            plain.sendall(hello)
        for plain in silent:
            assert ended(plain)  # it answers in TLS, and ends it 2 s later
            plain.close()
        assert eventually(lambda n=before: opened(pid) <= n + 2)
        sizes.append(dirty_bytes(pid))
    print([size // 1024 for size in sizes])
    assert sizes[-1] - sizes[0] < (2 << 20) + KEPT_BY_SANITIZER, sizes  # the same memory each time
    assert served(b, peer)
    with Raw(peer.keys, b.port) as connection:
        connection.send(frame(raw.PING))
        assert connection.receive() is not None


def test_a_peer_that_greets_nobody_has_no_more_than_64_connections(
    node: tuple[Node, Node],
) -> None:
    b, evil = node
    said = "connections without a HELLO"
    before = b.said().count(said)
    with contextlib.ExitStack() as crowd:
        for _ in range(70):
            crowd.enter_context(Raw(evil.keys, b.port, b""))
        assert eventually(lambda: b.said().count(said) >= before + 6, 30)


def test_lists_of_names_that_are_not_read_are_bounded(node: tuple[Node, Node]) -> None:
    b, evil = node
    with b.here():
        held = cw.zeros(1)
        names = [f"open/{'x' * 100}/{'y' * 80}{i}" for i in range(1000)]
        for name in names:
            cw.put(name, held)
        with Raw(evil.keys, b.port) as connection:
            sources, size = [], 0
            for i in range(500):
                connection.send(raw.asking(raw.NAMES, b"open/", id=100 + i))
                answer = connection.receive()
                assert answer is not None
                if answer[2]:
                    break
                sources.append(answer[3][:8])
                size += int.from_bytes(answer[3][8:16], "little")
            assert answer[2] == -errno.EDQUOT and b"lists of names" in answer[3]
            assert 64 << 20 <= size < 65 << 20
            for source in sources:  # they are given back
                connection.send(frame(raw.CLOSE, source + struct.pack("<II", 1, 0), id=7))
                assert connection.receive() is not None
            connection.send(raw.asking(raw.NAMES, b"open/", id=8))
            answer = connection.receive()
            assert answer is not None and answer[2] == 0
        for name in names:
            cw.remove(name)


WAITS_MAX = 65536  # CWB_WAITS_MAX
LISTS_BYTES = 64 << 20  # CWB_LISTS_BYTES
OUT_MAX = 128 << 20  # CWB_OUT_MAX
SOCKET_BYTES = 16 << 20  # what the kernel may take of one connection's answers, at both ends


def test_waits_of_a_peer_are_bounded_and_go_with_its_link(node: tuple[Node, Node]) -> None:
    b, evil = node
    for _ in range(2):  # the second time they are as many as they were at first
        with Raw(evil.keys, b.port) as connection:
            connection.send(frame(raw.PING))
            assert connection.receive() is not None  # before that it may send 4096 bytes
            for begin in range(0, WAITS_MAX, 4096):
                ids = range(100 + begin, 100 + begin + 4096)
                connection.send(b"".join(raw.asking(raw.WAIT, b"never", id=i) for i in ids))
            connection.send(frame(raw.PING, id=5))
            answer = connection.receive()  # all were taken
            assert answer is not None and answer[1:3] == (5, 0), answer
            connection.send(raw.asking(raw.WAIT, b"never", id=11))
            answer = connection.receive()
            assert answer is not None and answer[1:3] == (11, -errno.EDQUOT), answer
            assert b"65536" in answer[3] and b"waits" in answer[3]
            connection.send(raw.asking(raw.WAIT, b"open", id=12))  # also what is answered at once
            answer = connection.receive()
            assert answer is not None and answer[1:3] == (12, -errno.EDQUOT), answer


WAITS_ALL_MAX = 524288  # CWB_WAITS_ALL_MAX
WAITS_OWN = 1024  # CWB_WAITS_OWN
WAIT_BYTES = 320  # of memory, for one of a short name


def waits(connection: Raw, count: int, others: list[Raw]) -> None:
    """So many, which are taken."""
    for begin in range(0, count, 4096):
        ids = range(100 + begin, 100 + min(begin + 4096, count))
        connection.send(b"".join(raw.asking(raw.WAIT, b"never", id=i) for i in ids))
        for other in others:
            other.send(frame(raw.PING, id=4))  # it is there
    connection.send(frame(raw.PING, id=5))
    while (answer := connection.receive()) is not None and answer[1] != 5:
        assert answer[0] == raw.PING | raw.REPLY, answer


def refusal(connection: Raw) -> bytes:
    """What is said of one wait more; b"" if it is taken."""
    connection.send(raw.asking(raw.WAIT, b"never", id=11) + frame(raw.PING, id=6))
    said = b""
    while (answer := connection.receive()) is not None and answer[1] != 6:
        if answer[1] == 11:
            assert answer[2] == -errno.EDQUOT
            said = answer[3]
    assert answer is not None
    return said


@pytest.mark.timeout(180)
@pytest.mark.parametrize("engine", ["io_uring", "epoll"])
def test_waits_are_bounded_for_each_peer_and_for_all(engine: str) -> None:
    names = [f"peer{i}" for i in range(WAITS_ALL_MAX // WAITS_MAX + 1)]
    with bridge_support.net("b", *names) as made, contextlib.ExitStack() as crowd:
        b, *peers = made.nodes.values()
        for peer in peers:
            b.knows(peer, "--read", "*", address="")
        b.start(**({"CABLEWAY_BRIDGE_EPOLL": "1"} if engine == "epoll" else {}))
        pid = b.bridge_pid()
        links: list[Raw] = []
        for peer in peers:
            links.append(crowd.enter_context(Raw(peer.keys, b.port)))
            links[-1].send(frame(raw.PING))
            assert links[-1].receive() is not None
        before = dirty_bytes(pid)
        for link in links[:3]:  # what one has is not taken from the others
            waits(link, WAITS_MAX, links)
            assert b"65536" in refusal(link)
        grown = dirty_bytes(pid) - before
        assert grown < 3 * WAITS_MAX * WAIT_BYTES + KEPT_BY_SANITIZER, grown / 3 / WAITS_MAX
        for link in links[3:-1]:
            waits(link, WAITS_MAX, links)
        waits(links[-1], WAITS_OWN, links)  # however many others have
        said = refusal(links[-1])
        assert str(WAITS_ALL_MAX).encode() in said and b"CWB_WAITS_ALL_MAX" in said, said
        links[0].close()  # its waits go with it
        assert eventually(lambda: not refusal(links[-1]))
        assert b"65536" in refusal(links[1])  # the others' stay
        assert b.bridge_pid() == pid


def test_what_is_said_in_one_go_is_answered_in_order(node: tuple[Node, Node]) -> None:
    """Far more than one turn of the loop has time for, and than is kept of it."""
    b, peer = node
    count = 300_000
    with Raw(peer.keys, b.port) as connection:
        connection.send(frame(raw.PING, id=1))
        assert connection.receive() is not None

        def says() -> None:
            for begin in range(10, 10 + count, 10_000):
                ids = range(begin, begin + 10_000)
                connection.send(b"".join(frame(raw.PING, id=i) for i in ids))
            while not read.wait(1):  # to read all may take longer than a peer may be silent
                connection.send(frame(raw.PING, id=8))

        read = threading.Event()
        connection.answers_pings = False  # two threads do not write at once
        saying = threading.Thread(target=says)
        saying.start()
        for id in range(10, 10 + count):
            answer = connection.receive()
            assert answer is not None and answer[:3] == (raw.PING | raw.REPLY, id, 0)
        read.set()
        saying.join(60)
        connection.send(frame(raw.PING, id=7))  # what comes later is read, too
        while (answer := connection.receive()) is not None and answer[1] == 8:
            pass
        assert answer is not None and answer[1] == 7


WATCHES_MAX = 65536  # CWB_WATCHES_MAX


def test_who_watches_one_name_too_many_is_told_of_its_oldest(node: tuple[Node, Node]) -> None:
    b, peer = node
    with contextlib.ExitStack() as stack:
        stack.enter_context(b.here())
        held = cw.zeros(1)
        for i in range(WATCHES_MAX + 1):
            cw.put(f"w/{i}", held, keep=True)
        # Behind these: they may take longer than a connection may be silent.
        connection = stack.enter_context(Raw(peer.keys, b.port))

        def watches(numbers: range | list[int]) -> list[bytes]:
            """Opens these, and gives the names of which it is told."""
            for i in numbers:
                connection.send(raw.asking(raw.OPEN, b"w/%d" % i, id=100 + i, flags=1))
            left, told, asked = len(numbers), [], False
            while (
                True
            ):  # those for which a helper must map something are answered later than others
                if not left and not asked:
                    connection.send(frame(raw.PING, id=5))
                    asked = True
                answer = connection.receive(requests=True)
                assert answer is not None
                if answer[0] == raw.CHANGED:
                    told.append(answer[3][25:])
                elif answer[0] == raw.OPEN | raw.REPLY:
                    assert answer[2] == 0
                    left -= 1
                elif answer[1] == 5:
                    return told

        connection.send(frame(raw.PING))
        assert connection.receive() is not None
        assert watches([0]) == []  # what is needed is mapped: the next are answered in their order
        for begin in range(0, WATCHES_MAX, 512):
            assert watches(range(begin, begin + 512)) == []
        assert watches(range(0, 512)) == []  # it watches them already
        assert watches([WATCHES_MAX]) == [b"w/0"]
        assert watches([0]) == [b"w/1"]
        cw.remove("w/2")
        answer = connection.receive(requests=True)
        assert answer is not None and answer[0] == raw.CHANGED and answer[3][25:] == b"w/2"
        assert watches([1]) == []  # there is room for one
        assert watches([2 + 1, WATCHES_MAX]) == []
        for i in range(3, 3 + 2000):  # more than the broker names at once
            cw.remove(f"w/{i}")
        told: set[bytes] = set()
        while len(told) < 2000:
            answer = connection.receive(requests=True)
            assert answer is not None and answer[0] == raw.CHANGED
            told.add(answer[3][25:])
        assert told == {b"w/%d" % i for i in range(3, 3 + 2000)}


@pytest.mark.timeout(300)
def test_a_list_of_more_than_64_mib_is_refused_by_who_would_send_it() -> None:
    """As a list of all; those that begin with something can be had."""
    longest = 200
    count = LISTS_BYTES // (longest + 1) + 1
    with bridge_support.net("b", "peer") as made:
        b, peer = made.nodes.values()
        b.knows(peer, "--read", "*", address="")
        b.start()
        with b.here():
            held = cw.zeros(1)
            for i in range(count):
                cw.put(f"{i:07}".ljust(longest, "x"), held)
            with Raw(peer.keys, b.port) as connection:
                connection.send(raw.asking(raw.NAMES, b"", id=8))
                answer = connection.receive()
                assert answer is not None and answer[2] == -errno.EDQUOT
                assert b"more than 67108864 bytes of names" in answer[3]
                assert b"begin with something" in answer[3]
                connection.send(raw.asking(raw.NAMES, b"000001", id=9))
                answer = connection.receive()
                assert answer is not None and answer[1:3] == (9, 0)
                assert int.from_bytes(answer[3][8:16], "little") == 10 * (longest + 1)


def test_what_a_peer_does_not_read_goes_with_its_link(node: tuple[Node, Node]) -> None:
    b, evil = node
    with b.here():
        cw.put("sixteen", cw.zeros(16 << 10, "u1"), keep=True)
    count = 6
    asks = (OUT_MAX // count + SOCKET_BYTES) // (16 << 10)  # of one: far from the bound alone
    with contextlib.ExitStack() as crowd:
        for _ in range(count):  # a newer connection is the link, and the older ones end
            connection = crowd.enter_context(Raw(evil.keys, b.port))
            connection.send(frame(raw.PING))
            assert connection.receive() is not None
            connection.send(raw.asking(raw.OPEN, b"sixteen", id=9))
            assert connection.receive() is not None  # mapped: the next are answered at once
            for begin in range(0, asks, 100):
                ask = (raw.asking(raw.OPEN, b"sixteen", id=100 + begin + i) for i in range(100))
                connection.send(b"".join(ask))
            connection.send(frame(raw.PING, id=50))
            for _ in range(2):  # it was let go on
                assert connection.receive() is not None
        assert "answers were not read" not in b.said()
    assert served(b, evil)


def test_who_asks_on_and_reads_no_answer_is_let_go(node: tuple[Node, Node]) -> None:
    b, peer = node
    with b.here():
        cw.put("inside", np.zeros(16_000, "u1"), keep=True)
    with Raw(peer.keys, b.port) as connection:
        connection.send(frame(raw.PING))
        assert connection.receive() is not None  # before that it may send 4096 bytes
        connection.send(raw.asking(raw.OPEN, b"inside", id=9))
        assert (
            connection.receive() is not None
        )  # what is needed is mapped: the next are answered at once
        for begin in range(10, 20_010, 100):  # 320 MB of answers
            connection.send(
                b"".join(raw.asking(raw.OPEN, b"inside", id=begin + i) for i in range(100))
            )
        assert eventually(lambda: "answers were not read" in b.said(), 60)
    assert served(b, peer)


def test_what_a_bridge_left_open_goes_when_it_was_started_anew(node: tuple[Node, Node]) -> None:
    b, peer = node
    said = b""

    def opens(connection: Raw, id: int) -> bool:
        nonlocal said
        connection.send(raw.asking(raw.OPEN, b"large", id=id))
        answer = connection.receive()
        assert answer is not None and answer[1] == id
        said = answer[3]
        return answer[2] == 0

    with b.here():
        cw.put("large", np.zeros(1_000_000, "u1"), keep=True)
    with Raw(peer.keys, b.port, raw.hello(run=7)) as connection:
        refused = next(id for id in range(10, 2000) if not opens(connection, id))
        assert refused == 10 + OPEN_MAX and b"must close some first" in said, (refused, said)
    with Raw(peer.keys, b.port, raw.hello(run=8)) as connection:
        ids = iter(range(10, 100_000))
        assert eventually(lambda: opens(connection, next(ids)), 30)
