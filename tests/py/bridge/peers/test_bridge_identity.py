"""Peers that come back as somebody else, that are killed or stand, and three nodes of which one does so.

Runs in `make test-more`.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator

import bridge_support
import pytest
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

RIGHTS = ("--read", "*", "--write", "*")


def new_identity(node: Node) -> str:
    """Takes its key away and makes another. Returns the new fingerprint."""
    for file in ("node.key", "node.crt"):
        (node.keys / file).unlink()
    return node.command("keygen", "--node", node.name).stdout.strip()


@pytest.mark.parametrize("dials", ["both", "a"])
def test_a_peer_that_comes_back_with_another_key_is_nobody(dials: str) -> None:
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        a.knows(b, *RIGHTS)
        b.knows(a, *RIGHTS, address=None if dials == "both" else "")
        made.start()
        assert eventually(lambda: a.sees(b) and b.sees(a))
        with b.here():
            cw.put("x", [1])
        with a.here():
            assert cw.get("//b/x").numpy()[0] == 1
        b.stop()
        old, fresh = b.print, new_identity(b)
        assert fresh != old
        b.start()
        with b.here():
            cw.put("x", [2])
        assert eventually(lambda: "certificate is refused" in a.state_of(b)["error"]), a.said()
        with a.here():
            with pytest.raises(cw.RemoteError, match="certificate is refused"):
                cw.get("//b/x")  # not what the former b had either: nobody can say whether it is so
            with pytest.raises(cw.RemoteError):
                cw.put("//b/y", [3])
            error = a.state_of(b)["error"]
            assert fresh in error and "is not the one that is pinned for the peer b" in error
            # b knows a's key, and still nothing is said between them.
            with b.here():
                assert cw.names() == ["x"]
                with pytest.raises(cw.RemoteError):
                    cw.get("//a/x")
            a.knows(b, *RIGHTS, key=fresh)
            assert eventually(lambda: a.sees(b) and b.sees(a), 20), a.said()
            assert cw.get("//b/x").numpy()[0] == 2
            # Who has the old key now comes in no more, and is told so.
            b.stop()
            new_identity(b)
            b.start()
            assert eventually(lambda: "certificate is refused" in a.state_of(b)["error"])
            assert not a.sees(b)


def test_another_peer_at_the_address_of_one_is_not_that_one() -> None:
    with bridge_support.net("a", "b", "c") as made:
        a, b, c = made.nodes.values()
        a.knows(b, *RIGHTS)
        a.knows(c, *RIGHTS, address="")
        for node in (b, c):
            node.knows(a, *RIGHTS, address="")
        a.start()
        b.start()
        assert eventually(lambda: a.sees(b)), a.said()
        b.stop()
        # c comes up where b was, with its own key, which a knows as c's.
        c.host, c.port = b.host, b.port
        c.start()
        with a.here():
            with pytest.raises(cw.RemoteError, match="it is the peer c's, and this is to be b"):
                cw.get("//b/x")
            assert not a.sees(b) and not a.sees(c)
        c.stop()
        # With b's files it is b, wherever it runs.
        shutil.rmtree(c.keys)
        shutil.copytree(b.keys, c.keys)
        c.start()
        with c.here():
            cw.put("x", [5])
        with a.here():
            assert eventually(lambda: a.sees(b), 20), a.said()
            assert cw.get("//b/x").numpy()[0] == 5


@pytest.fixture(scope="module")
def triangle() -> Iterator[tuple[Node, Node, Node]]:
    """Three nodes that all know each other."""
    with bridge_support.net("a", "b", "c") as made:
        made.acquaint(*RIGHTS)
        made.start()
        made.connected()
        yield made.nodes["a"], made.nodes["b"], made.nodes["c"]


def round_trip(nodes: tuple[Node, ...], number: int) -> None:
    """Each puts to each, and gets from each what was put there."""
    for one in nodes:
        with one.here():
            for other in nodes:
                if other is not one:
                    cw.put(f"//{other.name}/{number}/from-{one.name}", [number, ord(one.name)])
                    found = cw.get(f"//{other.name}/{number}/from-{one.name}").numpy().tolist()
                    assert found == [number, ord(one.name)]
    for one in nodes:
        with one.here():
            for other in nodes:
                if other is not one:
                    found = cw.get(f"{number}/from-{other.name}").numpy().tolist()
                    assert found == [number, ord(other.name)]


@pytest.mark.parametrize("how", ["killed", "stopped", "ended", "broker-killed"])
def test_two_of_three_go_on(triangle: tuple[Node, Node, Node], how: str) -> None:
    a, b, c = triangle
    assert eventually(lambda: all(x.sees(y) for x in triangle for y in triangle if x is not y), 20)
    round_trip(triangle, 1)
    pid = c.bridge_pid()
    if how == "killed":
        os.kill(pid, signal.SIGKILL)
    elif how == "stopped":
        # Bridge and broker: a broker replaces a bridge that stands alone.
        assert c.process
        os.kill(c.process.pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGSTOP)
    elif how == "ended":
        c.stop()
    else:
        assert c.process
        c.process.kill()
        c.process.wait()
        c.process = None
        assert eventually(lambda: c.bridge_pid() == 0)
    try:
        round_trip((a, b), 2)
        if how in ("ended", "stopped"):
            for one in (a, b):
                with one.here():
                    for name in ("not-fetched", f"1/from-{one.name}"):  # the latter was
                        with pytest.raises(cw.RemoteError):
                            cw.get(f"//c/{name}")
            round_trip((a, b), 3)
    finally:
        if how == "stopped":
            assert c.process
            os.kill(pid, signal.SIGCONT)
            os.kill(c.process.pid, signal.SIGCONT)
    if how in ("ended", "broker-killed"):
        c.start()
    assert eventually(lambda: all(x.sees(y) for x in triangle for y in triangle if x is not y), 20), c.said()  # fmt: skip
    round_trip(triangle, 4)
