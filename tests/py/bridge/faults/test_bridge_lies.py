"""A peer whose answers are lies: whoever asked gets an error, nothing of it is seen, and no memory is taken for it."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import time
from collections.abc import Iterator

import bridge_raw as raw
import bridge_support
import pytest
from bridge_liar import (
    Liar,
    about,
    good_and_evil,
    hash_of,
    known,
    lied_to,
    no,
    opened,
    visitor,
)
from bridge_raw import Raw, frame
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

FRAME_MAX = 32768
READ_MAX = 262144
SENTENCE_MAX = 512


@pytest.fixture(scope="module", params=["io_uring", "epoll"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    """A node, and one with a key that it knows, whose broker never runs."""
    with good_and_evil(request.param) as both:
        yield both


OPENED: dict[str, tuple[bytes, bool]] = {  # the reply, and whether it breaks the form
    "2^63-bytes": (opened(1 << 63, about((1 << 62,))), True),
    "one-more-than-2^48": (opened((1 << 48) + 1, about(((1 << 48) + 1,))), True),
    "2^47-bytes": (opened(1 << 47, about((1 << 47,))), False),
    "shape-of-more-bytes": (opened(4, about((5,)), b"abcd", source=0, inside=1), True),
    "shape-of-2^63": (opened(4, about((-(1 << 63),)), b"abcd", source=0, inside=1), True),
    "wrong-hash": (opened(4, about((4,)), b"abcd", source=0, inside=1, hash=1), False),
    "no-data": (opened(4, about((4,)), b"", source=0, inside=1), True),
    "inside-too-large": (opened(20000, about((20000,)), bytes(20000), source=0, inside=1), True),
    "inside-and-source": (opened(4, about((4,)), b"abcd", source=5, inside=1), True),
    "neither": (opened(4, about((4,)), source=0), True),
    "short": (bytes(47), True),
    "no-metadata": (opened(4, b"", b"abcd", source=0, inside=1), True),
}


@pytest.mark.parametrize("lie", OPENED)
def test_an_answer_to_a_get_that_is_a_lie(nodes: tuple[Node, Node], lie: str) -> None:
    b, evil = nodes
    body, breach = OPENED[lie]

    def answer(op: int, id: int, asked: bytes) -> bytes:
        return frame(op | raw.REPLY, body, id=id) if op == raw.OPEN else no(op, id, asked)

    lied_to(b, evil, answer, lambda: cw.get(f"//evil/{lie}"), breach)
    assert f"//evil/{lie}" not in b.command("ls", "--all").stdout


@pytest.mark.parametrize(
    ("size", "breach"), [(1 << 63, True), ((1 << 48) + 1, True), (1 << 47, False), (5, False)]
)
def test_a_list_of_names_that_is_a_lie(nodes: tuple[Node, Node], size: int, breach: bool) -> None:
    b, evil = nodes
    body = opened(size, b"")
    if size == 5:  # the last name does not end
        body = opened(5, b"", b"a\0b\0c", source=0, inside=1, hash=hash_of(b"a\0b\0c"))

    def answer(op: int, id: int, asked: bytes) -> bytes:
        return frame(op | raw.REPLY, body, id=id) if op == raw.NAMES else no(op, id, asked)

    lied_to(b, evil, answer, lambda: cw.names("//evil/"), breach)


@pytest.mark.parametrize("more", [0, 1])
def test_a_sentence_of_the_maximum_length_and_one_more(nodes: tuple[Node, Node], more: int) -> None:
    b, evil = nodes
    sentence = b"because " * (SENTENCE_MAX // 8)

    def answer(op: int, id: int, _: bytes) -> bytes:
        return frame(op | raw.REPLY, sentence + b"!" * more, id=id, status=-errno.ENOENT)

    said = lied_to(b, evil, answer, lambda: cw.get("//evil/longest"), bool(more))
    assert ("because because" in said) == (not more)


@pytest.mark.parametrize("more", [0, 1])
def test_a_piece_of_the_maximum_length_and_one_more(nodes: tuple[Node, Node], more: int) -> None:
    b, evil = nodes
    size = 2 * READ_MAX
    key = raw.key(b"in/piece")
    offer = struct.pack(
        "<QQQQQQIIII", 9, 99 + more, 0, 3, size, 0, 0, 0, len(key), len(about((size,)))
    )
    with Raw(evil.keys, b.port) as connection:
        known(connection, b, evil)
        connection.send(frame(raw.OFFER, offer + key + about((size,)), id=9))
        asked = connection.receive(requests=True)
        assert asked is not None and asked[0] == raw.READ
        assert struct.unpack("<QQII", asked[3])[2] == READ_MAX
        whole = frame(raw.READ | raw.REPLY, asked[3] + bytes(READ_MAX + more), id=asked[1])
        connection.send(whole)
        if more:
            while connection.receive(requests=True) is not None:
                pass
            assert "a frame with op 32772 of 262193 bytes" in b.said()
        else:
            connection.send(frame(raw.PING, id=77))
            while (answer := connection.receive(requests=True)) is not None and answer[1] != 77:
                pass
            assert answer is not None and answer[0] == raw.PING | raw.REPLY


@pytest.mark.parametrize("more", [0, 1])
def test_a_frame_of_the_maximum_length_and_one_more(nodes: tuple[Node, Node], more: int) -> None:
    """No request can mean anything that is so long: up to the maximum it is read, and then refused for what it says; one
    more is refused for its length, before a byte of it is read."""
    b, evil = nodes
    body = struct.pack("<II", 4, 0) + bytes(FRAME_MAX - 24 - 8 + more)
    with Raw(evil.keys, b.port) as connection:
        known(connection, b, evil)
        whole = frame(raw.OPEN, body)
        assert len(whole) == FRAME_MAX + more
        connection.send(whole[:24])
        if not more:
            connection.send(frame(raw.OPEN, body)[24:])
        assert connection.ended()
    assert eventually(
        lambda: ("a frame with op 3 of 32769 bytes" if more else "a frame whose key") in b.said()
    ), b.said()


def size_told(visitor: socket.socket) -> int:
    """The size of the array that a client on the fast path is told of."""
    status, *_, size = struct.unpack("<iIQIIQQQ", visitor.recv(65536)[:48])
    assert status == 0
    return int(size)


def test_who_asks_after_a_change_was_told_is_not_given_what_was_opened_before(
    nodes: tuple[Node, Node],
) -> None:
    b, evil = nodes
    old, hash_of_old, hash_of_none = 40_000, 0x79A75C7BDD7C6F62, 0x2D06800538D394C2  # of zeros
    with Raw(evil.keys, b.port) as connection, contextlib.ExitStack() as visitors:
        known(connection, b, evil)

        def asked(op: int) -> tuple[int, bytes]:
            got = connection.receive(requests=True)
            assert got is not None and got[0] == op, got
            return got[1], got[3]

        first = visitors.enter_context(visitor(b, b"x"))
        id, _ = asked(raw.OPEN)
        connection.send(frame(raw.OPEN | raw.REPLY, opened(old, about((old,))), id=id))
        read, place = asked(raw.READ)
        key = raw.key(b"x")
        connection.send(frame(raw.CHANGED, struct.pack("<QQII", 1, 1, len(key), 0) + key))
        connection.send(frame(raw.PING, id=77))
        assert connection.receive() is not None  # it was read
        late = [visitors.enter_context(visitor(b, b"x")) for _ in range(2)]
        assert b.sees(evil)  # they were heard
        late.pop().close()  # one goes again
        assert b.sees(evil)
        connection.send(frame(raw.READ | raw.REPLY, place + bytes(old), id=read))
        id, _ = asked(raw.CLOSE)
        whole = struct.pack("<Q", hash_of_old)
        connection.send(frame(raw.CLOSE | raw.REPLY, whole, id=id))
        assert size_told(first) == old
        id, _ = asked(raw.OPEN)
        none = opened(0, about((0,)), source=0, inside=1, hash=hash_of_none)
        connection.send(frame(raw.OPEN | raw.REPLY, none, id=id))
        assert size_told(late[0]) == 0


def test_what_changed_while_it_came_gets_no_name_that_nobody_needs(
    nodes: tuple[Node, Node],
) -> None:
    b, evil = nodes
    old, hash_of_old, hash_of_none = 40_000, 0x79A75C7BDD7C6F62, 0x2D06800538D394C2  # of zeros
    opens: set[bytes] = set()

    def answer(op: int, id: int, body: bytes) -> bytes:
        if op == raw.OPEN and body[8:] in opens:
            none = opened(0, about((0,)), source=0, inside=1, hash=hash_of_none)
            return frame(op | raw.REPLY, none, id=id)
        if op == raw.OPEN:
            opens.add(body[8:])
            return frame(op | raw.REPLY, opened(old, about((old,))), id=id)
        if op == raw.READ:  # all of it, and before: it is something else now
            changed = b"".join(
                frame(raw.CHANGED, struct.pack("<QQII", 1, 1, len(key), 0) + key) for key in opens
            )
            return changed + frame(op | raw.REPLY, body + bytes(old), id=id)
        return frame(op | raw.REPLY, struct.pack("<Q", hash_of_old), id=id)

    with b.here(), Raw(evil.keys, b.port) as connection:
        known(connection, b, evil)
        with Liar(connection, answer):
            before = 0
            for i in range(200):
                first = cw.get(f"//evil/new{i}").nbytes
                assert first in (old, 0)  # asked before; 0: held up here until it had gone again
                before += first == old
                time.sleep(i % 5 / 1000)  # the name would stand by now
                assert cw.get(f"//evil/new{i}").nbytes == 0
                if before == 5:
                    break
            assert before
