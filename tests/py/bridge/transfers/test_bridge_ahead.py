"""OPENs that bring READs with them: an array of some pieces comes in one round trip, and nothing beyond what was asked."""

from __future__ import annotations

import concurrent.futures
import errno
import functools
import itertools
import socket
import struct
from collections.abc import Iterator

import bridge_raw as raw
import bridge_support
import numpy as np
import pytest
from bridge_liar import Liar, about, good_and_evil, known, lied_to, no, opened, visitor
from bridge_raw import Raw, asking, frame
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

PIECE = 262144  # the agreed read_max
MOST = 4
SIZES = [20_000, PIECE, PIECE + 1, 3 * PIECE, MOST * PIECE, MOST * PIECE + 1, 6_000_000]


@pytest.fixture(scope="module", params=["io_uring", "epoll"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    """A node, and one with a key that it knows, whose broker never runs."""
    with good_and_evil(request.param) as (b, evil):
        with b.here():
            cw.put("open/small", np.ones(100, "u1"), keep=True)
            for size in SIZES:
                cw.put(f"open/{size}", values(size), keep=True)
        yield b, evil


@functools.cache
def values(size: int) -> np.ndarray:
    """The array of a size."""
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


def ahead(count: int) -> int:
    """The flags of an OPEN that brings so many READs."""
    return count << 8


def pieces(size: int) -> int:
    """How many an array has."""
    return -(-size // PIECE)


def read_of(source: int, size: int, number: int) -> bytes:
    """The READ of a piece."""
    return struct.pack("<QQII", source, number * PIECE, min(PIECE, size - number * PIECE), 0)


def next_of(connection: Raw) -> tuple[int, int, int, bytes]:
    """The next answer."""
    answer = connection.receive()
    assert answer is not None
    return answer


def next_request(connection: Raw) -> tuple[int, int, int, bytes]:
    """The next that the other side asks for."""
    request = connection.receive(requests=True)
    assert request is not None
    return request


def next_frame(connection: Raw) -> tuple[int, int, int, bytes]:
    """The next that comes, a PING included."""
    frame = connection.receive(requests=True, pings=True)
    assert frame is not None
    return frame


def weight(op: int, body: bytes) -> int:
    """For how many requests under way one counts."""
    ahead = asked_ahead(body) if op == raw.OPEN else 0
    return ahead + 2 if ahead else 1


def answered(connection: Raw, size: int, count: int, id: int = 10) -> tuple[int, int]:
    """An OPEN with so many READs is answered by so many pieces and, if these are all, the hash; source, and hash or 0."""
    connection.send(asking(raw.OPEN, b"open/%d" % size, id=id, flags=ahead(count)))
    op, its, status, body = next_of(connection)
    assert (op, its, status) == (raw.OPEN | raw.REPLY, id, 0)
    source, found, *_, inside, come, _ = struct.unpack("<QQQQQHHI", body[:48])
    assert (found, inside, come) == (size, 0, min(count, pieces(size)))
    for i in range(come):
        op, its, status, body = next_of(connection)
        assert (op, its, status) == (raw.READ | raw.REPLY, id + 1 + i, 0)
        assert body[:24] == read_of(source, size, i)
        assert body[24:] == values(size)[i * PIECE : (i + 1) * PIECE].tobytes()
    if come < pieces(size):
        return source, 0
    op, its, status, body = next_of(connection)
    assert (op, its, status) == (raw.CLOSE | raw.REPLY, id + 1 + come, 0)
    return source, struct.unpack("<Q", body)[0]


def pulled(connection: Raw, size: int) -> int:
    """The hash that a CLOSE brings of an array that was opened and read without haste."""
    source, _ = answered(connection, size, 0, id=1000)
    for i in range(pieces(size)):
        connection.send(frame(raw.READ, read_of(source, size, i), id=1001 + i))
        assert next_of(connection)[1] == 1001 + i
    connection.send(frame(raw.CLOSE, struct.pack("<QII", source, 0, 0), id=2000))
    return int(struct.unpack("<Q", next_of(connection)[3])[0])


def silent(connection: Raw) -> bool:
    """Nothing more comes without being asked."""
    connection.send(frame(raw.PING, id=77_777))
    return next_of(connection)[:2] == (raw.PING | raw.REPLY, 77_777)


# ---- a peer that asks


@pytest.mark.parametrize("count", [1, 2, MOST])
@pytest.mark.parametrize("size", SIZES)
def test_what_was_asked_ahead_comes_and_no_more(
    nodes: tuple[Node, Node], size: int, count: int
) -> None:
    b, evil = nodes
    with Raw(evil.keys, b.port) as connection:
        source, hash = answered(connection, size, count)
        assert silent(connection)
        connection.send(frame(raw.READ, read_of(source, size, 0), id=3))
        whole = count >= pieces(size)
        status = next_of(connection)[2]
        assert status == (-errno.ESTALE if whole else 0)  # closed, or to be read on
        if whole:
            assert hash == pulled(connection, size)


def test_the_rest_of_a_longer_array_is_read_as_ever(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    size = 6_000_000
    with Raw(evil.keys, b.port) as connection:
        source, _ = answered(connection, size, MOST)
        for i in range(MOST, pieces(size)):
            connection.send(frame(raw.READ, read_of(source, size, i), id=100 + i))
            assert (
                next_of(connection)[3][24:] == values(size)[i * PIECE : (i + 1) * PIECE].tobytes()
            )
        connection.send(frame(raw.CLOSE, struct.pack("<QII", source, 0, 0), id=9))
        hash = struct.unpack("<Q", next_of(connection)[3])[0]
        assert hash == pulled(connection, size)


def test_nothing_follows_what_is_inside_or_not_there(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    with Raw(evil.keys, b.port) as connection:
        connection.send(asking(raw.OPEN, b"open/small", id=5, flags=ahead(MOST)))
        _, id, status, body = next_of(connection)
        assert (id, status) == (5, 0)
        assert struct.unpack("<HH", body[40:44]) == (1, 0)
        assert silent(connection)
        connection.send(asking(raw.OPEN, b"open/never", id=15, flags=ahead(MOST)))
        assert next_of(connection)[1:3] == (15, -errno.ENOENT)
        assert silent(connection)


BREACHES = {
    "one-more": asking(raw.OPEN, b"open/20000", flags=ahead(MOST + 1)),
    "many-more": asking(raw.OPEN, b"open/20000", flags=ahead(255)),
    "beyond-the-number": asking(raw.OPEN, b"open/20000", flags=1 << 16),
    "wait": asking(raw.WAIT, b"open/20000", flags=ahead(1)),
    "names": asking(raw.NAMES, b"open/", flags=ahead(1)),
    "remove": raw.removing(b"open/20000", flags=ahead(1)),
    "an-id-under-way": asking(raw.WAIT, b"open/never", id=12)
    + asking(raw.OPEN, b"open/20000", id=10, flags=ahead(1)),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_asking_ahead_for_what_cannot_be_is_a_breach(nodes: tuple[Node, Node], breach: str) -> None:
    b, evil = nodes
    pid = b.bridge_pid()
    with Raw(evil.keys, b.port) as connection:
        connection.send(BREACHES[breach])
        assert connection.ended()
    assert b.bridge_pid() == pid


def test_who_gives_up_meanwhile_hears_all_the_same(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    size = MOST * PIECE
    with Raw(evil.keys, b.port) as connection:
        for turn in range(20):
            id = 10 + 100 * turn
            connection.send(asking(raw.OPEN, b"open/%d" % size, id=id, flags=ahead(MOST)))
            _, _, _, body = next_of(connection)
            (source,) = struct.unpack("<Q", body[:8])
            connection.send(frame(raw.CLOSE, struct.pack("<QII", source, 1, 0), id=id + 50))
            heard = {next_of(connection)[1] for _ in range(MOST + 2)}
            assert heard == {*range(id + 1, id + MOST + 2), id + 50}
        assert silent(connection)


def test_who_asks_ahead_and_takes_nothing_is_cut_off(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    with Raw(evil.keys, b.port) as connection:
        for i in range(1500):
            connection.send(
                asking(raw.OPEN, b"open/%d" % (MOST * PIECE), id=10 * i, flags=ahead(MOST))
            )
        while connection.receive() is not None:
            pass


def test_who_goes_in_the_middle_leaves_nothing(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    pid = b.bridge_pid()
    for _ in range(20):
        with Raw(evil.keys, b.port) as connection:
            connection.send(asking(raw.OPEN, b"open/6000000", id=10, flags=ahead(MOST)))
            connection.send(
                asking(raw.OPEN, b"open/%d" % (MOST * PIECE), id=100, flags=ahead(MOST))
            )
            next_of(connection)
    with Raw(evil.keys, b.port) as connection:
        answered(connection, MOST * PIECE, MOST)
    assert b.bridge_pid() == pid


# ---- a peer that answers


def asked_ahead(body: bytes) -> int:
    """How many READs came with an OPEN."""
    return int(struct.unpack("<II", body[:8])[1]) >> 8


def come(opening: int, size: int, number: int, **other: int) -> bytes:
    """A piece as the answer to the READ that came with the OPEN of that id; or something like it."""
    what = {"source": 5, "at": number * PIECE, "length": min(PIECE, size - number * PIECE), **other}
    place = struct.pack("<QQII", what["source"], what["at"], what["length"], 0)
    data = values(size).tobytes()[number * PIECE :][: what["length"]].ljust(what["length"], b"\0")
    return frame(raw.READ | raw.REPLY, place + data, id=what.get("id", opening + 1 + number))


def closed(id: int, hash: int, status: int = 0) -> bytes:
    """The answer to a CLOSE."""
    body = struct.pack("<Q", hash) if status == 0 else b"no hash"
    return frame(raw.CLOSE | raw.REPLY, body, id=id, status=status)


def test_a_get_of_some_pieces_asks_once(nodes: tuple[Node, Node]) -> None:
    """Where memory for it is ready: else it reads what came before it had some, as of any array."""
    b, evil = nodes
    size = 3 * PIECE
    with Raw(evil.keys, b.port) as connection:
        known(connection, b, evil)
        hash = pulled(connection, size)

        def answer(op: int, id: int, body: bytes) -> bytes:
            if op == raw.READ:
                return come(0, size, int(struct.unpack("<Q", body[8:16])[0]) // PIECE, id=id)
            if op == raw.CLOSE:
                return closed(id, hash)
            assert op == raw.OPEN, op
            assert asked_ahead(body) == MOST
            first = frame(op | raw.REPLY, opened(size, about((size,)), ahead=3), id=id)
            # in any order
            return first + come(id, size, 2) + come(id, size, 0) + come(id, size, 1) + closed(id + 4, hash)  # fmt: skip

        def asked(turn: int) -> list[int]:
            before = len(liar.seen)
            assert (cw.get(f"//evil/once{turn}").numpy() == values(size)).all()
            return [op for op in liar.seen[before:] if not op & raw.REPLY]

        with b.here(), Liar(connection, answer) as liar:
            turns = itertools.count()
            assert eventually(lambda: asked(next(turns)) == [raw.OPEN])


SIZE = 3 * PIECE


def whole(id: int) -> bytes:
    """All pieces."""
    return b"".join(come(id, SIZE, i) for i in range(3))


def reply(id: int, count: int = 3, **other: int) -> bytes:
    """The answer to the OPEN."""
    return frame(raw.OPEN | raw.REPLY, opened(SIZE, about((SIZE,)), ahead=count, **other), id=id)


LIES = {  # what follows an OPEN, and whether it is a breach
    "more-pieces-than-asked": (lambda id: reply(id, 5), True),
    "more-pieces-than-there-are": (lambda id: reply(id, 4), True),
    "pieces-behind-what-is-inside": (
        lambda id: frame(
            raw.OPEN | raw.REPLY, opened(4, about((4,)), b"abcd", source=0, inside=1, ahead=1), id=id
        ),
        True,
    ),
    "a-piece-before-the-answer": (lambda id: come(id, SIZE, 0) + reply(id), True),
    "one-more-piece": (lambda id: reply(id, 2) + come(id, SIZE, 0) + come(id, SIZE, 1) + come(id, SIZE, 2), True),
    "a-piece-twice": (lambda id: reply(id) + come(id, SIZE, 0) * 2, True),
    "another-place": (lambda id: reply(id) + come(id, SIZE, 0, at=PIECE), True),
    "another-source": (lambda id: reply(id) + come(id, SIZE, 0, source=6), True),
    "another-length": (lambda id: reply(id) + come(id, SIZE, 0, length=PIECE - 1), True),
    "another-id": (lambda id: reply(id) + come(id, SIZE, 0, id=id + 9), True),
    "the-open's-id": (lambda id: reply(id) + come(id, SIZE, 0, id=id), True),
    "the-hash-at-once": (lambda id: reply(id) + closed(id + 4, 1) + whole(id), True),
    "the-hash-before-the-last": (
        lambda id: reply(id) + come(id, SIZE, 0) + come(id, SIZE, 1) + closed(id + 4, 1),
        True,
    ),
    "no-hash-before-the-last": (
        lambda id: reply(id) + come(id, SIZE, 0) + closed(id + 4, 1, -errno.ESTALE),
        True,
    ),
    "a-hash-of-not-all": (lambda id: reply(id, 1) + come(id, SIZE, 0) + closed(id + 2, 1), True),
    "a-wrong-hash": (lambda id: reply(id) + whole(id) + closed(id + 4, 1), False),
    "no-hash": (lambda id: reply(id) + whole(id) + closed(id + 4, 1, -errno.EOWNERDEAD), False),
    "no-bytes": (
        lambda id: reply(id)
        + b"".join(
            frame(raw.READ | raw.REPLY, b"none", id=id + 1 + i, status=-errno.EDQUOT) for i in range(3)
        )
        + closed(id + 4, 1, -errno.EDQUOT),
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_with_more_or_other_than_was_asked(nodes: tuple[Node, Node], lie: str) -> None:
    b, evil = nodes
    follows, breach = LIES[lie]

    def answer(op: int, id: int, body: bytes) -> bytes:
        return follows(id) if op == raw.OPEN and asked_ahead(body) else no(op, id, body)

    lied_to(b, evil, answer, lambda: cw.get(f"//evil/{lie}"), breach)
    assert f"//evil/{lie}" not in b.command("ls", "--all").stdout


def test_who_asked_for_nothing_ahead_gets_nothing_ahead(nodes: tuple[Node, Node]) -> None:
    """A second try asks for no pieces with the OPEN."""
    b, evil = nodes

    def answer(op: int, id: int, body: bytes) -> bytes:
        if op != raw.OPEN:
            return no(op, id, body)
        if asked_ahead(body):
            return reply(id) + whole(id) + closed(id + 4, 1)
        return reply(id) + whole(id)

    lied_to(b, evil, answer, lambda: cw.get("//evil/again"), True)


def test_what_comes_for_a_client_that_has_gone_is_the_next_one_s(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    with Raw(evil.keys, b.port) as connection:
        known(connection, b, evil)
        hash = pulled(connection, SIZE)
        first = visitor(b, b"left")
        op, id, *_ = connection.receive(requests=True) or (0, 0)
        assert op == raw.OPEN
        connection.send(reply(id) + come(id, SIZE, 0))
        first.close()
        assert b.sees(evil)  # it was heard
        connection.send(come(id, SIZE, 1) + come(id, SIZE, 2) + closed(id + 4, hash))
        with b.here():
            assert (cw.get("//evil/left").numpy() == values(SIZE)).all()


@pytest.mark.parametrize("kept", [True, False])
def test_what_was_asked_ahead_and_cut_is_asked_for_again(
    nodes: tuple[Node, Node], kept: bool
) -> None:
    """Of the same source; where that has ended, of another, with nothing ahead."""
    b, evil = nodes
    read: list[int] = []
    with b.here(), concurrent.futures.ThreadPoolExecutor() as pool:
        with Raw(evil.keys, b.port) as connection:
            known(connection, b, evil)
            hash = pulled(connection, SIZE)
            told = pool.submit(cw.get, f"//evil/cut{kept}")
            op, id, _, body = next_request(connection)
            assert (op, asked_ahead(body)) == (raw.OPEN, MOST)
            connection.send(reply(id) + come(id, SIZE, 0) + come(id, SIZE, 1)[:100_000])
            connection.socket.shutdown(socket.SHUT_WR)
            while connection.receive() is not None:
                pass

        def answer(op: int, id: int, body: bytes) -> bytes:
            if op == raw.OPEN and asked_ahead(body):  # for who asked after the cut
                return reply(id) + whole(id) + closed(id + 4, hash)
            if op == raw.OPEN:
                assert not kept
                return reply(id, 0, source=6)
            if op == raw.CLOSE:
                return closed(id, hash)
            assert op == raw.READ
            source, at, _, _ = struct.unpack("<QQII", body)
            if source == 5 and not kept:
                return frame(raw.READ | raw.REPLY, b"it ended", id=id, status=-errno.ESTALE)
            read.append(at // PIECE)
            return come(id - 1 - at // PIECE, SIZE, at // PIECE, source=source)

        with Raw(evil.keys, b.port) as connection, Liar(connection, answer):
            assert (told.result(60).numpy() == values(SIZE)).all()
    # Piece 0 is here, unless there was no memory for it when it came.
    assert sorted(read) == [0, 1, 2] or (kept and sorted(read) == [1, 2])


def test_what_an_open_gives_back_is_used_whole(nodes: tuple[Node, Node]) -> None:
    """What came with an OPEN counts as requests under way; where none of it is answered, as many others go."""
    b, evil = nodes
    most = 16
    with Raw(evil.keys, b.port, raw.hello(requests=most)) as connection:
        known(connection, b, evil)
        connection.answers_pings = False  # each answer lets one more go
        asked = [visitor(b, b"credit%d" % i) for i in range(40)]
        # All that may go has come: the bridge heard of the visitors one by one.
        under_way, with_pieces = 0, []
        while under_way < most:
            op, id, _, body = next_frame(connection)
            assert op in (raw.OPEN, raw.PING)
            if op == raw.OPEN and asked_ahead(body):
                with_pieces.append(id)
            under_way += weight(op, body)
        assert with_pieces and len(with_pieces) * (MOST + 2) < most
        for id in with_pieces:
            connection.send(no(raw.OPEN, id, b""))
        # Less a PING a second, which waits for its answer, too. If only the OPENs themselves were given back, as many others
        # would come as there were of these.
        given_back = 0
        while given_back < len(with_pieces) * (MOST + 2) * 2 // 3:
            op, _, _, body = next_frame(connection)
            assert op in (raw.OPEN, raw.PING)
            given_back += weight(op, body) if op == raw.OPEN else 0
        for one in asked:
            one.close()
