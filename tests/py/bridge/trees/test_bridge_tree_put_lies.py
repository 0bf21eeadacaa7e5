"""A peer that lies about a tree that it puts: it is refused, nothing of it is seen, and nothing of it stays."""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Iterator

import bridge_raw as raw
import bridge_support
import numpy as np
import pytest
from bridge_liar import about, good_and_evil, hash_of, opened
from bridge_raw import Raw, frame, key
from bridge_support import Node
from conftest import eventually

import cableway as cw
from cableway._core.library import ffi

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

MIB = 1 << 20
PART_PUT = 2 | 4  # flags of OPEN: a part, of a tree that is being put
TREE, REPLACE = 16, 1  # flags of OFFER
ANY = (1 << 64) - 1
NAME = key(b"in/m")
numbers = iter(range(1, 1 << 30))


@pytest.fixture(scope="module", params=["io_uring", "epoll"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    """A node, and one with a key that it knows, whose broker never runs."""
    with good_and_evil(request.param) as both:
        yield both


def index_of(node: Node) -> bytes:
    """The index of a tree of two parts of 300 bytes."""
    with node.here():
        state = {name: cw.asarray(np.arange(300) % 251).astype("u1") for name in ("x", "y")}
        tree = cw.put("index", {n: cw.asarray(v) for n, v in state.items()}, copy=False)
        found = bytes(ffi.buffer(tree._told().index, tree._told().index_bytes))
        cw.remove("index")
    return found


def told(parts_bytes: int, *, version: int = 4, reserved: int = 0, if_version: int = ANY) -> bytes:
    return struct.pack("<HHIQQ", version, reserved, 0, if_version, parts_bytes)


def offer(data: bytes, meta: bytes, number: int, *, source: int = 0, size: int | None = None) -> bytes:  # fmt: skip
    """A put of a tree, whose index is inside, unless it has a source."""
    head = struct.pack("<QQQ", 9, number, 0) + struct.pack(
        "<QQQIIII", source, len(data) if size is None else size, 0 if source else hash_of(data), int(not source),
        REPLACE | TREE, len(NAME), len(meta),
    )  # fmt: skip
    return frame(raw.OFFER, head + NAME + meta + (b"" if source else data), id=number)


class Putter:
    """Puts a tree, and answers what it is asked for."""

    def __init__(self, connection: Raw) -> None:
        self.connection = connection
        self.asked: list[tuple[int, int, int]] = []  # instance, version, number of each part

    def put(self, data: bytes, meta: bytes, part: bytes | None) -> tuple[int, str]:
        """Status and sentence of the answer; part: the body that answers each OPEN, None: it is gone."""
        number = next(numbers)
        self.connection.send(offer(data, meta, number))
        while True:
            got = self.connection.receive(requests=True)
            assert got is not None, "the link has ended"
            op, id, status, body = got
            if op == raw.OPEN:
                length, flags = struct.unpack_from("<II", body)
                assert flags == PART_PUT and body[8 : 8 + length] == NAME
                asked = struct.unpack_from("<QQI", body, 8 + length)
                ours = asked[:2] == (9, number)  # else of an earlier put, whose link has ended
                if ours:
                    self.asked.append(asked)
                gone = frame(op | raw.REPLY, b"gone", id=id, status=-errno.ESTALE)
                known = ours and part is not None
                self.connection.send(frame(op | raw.REPLY, part or b"", id=id) if known else gone)
            elif op == raw.OFFER | raw.REPLY and id == number:
                return status, body.decode(errors="replace") if status else body.hex()
            elif op == raw.CLOSE:
                self.connection.send(frame(op | raw.REPLY, bytes(8), id=id))
            elif op == raw.READ:
                self.connection.send(frame(op | raw.REPLY, b"no", id=id, status=-errno.ESTALE))


def inside(data: bytes) -> bytes:
    return opened(len(data), about((len(data),)), data, source=0, inside=1, hash=hash_of(data))


def names(node: Node) -> list[str]:
    with node.here():
        return [name for name in cw.names() if name == "in/m"]


def taken(node: Node) -> int:
    """Memory that the broker counts."""
    return int(json.loads(node.command("status", "--json").stdout)["gauges"]["bytes"])


def test_a_true_tree_is_put(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    index, part = index_of(b), bytes(range(250)) + bytes(50)
    with Raw(evil.keys, b.port) as connection:
        putter = Putter(connection)
        status, version = putter.put(index, told(600), inside(part))
        assert status == 0 and [one[2] for one in putter.asked] == [0, 1]
        with b.here():
            tree = cw.get("in/m")
            assert tree.version == int.from_bytes(bytes.fromhex(version), "little")
            assert bytes(tree["x"].numpy()) == bytes(tree["y"].numpy()) == part
            cw.remove("in/m")


@pytest.mark.parametrize(
    "meta",
    [told(600, version=3), told(600, reserved=1), told(600)[:-1], told(600) + b"x", told(1 << 48), about((9,))],
    ids=["version", "reserved", "short", "long", "large", "array"],
)  # fmt: skip
def test_what_cannot_be_told_of_a_tree_ends_the_link(nodes: tuple[Node, Node], meta: bytes) -> None:
    b, evil = nodes
    with Raw(evil.keys, b.port) as connection:
        connection.send(offer(index_of(b), meta, next(numbers)))
        assert connection.ended()
    assert names(b) == []


def test_an_index_that_is_none_is_refused(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    good = index_of(b)
    with Raw(evil.keys, b.port) as connection:
        putter = Putter(connection)
        for at in range(0, len(good), 37):
            bad = bytearray(good)
            bad[at] ^= 0x10
            status, why = putter.put(bytes(bad), told(600), None)
            assert status == -errno.EREMOTEIO, (at, status)
            assert "damaged" in why or "offer says" in why or "gone" in why, (at, why)
        for length in (1, 127, 128, len(good) - 1):
            status, why = putter.put(good[:length], told(600), None)
            assert status == -errno.EREMOTEIO and "damaged" in why
    assert names(b) == []


def test_another_size_than_was_said_is_refused(nodes: tuple[Node, Node]) -> None:
    """Of parts by their index, and of all of them by the offer: by that memory is shared out among peers."""
    b, evil = nodes
    index = index_of(b)
    with Raw(evil.keys, b.port) as connection:
        putter = Putter(connection)
        for size in (0, 599, 601, 1 << 40):
            status, why = putter.put(index, told(size), None)
            assert status == -errno.EREMOTEIO and "offer says" in why, why
        assert putter.asked == []
        for size in (1, 299, 301, 5000):
            status, why = putter.put(index, told(600), inside(bytes(size)))
            assert status == -errno.EREMOTEIO and f"{size} bytes" in why, why
        wrong = bytearray(inside(bytes(300)))
        wrong[-1] ^= 1
        status, why = putter.put(index, told(600), bytes(wrong))
        assert status == -errno.EREMOTEIO and "hashed" in why
    assert names(b) == []


def test_parts_that_are_gone_and_links_that_end(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    index = index_of(b)
    before = taken(b)
    with Raw(evil.keys, b.port) as connection:
        status, why = Putter(connection).put(index, told(600), None)
        assert status == -errno.EREMOTEIO and "gone" in why
    for _ in range(20):
        with Raw(evil.keys, b.port) as connection:
            connection.send(offer(index, told(600), next(numbers)))
    assert eventually(lambda: taken(b) <= before + 2 * MIB), taken(b)
    assert names(b) == []


def test_a_version_that_the_name_does_not_mean(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    with Raw(evil.keys, b.port) as connection:
        meta = told(600, if_version=77)
        status, why = Putter(connection).put(index_of(b), meta, inside(bytes(300)))
        assert status == -errno.ESTALE and "77" in why
    assert names(b) == []


def test_parts_of_what_nobody_puts_are_gone(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    with b.here():
        version = cw.put("open/m", {"x": np.arange(3)}, remote="read").version
    with Raw(evil.keys, b.port) as connection:
        name = key(b"open/m")
        body = struct.pack("<II", len(name), PART_PUT) + name
        connection.send(frame(raw.OPEN, body + struct.pack("<QQII", 1, version, 0, 0), id=1))
        got = connection.receive()
        assert got is not None and got[2] == -errno.ESTALE
        # Flag 4 without a part is no OPEN.
        connection.send(raw.asking(raw.OPEN, b"open/m", id=2, flags=4))
        assert connection.ended()
