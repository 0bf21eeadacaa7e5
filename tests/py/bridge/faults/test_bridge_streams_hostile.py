"""Streams of the bridge whose other side breaks the rules: it alone is cut off, and reads nothing that is not its own."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator

import bridge_raw as raw
import bridge_support
import numpy as np
import pytest
from bridge_raw import Raw, asking, begun_stream, frame, greeted, hello
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
            cw.put("open/sixteen", np.zeros(16 << 10, "u1"), keep=True)
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


def opened(link: Raw) -> int:
    """The number of a source."""
    link.send(asking(raw.OPEN, b"open/large", id=5))
    answer = link.receive()
    assert answer is not None and answer[0] == raw.OPEN | raw.REPLY and answer[2] == 0
    return int(struct.unpack_from("<Q", answer[3])[0])


def read(source: int, offset: int = 0, length: int = 65536, id: int = 1) -> bytes:
    return frame(raw.READ, struct.pack("<QQII", source, offset, length, 0), id=id)


def test_a_peer_is_told_how_many_streams_there_are(victim: tuple[Node, Node, Node]) -> None:
    _, b, evil = victim
    link, _, said = greeted(evil.keys, b.port, RUN)
    with link:
        assert said == [(raw.STREAMS, struct.pack("<II", 4, 0))]  # the link among them


def test_a_stream_serves_what_its_peer_may_read(victim: tuple[Node, Node, Node]) -> None:
    _, b, evil = victim
    link, run, _ = greeted(evil.keys, b.port, RUN)
    with link:
        source = opened(link)
        with begun_stream(evil.keys, b.port, RUN, run) as stream:
            stream.send(read(source, 8 * MIB - 65536))
            answer = stream.receive()
            assert answer is not None and answer[2] == 0 and answer[3][24:] == bytes(65536)
        link.close()
    assert eventually(lambda: has_streams(b, evil, 0))


def test_a_source_of_another_peer_is_not_there(victim: tuple[Node, Node, Node]) -> None:
    a, b, evil = victim
    link, run, _ = greeted(evil.keys, b.port, RUN)
    with link, begun_stream(evil.keys, b.port, RUN, run) as stream:
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
    link, run, _ = greeted(evil.keys, b.port, RUN)
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
    link, run, _ = greeted(evil.keys, b.port, RUN)
    with (
        link,
        begun_stream(evil.keys, b.port, RUN, run),
        begun_stream(evil.keys, b.port, RUN, run),
        begun_stream(evil.keys, b.port, RUN, run),
        Raw(evil.keys, b.port, raw.stream(RUN, run)) as fourth,
    ):
        answer = fourth.receive()
        assert answer is not None and answer[2] < 0 and b"--streams" in answer[3]
        assert fourth.ended()


BREACHES = {
    "open": asking(raw.OPEN, b"open/large"),
    "offer": frame(raw.OFFER, bytes(64)),
    "remove": raw.removing(b"open/large"),
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
    link, run, _ = greeted(evil.keys, b.port, RUN)
    with link:
        with begun_stream(evil.keys, b.port, RUN, run) as stream:
            stream.send(breach)
            assert stream.ended()
        link.send(frame(raw.PING, id=7))  # the link is as it was
        assert eventually(lambda: has_streams(b, evil, 0)) and b.sees(evil)


def test_reading_past_the_end_is_a_breach(victim: tuple[Node, Node, Node]) -> None:
    _, b, evil = victim
    link, run, _ = greeted(evil.keys, b.port, RUN)
    with link, begun_stream(evil.keys, b.port, RUN, run) as stream:
        stream.send(read(opened(link), 8 * MIB - 1, 2))
        assert stream.ended()


def test_nothing_may_follow_before_the_answer(victim: tuple[Node, Node, Node]) -> None:
    _, b, evil = victim
    link, run, _ = greeted(evil.keys, b.port, RUN)
    with link:
        for more in (frame(raw.PING), read(1), b"\0"):
            with Raw(evil.keys, b.port, raw.stream(RUN, run) + more) as stream:
                assert stream.ended()


def test_who_asks_and_does_not_read_is_cut_off(victim: tuple[Node, Node, Node]) -> None:
    _, b, evil = victim
    link, run, _ = greeted(evil.keys, b.port, RUN)
    with link, begun_stream(evil.keys, b.port, RUN, run) as stream:
        source = opened(link)
        for _ in range(1100):
            stream.send(read(source, 0, 262144))
        assert eventually(lambda: has_streams(b, evil, 0), 20)


OUT_MAX = 128 * MIB  # CWB_OUT_MAX
KERNEL_BYTES = 16 * MIB  # at most of one connection's answers, at both ends
TLS_BYTES = 22  # of a record


def leaves_unread(connection: Raw, ask: bytes, answer_bytes: int, least: int, others: list[Raw]) -> None:  # fmt: skip
    """Asks for so many bytes of answers that at least so many lie at the other side, and reads none."""
    count = (least + KERNEL_BYTES) // answer_bytes + 1
    for begin in range(0, count, 4096):
        connection.send(ask * min(4096, count - begin))
        for other in others:
            other.send(frame(raw.PING))  # it is there


def test_what_is_not_read_is_bounded_over_the_link_and_its_streams_together(
    victim: tuple[Node, Node, Node],
) -> None:
    """No connection has half of the bound, and all together have more: the one that asks is cut, with the reason."""
    _, b, evil = victim
    said = "answers were not read over all of its connections, of which there may be 134217728"
    before = b.said().count(said)
    link, run, _ = greeted(evil.keys, b.port, RUN)
    refusal = read(1)
    with contextlib.ExitStack() as crowd:
        crowd.enter_context(link)
        streams = [crowd.enter_context(begun_stream(evil.keys, b.port, RUN, run)) for _ in range(3)]
        streams[0].send(refusal)
        answer = streams[0].receive()
        assert answer is not None and answer[2] == -116  # there is no such source
        small, large = 24 + len(answer[3]) + TLS_BYTES, 16 << 10
        link.send(asking(raw.OPEN, b"open/sixteen", id=70))
        inside = link.receive()
        assert inside is not None and inside[2] == 0
        everybody = [link, *streams]
        leaves_unread(link, asking(raw.OPEN, b"open/sixteen", id=71), large, 40 * MIB, everybody)
        for stream in streams[:2]:
            leaves_unread(stream, refusal, small, 16 * MIB, everybody)
            assert b.said().count(said) == before  # 72 to 120 MiB
        leaves_unread(streams[2], refusal, small, OUT_MAX - 72 * MIB, everybody)
        assert eventually(lambda: b.said().count(said) > before, 60)
        (line,) = [line for line in b.said().splitlines() if said in line][before : before + 1]
        assert "stream from" in line or "connection from" in line
    assert eventually(lambda: has_streams(b, evil, 0))
