"""Lists of names between nodes: what a peer calls a name is looked at before anybody here sees it, and what a peer asks for
costs others nothing."""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Callable, Iterator

import bridge_raw as raw
import bridge_support
import pytest
from bridge_liar import Liar, good_and_evil, hash_of, known, no, opened
from bridge_raw import Raw, frame
from bridge_support import Node

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

LIES = (
    b"../../etc/passwd", b"\x1b]0;owned\x07\x1b[2Jx", b"y" * 10_000, b"bad\xff", b"", b"/rooted", b"a//b",
    b"//other/name", b"end/", b"two\nlines", b"n" * 201,
)  # fmt: skip
LISTS_BYTES = 64 << 20  # CWB_LISTS_BYTES
REQUESTS_MAX = 1024  # CWB_REQUESTS_MAX
NAMES = 10_000
LISTS = 500
TRUE = ("fine", "open/x", "täglich/größe", "n" * 200)


@pytest.fixture(scope="module", params=["io_uring", "epoll"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    """A node, and one with a key that it knows, whose broker never runs."""
    with good_and_evil(request.param) as both:
        yield both


def listing(
    names: tuple[bytes, ...], about: bytes = b"3\t1\t0\t|u1\t3"
) -> Callable[[int, int, bytes], bytes]:
    """Answers NAMES with this list, and tells this of each name."""
    data = b"".join(name + b"\0" for name in names)

    def answer(op: int, id: int, body: bytes) -> bytes:
        if op != raw.NAMES:
            return no(op, id, body)
        told = about + b"\0" if struct.unpack("<II", body[:8])[1] else data
        whole = opened(len(told), b"", told, source=0, inside=1, hash=hash_of(told))
        return frame(op | raw.REPLY, whole, id=id)

    return answer


def test_what_is_no_name_in_a_peers_list_is_left_out_and_said_once(
    nodes: tuple[Node, Node],
) -> None:
    b, evil = nodes
    names = (*LIES, *(name.encode() for name in TRUE))
    with b.here(), Raw(evil.keys, b.port) as connection:
        known(connection, b, evil)
        with Liar(connection, listing(names)):
            for _ in range(3):
                assert cw.names("//evil/") == sorted(TRUE)
            assert cw.names("//evil/open/") == ["open/x"]  # what was not asked for is left out, too
            rows = json.loads(b.command("ls", "--json", "//evil/").stdout)
            assert [row["name"] for row in rows] == sorted(f"//evil/{name}" for name in TRUE)
            assert "owned" not in b.command("ls", "//evil/").stdout
    said = [line for line in b.said().splitlines() if "are no names" in line]
    assert len(said) == 1 and f"{len(LIES)} of {len(names)}" in said[0] and "evil" in said[0]
    assert "\x1b" not in b.said()


@pytest.mark.parametrize("dtype", [b"\x1b[2J", b"|u1\xff", b"no dtype", b"|u1\t-1", b"a" * 5000])
def test_what_a_peer_tells_of_a_name_is_checked(nodes: tuple[Node, Node], dtype: bytes) -> None:
    b, evil = nodes
    with b.here(), Raw(evil.keys, b.port) as connection:
        known(connection, b, evil)
        with Liar(connection, listing((b"x",), b"3\t1\t0\t" + dtype + b"\t3")):
            told = b.command("ls", "//evil/", check=False)
    assert told.returncode != 0 and "malformed" in told.stderr
    assert "\x1b" not in told.stdout + told.stderr


def test_a_peers_sentence_moves_no_cursor_and_begins_no_line(
    nodes: tuple[Node, Node],
) -> None:
    b, evil = nodes

    def answer(op: int, id: int, _: bytes) -> bytes:
        sentence = b"gone\x1b[2J\nbroker: all is well \xff\xc3\xb6"
        return frame(op | raw.REPLY, sentence, id=id, status=-errno.ENOENT)

    with b.here(), Raw(evil.keys, b.port) as connection:
        known(connection, b, evil)
        with Liar(connection, answer):
            with pytest.raises(cw.NameNotFound) as raised:
                cw.get("//evil/x")
            assert "gone?[2J?broker: all is well ?ö" in str(raised.value)
            told = b.command("stat", "//evil/x", check=False)
            assert "gone?[2J?broker" in told.stderr and "\x1b" not in told.stderr


def test_a_list_that_no_node_makes_is_not_fetched(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes

    def answer(op: int, id: int, body: bytes) -> bytes:
        if op != raw.NAMES:
            return no(op, id, body)
        return frame(op | raw.REPLY, opened(LISTS_BYTES + 1, b""), id=id)

    with b.here(), Raw(evil.keys, b.port) as connection:
        known(connection, b, evil)
        with (
            Liar(connection, answer) as liar,
            pytest.raises(cw.RemoteError, match="at most 67108864"),
        ):
            cw.names("//evil/")
        assert raw.READ not in liar.seen


@pytest.mark.parametrize("verb", ["names", "about"])
def test_a_list_of_names_whose_hash_is_another_is_not_believed(
    nodes: tuple[Node, Node], verb: str
) -> None:
    b, evil = nodes
    told = b"fine\0" if verb == "names" else b"3\t1\t0\t|u1\t3\0"

    def answer(op: int, id: int, body: bytes) -> bytes:
        if op != raw.NAMES:
            return no(op, id, body)
        whole = opened(len(told), b"", told, source=0, inside=1, hash=hash_of(told) ^ 1)
        return frame(op | raw.REPLY, whole, id=id)

    with b.here(), Raw(evil.keys, b.port) as connection:
        known(connection, b, evil)
        with Liar(connection, answer):
            if verb == "names":
                with pytest.raises(cw.RemoteError, match="not those that evil hashed"):
                    cw.names("//evil/")
            else:
                told_here = b.command("stat", "//evil/x", check=False)
                assert told_here.returncode and "not those that evil hashed" in told_here.stderr


@pytest.fixture(scope="module", params=["io_uring", "epoll"])
def full(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node, Node]]:
    """A node with so many names that a list of them takes a while, and two that it knows, whose brokers never run."""
    with bridge_support.net("b", "evil", "good") as made:
        b, evil, good = made.nodes.values()
        b.knows(evil, address="")
        b.knows(good, "--read", "open/*", address="")
        b.start(**({"CABLEWAY_BRIDGE_EPOLL": "1"} if request.param == "epoll" else {}))
        with b.here():
            held = cw.zeros(1)
            for i in range(NAMES):
                cw.put(f"open/{i}", held)
            yield b, evil, good


def asking(connection: Raw, count: int) -> None:
    """Asks for so many lists, and then whether anybody is there; before that it may send no more than 4096 bytes."""
    connection.send(frame(raw.PING, id=1))
    assert connection.receive() is not None
    asked = [raw.asking(raw.NAMES, b"open/", id=10 + i) for i in range(count)]
    connection.send(b"".join(asked) + frame(raw.PING, id=2))


def test_lists_of_names_hold_up_nothing_else(full: tuple[Node, Node, Node]) -> None:
    b, evil, good = full
    pid = b.bridge_pid()
    with Raw(evil.keys, b.port) as bad, Raw(good.keys, b.port) as connection:
        connection.send(frame(raw.PING, id=1))
        assert connection.receive() is not None
        asking(bad, LISTS)
        connection.send(raw.asking(raw.NAMES, b"open/99", id=3))
        connection.send(raw.asking(raw.OPEN, b"open/0", id=4))
        told = {
            answer[1]: answer for answer in (connection.receive(), connection.receive()) if answer
        }
        assert told[4][2] == 0 and told[3][2] == 0 and b"open/99\0" in told[3][3]
        bad.send(frame(raw.PING, id=5))
        order = []
        while len(order) < LISTS + 2:
            answer = bad.receive()
            assert answer is not None and answer[2] == 0
            order.append(answer[1])
        assert order.index(2) < LISTS // 2  # it was asked after all lists
        assert order.index(5) < LISTS // 2  # and this after the other peer's list was there
        assert sorted(order) == [2, 5, *range(10, 10 + LISTS)]
    assert b.bridge_pid() == pid


def test_who_asks_for_more_lists_at_once_than_was_agreed_is_cut(
    full: tuple[Node, Node, Node],
) -> None:
    b, evil, _ = full
    pid = b.bridge_pid()
    with Raw(evil.keys, b.port) as bad:
        asking(bad, 8 * REQUESTS_MAX)
        while bad.receive() is not None:
            pass
    assert "evil ended: more than 1024 requests at once" in b.said() and b.bridge_pid() == pid


def test_lists_that_are_not_wanted_any_more_are_not_made(
    full: tuple[Node, Node, Node],
) -> None:
    b, evil, good = full
    pid = b.bridge_pid()
    with Raw(good.keys, b.port) as connection:
        with Raw(evil.keys, b.port) as bad:
            asking(bad, LISTS)
            for i in range(LISTS):
                bad.send(frame(raw.CANCEL, struct.pack("<Q", 10 + i), id=5000 + i))
            answers = [bad.receive() for _ in range(LISTS + 1)]
            cancelled = [answer for answer in answers if answer and answer[2] == -errno.ECANCELED]
            assert len(cancelled) > LISTS // 2
            asking(bad, LISTS)
        connection.send(raw.asking(raw.NAMES, b"open/77", id=3))
        answer = connection.receive()
        assert answer is not None and answer[1:3] == (3, 0)
    assert b.bridge_pid() == pid
