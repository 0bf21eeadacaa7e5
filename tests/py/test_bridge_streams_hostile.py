"""Streams of the bridge whose other side breaks the rules: it alone is cut off, and reads nothing that is not its own."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import bridge_raw as raw
import bridge_support
import numpy as np
import pytest
from bridge_raw import Raw, asking, frame, hello
from bridge_support import Node
from conftest import eventually
from streams_support import MIB, fetch, has_streams

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

RUN = 7  # of evil's bridge


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
            # Kept, since the tests may take minutes.
            cw.put("open/large", np.zeros(8 * MIB, "u1"), keep=True)
            cw.put("secret", np.ones(8 * MIB, "u1"), keep=True)
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


def greeted(b: Node, evil: Node) -> tuple[Raw, int, list[tuple[int, bytes]]]:
    """A link of evil's, the run of b's bridge, and what b said until it answered."""
    link = Raw(evil.keys, b.port, hello(run=RUN))
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


def test_a_peer_is_told_how_many_streams_there_are(victim: tuple[Node, Node, Node]) -> None:
    _, b, evil = victim
    link, _, said = greeted(b, evil)
    with link:
        assert said == [(raw.STREAMS, struct.pack("<II", 4, 0))]  # the link among them


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
        begin(b, evil, run),
        Raw(evil.keys, b.port, raw.stream(RUN, run)) as fourth,
    ):
        answer = fourth.receive()
        assert answer is not None and answer[2] < 0 and b"--streams" in answer[3]
        assert fourth.ended()


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
