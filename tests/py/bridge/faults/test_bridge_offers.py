"""What a peer offers and does not send: it costs memory for one array at a time, and holds up nobody else's."""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Iterator

import bridge_raw as raw
import bridge_support
import pytest
from bridge_liar import about, good_and_evil
from bridge_raw import Raw, frame, key
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

MIB = 1 << 20
LARGE = 520 * MIB  # two of them are more than CWB_INCOMING_PUTS_MAX
SMALL = 4 * MIB  # CWB_INCOMING_PUT_SMALL
OWN = 64 * MIB  # CWB_INCOMING_PUTS_OWN


@pytest.fixture(params=["io_uring", "epoll"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    """A node, and one with a key that it knows, whose broker never runs."""
    with good_and_evil(request.param) as both:
        yield both


def offer(number: int, size: int) -> bytes:
    """A put of an array whose source has the number."""
    name = key(b"in/%d" % number)
    head = struct.pack("<QQQ", 9, number, 0) + struct.pack(
        "<QQQIIII", number, size, 0, 0, 1, len(name), len(about((size,)))
    )
    return frame(raw.OFFER, head + name + about((size,)), id=number)


class Reads:
    """What the other side asks for."""

    def __init__(self, connection: Raw) -> None:
        self.connection = connection
        self.sources: dict[int, list[int]] = {}  # ids of READs
        self.answers: dict[int, int] = {}  # of offers

    def take(self) -> None:
        """One frame."""
        asked = self.connection.receive(requests=True)
        assert asked is not None
        op, id, status, body = asked
        if op == raw.READ:
            self.sources.setdefault(struct.unpack_from("<Q", body)[0], []).append(id)
        elif op == raw.OFFER | raw.REPLY:
            self.answers[id] = status
        else:
            assert op in (raw.CLOSE, raw.PING | raw.REPLY), op
            if op == raw.CLOSE:
                self.connection.send(frame(op | raw.REPLY, bytes(8), id=id))

    def until(self, source: int) -> None:
        """Bytes of this source are asked for."""
        while source not in self.sources:
            self.take()

    def refuse(self, source: int) -> None:
        """They do not come; the offer is answered."""
        for id in self.sources[source]:
            self.connection.send(frame(raw.READ | raw.REPLY, b"no", id=id, status=-errno.EDQUOT))
        while source not in self.answers:
            self.take()
        assert self.answers[source] < 0


def taken(b: Node) -> int:
    """Memory that the broker counts."""
    return int(json.loads(b.command("status", "--json").stdout)["gauges"]["bytes"])


@pytest.mark.timeout(120)
def test_memory_for_offers_is_taken_for_one_after_another(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    before = taken(b)
    with b.here(), Raw(evil.keys, b.port) as connection:
        reads = Reads(connection)
        connection.send(b"".join(offer(number, LARGE) for number in range(1, 21)))
        reads.until(1)
        connection.send(offer(30, 100_000))
        reads.until(30)  # it waits for no large one
        assert set(reads.sources) == {1, 30}
        assert taken(b) - before < LARGE + 100 * MIB
        cw.put("mine", bytes(MIB))  # others are served
        reads.refuse(1)
        reads.until(2)  # in the order in which they came
        assert 3 not in reads.sources
        # What was refused is closed by a helper, and the broker counts it until then.
        assert eventually(lambda: taken(b) - before < LARGE + 100 * MIB), taken(b)
        assert cw.names() == ["mine"]
        # What its bridge, started anew, does not offer again is not wanted any more.
        with Raw(evil.keys, b.port, raw.hello(run=8)) as anew:
            reads = Reads(anew)
            anew.send(offer(40, LARGE))
            reads.until(40)
            assert set(reads.sources) <= {2, 40}  # 2 was under way


def test_small_ones_have_a_measure_of_their_own(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    with Raw(evil.keys, b.port) as connection:
        reads = Reads(connection)
        count = OWN // SMALL
        connection.send(b"".join(offer(number, SMALL) for number in range(1, 2 * count)))
        connection.send(offer(100, SMALL + 1))
        reads.until(100)
        for number in range(1, count + 1):
            reads.until(number)
        assert set(reads.sources) == {*range(1, count + 1), 100}
        reads.refuse(7)
        reads.until(count + 1)
        assert count + 2 not in reads.sources


def test_one_peers_offers_wait_for_no_other_peers(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    with bridge_support.net("c") as made:
        (c,) = made.nodes.values()
        b.knows(c, "--write", "in/*", address="")
        assert eventually(lambda: b.sees(c, "away"))
        with Raw(evil.keys, b.port) as one, Raw(c.keys, b.port) as two:
            reads, others = Reads(one), Reads(two)
            one.send(b"".join(offer(number, LARGE) for number in range(1, 5)))
            reads.until(1)
            two.send(offer(1, LARGE))
            others.until(1)
            assert set(reads.sources) == {1}
