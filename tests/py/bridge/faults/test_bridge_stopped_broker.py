"""A node whose broker stands (SIGSTOP, a debugger, a machine that thrashes): its bridge goes on, and says so.

Runs in `make test-more`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import bridge_raw as raw
import bridge_support
import numpy as np
import pytest
from bridge_liar import about
from bridge_raw import Raw, frame, key
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

STANDS = 8.0  # seconds: more than the 5 after which a peer that is not heard is given up
FIRST_INDEX = 1024  # CW_INDEX_FIRST_SLOTS: with so many names there is another index
PIECE = 64 << 10
LARGE = 16 * PIECE
AGAIN = 8


@pytest.fixture(params=["io_uring", "epoll"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node, Node]]:
    """A node, another that it is connected with, and one with a key that it knows, whose broker never runs."""
    with bridge_support.net("a", "b", "evil") as made:
        a, b, evil = made.nodes.values()
        a.knows(b, "--read", "open/*", "--write", "in/*")
        b.knows(a, "--read", "open/*", "--write", "in/*")
        b.knows(evil, "--read", "open/*", "--write", "in/*", address="")
        by = {"CABLEWAY_BRIDGE_EPOLL": "1"} if request.param == "epoll" else {}
        a.start(**by)
        b.start(**by)
        assert eventually(lambda: a.sees(b) and b.sees(a)), b.said()
        yield a, b, evil


@contextlib.contextmanager
def standing(node: Node) -> Iterator[None]:
    """Its broker is stopped in the block."""
    assert node.process is not None
    pid = node.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        state = Path(f"/proc/{pid}/stat")
        assert eventually(lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "T")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def offer(name: bytes, values: bytes, *, id: int, number: int, flags: int = 0, inside: bool = False) -> bytes:  # fmt: skip
    """A put of bytes, which are inside it or source 3 of ours."""
    meta = about((len(values),))
    hashed = xxh3(values) if inside else 0
    head = struct.pack("<QQQ", 9, number, 0) + struct.pack(
        "<QQQIIII", 0 if inside else 3, len(values), hashed, inside, flags, len(key(name)), len(meta)
    )  # fmt: skip
    return frame(raw.OFFER, head + key(name) + meta + (values if inside else b""), id=id)


def xxh3(values: bytes) -> int:
    """The hash of a small array; of none it is known."""
    assert values == b""
    return 0x2D06800538D394C2


def heartbeats(connection: Raw, seconds: float) -> tuple[int, int, dict[int, tuple[int, bytes]]]:
    """Asks for signs of life for a time: how many were asked for, how many came, and what else was answered."""
    asked = came = 0
    answers: dict[int, tuple[int, bytes]] = {}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        asked += 1
        connection.send(frame(raw.PING, id=100_000 + asked))
        while (answer := connection.receive()) is not None:
            op, id, status, body = answer
            if op == raw.PING | raw.REPLY:
                came += 1
                break
            answers[id] = (status, body)
        if answer is None:
            break
        time.sleep(0.1)
    return asked, came, answers


def open_large(connection: Raw, name: bytes, id: int) -> int:
    """The number by which a large array is read."""
    connection.send(raw.asking(raw.OPEN, name, id=id))
    answer = connection.receive()
    assert answer is not None and answer[1:3] == (id, 0), answer
    return int(struct.unpack("<Q", answer[3][:8])[0])


def read_all(connection: Raw, source: int, id: int) -> bytes:
    """All bytes of an array that was opened, and its end."""
    for i in range(LARGE // PIECE):
        connection.send(
            frame(raw.READ, struct.pack("<QQII", source, i * PIECE, PIECE, 0), id=id + i)
        )
    data = b""
    for i in range(LARGE // PIECE):
        answer = connection.receive()
        assert answer is not None and answer[1:3] == (id + i, 0), answer
        data += answer[3][24:]
    connection.send(frame(raw.CLOSE, struct.pack("<QII", source, 0, 0), id=id + 99))
    answer = connection.receive()
    assert answer is not None and answer[1:3] == (id + 99, 0), answer
    return data


def ask_all(connection: Raw) -> dict[str, int]:
    """One of each kind of request; their numbers."""
    asks = {
        "open-small": raw.asking(raw.OPEN, b"open/small", id=10),
        "open-large": raw.asking(raw.OPEN, b"open/large", id=11, flags=1),
        "names": raw.asking(raw.NAMES, b"open/", id=12),
        "about": raw.asking(raw.NAMES, b"open/small", id=13, flags=1),
        "remove": raw.removing(b"in/gone", id=14, number=1),
        "remove-again": raw.removing(b"in/gone", id=15, number=2, flags=AGAIN),
        "put": offer(b"in/empty", b"", id=16, number=3, inside=True),
        "put-again": offer(b"in/empty2", b"", id=17, number=4, inside=True, flags=AGAIN),
        "wait": raw.asking(raw.WAIT, b"open/later", id=18),
    }
    connection.send(b"".join(asks.values()))
    return {name: 10 + i for i, name in enumerate(asks)}


@pytest.mark.timeout(120)
def test_a_broker_that_stands_mutes_no_bridge(nodes: tuple[Node, Node, Node]) -> None:
    a, b, evil = nodes
    values = np.arange(LARGE, dtype="u4").astype("u1")
    with b.here(), Raw(evil.keys, b.port) as connection:
        cw.put("open/running", values)
        cw.put("in/gone", [1])
        connection.send(frame(raw.PING))
        assert connection.receive() is not None  # before that it may send 4096 bytes
        running = open_large(connection, b"open/running", 5)
        held = cw.zeros(3)
        for i in range(FIRST_INDEX):
            cw.put(f"open/many/{i}", held)
        cw.put("open/small", [1, 2])
        cw.put("open/large", np.zeros(64 << 20, "u1"))  # in memory that the bridge has not seen
        pid = b.bridge_pid()
        with standing(b):
            assert read_all(connection, running, 1000) == values.tobytes()
            numbers = ask_all(connection)
            asked, came, answers = heartbeats(connection, STANDS)
            assert asked == came >= STANDS  # the link is there, and every sign of life came
            refused = {name: answers.get(number) for name, number in numbers.items()}
            print(refused)
            assert refused.pop("wait") is None  # a wait ends when its asker ends it
            for name, answer in refused.items():
                assert answer is not None, name
                status, said = answer
                if status == 0:
                    assert name in ("open-small", "about", "open-large", "names"), name
                else:
                    assert b"broker of b" in said, (name, said)
                unsure = name.startswith(("remove", "put"))
                assert (b"not known" in said) == (unsure and status != 0), (name, said)
            connection.send(raw.removing(b"in/gone", id=30, number=5))
            connection.send(offer(b"in/never", b"", id=31, number=6, inside=True))
            for _ in range(2):  # now it is known, and nothing is begun
                answer = connection.receive()
                assert answer is not None and answer[1] in (30, 31) and answer[2] < 0
                assert b"broker of b" in answer[3] and b"not known" not in answer[3]
        cw.put("open/later", [1])
        while (answer := connection.receive()) is not None and answer[1] != numbers["wait"]:
            pass
        assert answer is not None and answer[2] == 0
        assert eventually(lambda: "in/empty" in cw.names("in/"))  # what was begun is done, once
        assert not {"in/gone", "in/never"} & set(cw.names("in/"))
        assert open_large(connection, b"open/large", 50)
        assert a.sees(b) and b.sees(a) and b.sees(evil)
        assert b.bridge_pid() == pid
    assert "nothing was heard" not in a.said() + b.said(), a.said() + b.said()
    with a.here():
        assert cw.get("//b/open/small").numpy().tolist() == [1, 2]


@pytest.mark.timeout(120)
def test_what_a_broker_is_asked_while_it_stands_is_done_in_order_and_once(
    nodes: tuple[Node, Node, Node],
) -> None:
    _, b, evil = nodes
    with b.here(), Raw(evil.keys, b.port) as connection:
        connection.send(frame(raw.PING))
        assert connection.receive() is not None
        for round in range(20):
            numbers = iter(range(100 * round + 1, 100 * round + 100))
            with standing(b):
                asks = [
                    offer(b"in/x", b"", id=10, number=next(numbers), inside=True),
                    raw.removing(b"in/x", id=11, number=next(numbers)),
                    offer(b"in/x", b"", id=12, number=next(numbers), inside=True),
                    offer(b"in/x", b"", id=13, number=next(numbers), inside=True),
                    raw.removing(b"in/x", id=14, number=(again := next(numbers))),
                ]
                connection.send(b"".join(asks))
                assert heartbeats(connection, 0.01)[:2] == (1, 1)
            answers = dict(answer[1:3] for _ in asks if (answer := connection.receive()))
            assert answers == {10: 0, 11: 0, 12: 0, 13: -errno.EEXIST, 14: 0}
            # Asked again over and over, while it stands: it was done, and is not done to the next.
            cw.put("in/x", [1])
            with standing(b):
                for id in range(20, 30):
                    connection.send(raw.removing(b"in/x", id=id, number=again, flags=AGAIN))
                assert heartbeats(connection, 0.01)[:2] == (1, 1)
            answers = dict(answer[1:3] for _ in range(10) if (answer := connection.receive()))
            assert answers == dict.fromkeys(range(20, 30), 0)
            assert cw.get("in/x").numpy().tolist() == [1]
            cw.remove("in/x")


@pytest.mark.timeout(120)
def test_a_put_that_is_being_read_goes_on_while_the_broker_stands(
    nodes: tuple[Node, Node, Node],
) -> None:
    _, b, evil = nodes
    size = 4 << 20
    with b.here(), Raw(evil.keys, b.port) as connection:
        connection.send(frame(raw.PING))
        assert connection.receive() is not None
        connection.send(offer(b"in/large", bytes(size), id=9, number=1))
        first = connection.receive(requests=True)
        assert first is not None and first[0] == raw.READ  # there is memory for it
        with standing(b):
            got, request = 0, first
            while request[0] == raw.READ:
                length = struct.unpack("<QQII", request[3])[2]
                connection.send(
                    frame(raw.READ | raw.REPLY, request[3] + bytes(length), id=request[1])
                )
                got += length
                following = connection.receive(requests=True)
                assert following is not None
                request = following
            assert got == size and request[0] == raw.CLOSE  # all of it has come
    with b.here():
        assert "in/large" not in cw.names("in/")


@pytest.mark.timeout(120)
def test_calls_for_a_node_whose_broker_stands_end_and_those_for_others_go_on(
    nodes: tuple[Node, Node, Node],
) -> None:
    a, b, _ = nodes
    with b.here():
        cw.put("open/large", np.zeros(64 << 20, "u1"), keep=True)
        cw.put("in/x", [1], keep=True)
    with a.here(), standing(b), concurrent.futures.ThreadPoolExecutor() as pool:
        calls = [
            pool.submit(cw.get, "//b/open/large", timeout=None),
            pool.submit(cw.put, "//b/in/y", np.zeros(100)),
            pool.submit(cw.remove, "//b/in/x"),
        ]
        for call in calls:
            with pytest.raises(cw.RemoteError, match="the broker of b"):
                call.result(30)
        assert a.sees(b)

    def goes_on() -> bool:  # its bridge hears of it some moments later
        with contextlib.suppress(cw.RemoteError):
            return bool(cw.get("//b/open/large").nbytes == 64 << 20)
        return False

    with a.here():
        assert eventually(goes_on)
    with b.here():
        assert eventually(lambda: cw.names("in/") == ["in/y"])
