"""Two nodes have one link: the newer one, whichever of them dialed it; what was said over another counts as not said.

Runs in `make test-more`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import ssl
from collections.abc import Iterator

import bridge_raw as raw
import bridge_support
import pytest
from bridge_proxy import Proxy
from bridge_raw import Raw, frame, hello
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

SMALLEST, LARGEST = 1, (1 << 64) - 1  # runs


@pytest.fixture(params=["io_uring", "epoll"])
def engine(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment by which a bridge has that engine."""
    return {"CABLEWAY_BRIDGE_EPOLL": "1"} if request.param == "epoll" else {}


@pytest.fixture
def nodes(engine: dict[str, str]) -> Iterator[tuple[Node, Node]]:
    """A node, and one with a key that it knows, whose broker never runs."""
    with bridge_support.net("b", "evil") as made:
        b, evil = made.nodes.values()
        b.knows(evil, "--read", "*", "--write", "*", address="")
        b.start(**engine)
        yield b, evil


@pytest.fixture
def half(engine: dict[str, str]) -> Iterator[tuple[Node, Node, Proxy]]:
    """a, which owns; b, which reads; and the proxy by which b reaches a, which does not reach b."""
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        with Proxy(a.port) as proxy:
            a.knows(b, "--read", "*", address="")
            b.knows(a, "--read", "*", address=f"127.0.0.1:{proxy.port}")
            made.start(**engine)
            made.connected()
            yield a, b, proxy


def links(node: Node, other: Node) -> list[str]:
    """The words "to" and "from" of the links that a node has with another."""
    told = node.command("peers", "show", other.name).stdout
    return re.findall(r"^  link (to|from) ", told, re.MULTILINE)


def lives(connection: Raw, id: int = 77) -> bool:
    """Whether requests are answered over it. It is open there, then."""
    connection.send(frame(raw.PING, id=id))
    answer = connection.receive()
    return answer is not None and answer[:2] == (raw.PING | raw.REPLY, id)


def greeted(connection: Raw) -> Raw:
    """The other side's HELLO came."""
    assert connection.versions()
    return connection


# ---- what a reader is told


@pytest.mark.parametrize("how", ["reset", "killed"])
def test_a_reader_whose_old_link_is_half_open_is_told_of_changes(
    half: tuple[Node, Node, Proxy], how: str
) -> None:
    a, b, proxy = half
    a.put("x", [0])
    with b.here():
        for value in range(1, 4):
            assert cw.get("//a/x", timeout=60).numpy().tolist() == [value - 1]
            before = a.said().count("peer b is connected")
            assert proxy.half_open(ends=how == "reset") == 1
            if how == "killed":
                os.kill(b.bridge_pid(), signal.SIGKILL)
            assert eventually(lambda n=before: a.said().count("peer b is connected") > n), a.said()
            assert eventually(lambda: b.sees(a)), b.said()
            assert cw.get("//a/x").numpy().tolist() == [value - 1]
            assert links(a, b) == ["from"] and links(b, a) == ["to"]
            a.put("x", [value])
            # Its old link to a is silent, and would be found to be after 5 s.
            assert eventually(lambda v=value: cw.get("//a/x").numpy().tolist() == [v], 30)


# ---- which link it is


def test_the_newer_connection_is_the_link(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    with contextlib.ExitStack() as stack:
        last = stack.enter_context(Raw(evil.keys, b.port))
        assert lives(last)
        for run in (7, 7, 8, 9):  # of the same bridge, and of one that was started anew
            newer = stack.enter_context(Raw(evil.keys, b.port, hello(run=run)))
            assert lives(newer)
            assert last.ended()
            assert links(b, evil) == ["from"]
            last = newer


def test_a_connection_that_was_given_up_does_not_end_the_link(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(Raw(evil.keys, b.port))
        assert lives(link)
        for _ in range(70):  # more than may be so at once
            greeted(stack.enter_context(Raw(evil.keys, b.port)))
            assert lives(link)  # said each time: who is silent for 5 s is gone
        with greeted(Raw(evil.keys, b.port)):
            assert lives(link, 78)
        assert lives(link, 79)
        assert links(b, evil) == ["from"]
    assert b.said().count("peer evil is connected") == 1


def test_of_two_bridges_with_one_key_the_later_one_stays(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    with Raw(evil.keys, b.port, hello(run=7)) as first:
        assert lives(first)
        with Raw(evil.keys, b.port, hello(run=8)) as second:
            assert lives(second)
            assert first.ended()
            for _ in range(3):
                with Raw(evil.keys, b.port, hello(run=7)) as again:
                    assert again.ended()
            assert lives(second, 78)
            assert "one key lies on two machines" in b.said()
            told = b.command("doctor", check=False).stdout
            assert "evil: two bridges show its key" in told, told
            assert "warning two bridges" in b.command("peers", "show", "evil").stdout
    assert eventually(lambda: not b.sees(evil))
    with Raw(evil.keys, b.port, hello(run=7)) as alone:
        assert lives(alone)


class Dialed:
    """What a node gets that dials us: a TLS server with a key, and one connection of the node."""

    def __init__(self, node: Node) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(node.keys / "node.crt", node.keys / "node.key")

    def accept(self) -> Raw:
        """The next connection, over which its HELLO has come."""
        made = Raw.__new__(Raw)
        plain, _ = self.listener.accept()
        plain.settimeout(60)
        made.socket = self.context.wrap_socket(plain, server_side=True)
        assert made.versions()
        return made


@pytest.mark.parametrize("run", [SMALLEST, LARGEST])
def test_where_both_dial_at_once_the_try_of_the_smaller_run_stays(
    engine: dict[str, str], run: int
) -> None:
    with bridge_support.net("b", "evil") as made:
        b, evil = made.nodes.values()
        server = Dialed(evil)
        b.knows(evil, "--read", "*", address=f"127.0.0.1:{server.port}")
        b.start(**engine)
        with server.listener, server.accept() as theirs, Raw(evil.keys, b.port, b"") as ours:
            ours.send(hello(run=run))
            if run == LARGEST:
                assert ours._exactly(1) is None  # without a HELLO
                theirs.send(hello(run=run))
                assert lives(theirs)
                assert links(b, evil) == ["to"]
            else:
                assert lives(ours)
                assert theirs._exactly(1) is None
                assert links(b, evil) == ["from"]
            assert b.said().count("peer evil is connected") == 1


def test_two_nodes_that_dial_each_other_at_once_have_one_link(engine: dict[str, str]) -> None:
    with bridge_support.net("a", "b") as made:
        made.acquaint("--read", "*", "--write", "*")
        made.start(**engine)
        a, b = made.nodes.values()
        a.put("x", [1])

        def one() -> bool:
            return sorted(links(a, b) + links(b, a)) == ["from", "to"]

        for _ in range(8):
            assert eventually(one), (a.said(), b.said())
            with b.here():
                assert cw.get("//a/x").numpy().tolist() == [1]
            assert one()
            pids = [node.bridge_pid() for node in (a, b)]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            assert eventually(lambda old=pids: not {a.bridge_pid(), b.bridge_pid()} & {*old, 0})
