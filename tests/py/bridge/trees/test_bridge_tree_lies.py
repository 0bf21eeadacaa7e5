"""A peer that lies about a tree: who asks gets an error, and nothing of it is seen."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

import bridge_raw as raw
import bridge_support
import numpy as np
import pytest
from bridge_liar import about, good_and_evil, hash_of, lied_to, opened
from bridge_raw import frame
from bridge_support import Node

import cableway as cw
from cableway._core.library import ffi

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

PART = 2  # a flag of OPEN


@pytest.fixture(scope="module", params=["io_uring", "epoll"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    """A node, and one with a key that it knows, whose broker never runs."""
    with good_and_evil(request.param) as both:
        yield both


def told(*, version: int = 3, instance: int = 1, put: int = 2, reserved: int = 0) -> bytes:
    """What an owner tells of a tree."""
    return struct.pack("<HHIIIQ16sQQ", version, reserved, 2, 2, 1, 8, bytes(16), instance, put)


def index_of(node: Node) -> bytes:
    """The index of a tree of two parts."""
    with node.here():
        state = {name: cw.asarray(np.arange(300, dtype="u1")) for name in ("x", "y")}
        tree = cw.put("index", state, copy=False)
        found = bytes(ffi.buffer(tree._told().index, tree._told().index_bytes))
        cw.remove("index")
    return found


def inside(data: bytes, meta: bytes) -> bytes:
    return opened(len(data), meta, data, source=0, inside=1, hash=hash_of(data))


def got(b: Node, evil: Node, reply: bytes, part: bytes | None, breach: bool) -> str:
    """The error of a get whose index and parts are answered so."""

    def answer(op: int, id: int, body: bytes) -> bytes:
        flags = struct.unpack_from("<I", body, 4)[0] if op == raw.OPEN else 0
        if op != raw.OPEN:
            return frame(op | raw.REPLY, b"no", id=id, status=-errno.ENOENT)
        if not flags & PART:
            return frame(op | raw.REPLY, reply, id=id)
        if part is None:
            return frame(op | raw.REPLY, b"gone", id=id, status=-errno.ESTALE)
        return frame(op | raw.REPLY, part, id=id)

    return lied_to(b, evil, answer, lambda: cw.get("//evil/open/m"), breach)


@pytest.mark.parametrize(
    ("meta", "size"),
    [
        (told(version=4), 300),
        (told(instance=0), 300),
        (told(put=0), 300),
        (told(reserved=1), 300),
        (told() + b"x", 300),
        (told()[:-1], 300),
        (told(), (1 << 30) + 1),
    ],
    ids=["version", "no-instance", "no-put", "reserved", "long", "short", "large"],
)
def test_what_cannot_be_told_of_a_tree_ends_the_link(
    nodes: tuple[Node, Node], meta: bytes, size: int
) -> None:
    b, evil = nodes
    got(b, evil, opened(size, meta), None, breach=True)


def test_an_index_that_is_none_is_refused(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    good = index_of(b)
    for at in range(0, len(good), 37):
        bad = bytearray(good)
        bad[at] ^= 0x10
        error = got(b, evil, inside(bytes(bad), told()), None, breach=False)
        assert "damaged" in error or "gone" in error, (at, error)  # the second: it may be one, too
    for length in (1, 127, 128, len(good) - 1):
        assert "damaged" in got(b, evil, inside(good[:length], told()), None, breach=False)


def test_parts_of_another_size_than_the_index_says_are_refused(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    index = index_of(b)
    for size in (1, 299, 301, 5000):
        good = inside(
            index, told(instance=size)
        )  # of another broker each: what came before is here
        error = got(b, evil, good, inside(bytes(size), about((size,))), breach=False)
        assert f"has {size} bytes" in error, error


def test_parts_that_are_always_gone_end_in_an_error(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    assert "gone" in got(b, evil, inside(index_of(b), told()), None, breach=False)
