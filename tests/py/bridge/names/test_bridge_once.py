"""A put or remove at another node is done once, whichever bridge, broker or connection ends while it is under way.

Runs in `make test-more`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import bridge_proxy
import bridge_raw as raw
import bridge_support
import numpy as np
import pytest
from bridge_proxy import FROM, Proxy
from bridge_raw import Raw
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

AGAIN = 8


@pytest.fixture
def two() -> Iterator[tuple[Node, Node, Proxy]]:
    """a reaches b through a proxy; b does not dial."""
    with bridge_proxy.proxied() as made:
        yield made


class Call:
    """A call by a process of a node, and what became of it. The process waits until it is to begin."""

    def __init__(self, node: Node, call: str) -> None:
        code = (
            "import cableway as cw\nprint('ready', flush=True)\ninput()\n"
            f"try: {call}\nexcept cw.Error as e: print(type(e).__name__, e)"
        )
        self.process = subprocess.Popen(
            node.inside([sys.executable, "-c", code]),
            env=node.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None and self.process.stdout.readline() == "ready\n"

    def begin(self) -> None:
        """Now: to start a process may take longer than a peer may be silent."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)

    def said(self) -> str:
        """What it raised, if anything."""
        said, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0
        return said


def anew(node: Node) -> None:
    """Kills a node's bridge and waits for the next one."""
    pid = node.bridge_pid()
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: node.bridge_pid() not in (0, pid))


@contextlib.contextmanager
def unanswered(proxy: Proxy) -> Iterator[None]:
    """What goes from b to a stands in the block; then the connections that stood are cut."""
    proxy.passes[FROM].clear()
    try:
        yield
    finally:
        proxy.cut()
        proxy.passes[FROM].set()


def names(node: Node) -> list[str]:
    with node.here():
        return list(cw.names())


@contextlib.contextmanager
def removed_unanswered(a: Node, b: Node, proxy: Proxy) -> Iterator[Call]:
    """A remove of b's array "box" by a: it is done, and its answer does not come in the block."""
    b.put("box", np.array([1]))
    remove = Call(a, "cw.remove('//b/box')")
    with unanswered(proxy):
        remove.begin()
        assert eventually(lambda: "box" not in names(b))
        yield remove


def kill(whose: str, a: Node, b: Node) -> None:
    """Whose bridge dies: the asker's, the owner's, or both, the owner's first."""
    if whose in ("owner", "both"):
        anew(b)
    if whose in ("asker", "both"):
        anew(a)


WHOSE = pytest.mark.parametrize("whose", ["asker", "owner", "both", "nobody"])


@WHOSE
def test_a_remove_takes_no_array_that_was_put_after_it(
    two: tuple[Node, Node, Proxy], whose: str
) -> None:
    a, b, proxy = two
    with removed_unanswered(a, b, proxy) as remove:
        b.put("box", np.array([2]))
        kill(whose, a, b)
    assert remove.said() == ""
    with b.here():
        assert cw.get("box").numpy().tolist() == [2]


@WHOSE
def test_a_remove_that_was_done_is_not_told_as_no_such_name(
    two: tuple[Node, Node, Proxy], whose: str
) -> None:
    a, b, proxy = two
    with removed_unanswered(a, b, proxy) as remove:
        kill(whose, a, b)
    assert remove.said() == ""


@WHOSE
def test_a_put_that_was_taken_away_stands_there_no_second_time(
    two: tuple[Node, Node, Proxy], whose: str
) -> None:
    a, b, proxy = two
    put = Call(a, "cw.put('//b/in', [7], replace=False)")
    with unanswered(proxy):
        put.begin()
        assert eventually(lambda: "in" in names(b))
        with b.here():
            cw.remove("in")
        kill(whose, a, b)
    assert put.said() == ""
    assert "in" not in names(b)


@WHOSE
def test_a_tree_that_was_put_is_told_as_the_version_that_it_is(
    two: tuple[Node, Node, Proxy], whose: str
) -> None:
    """Though it is asked for again, which if_version would refuse, and though the name means another version by then."""
    a, b, proxy = two
    call = "print(cw.put('//b/tree', {'x': cw.zeros(0)}, if_version=0).version)"  # all in its OFFER
    put = Call(a, call)
    with unanswered(proxy):
        put.begin()
        assert eventually(lambda: "tree" in names(b))
        with b.here():
            version = cw.get("tree").version
            cw.put("tree", {"x": np.arange(3)})
        kill(whose, a, b)
    assert put.said() == f"{version}\n"
    with b.here():
        assert cw.get("tree")["x"].shape == (3,)
        cw.remove("tree")


@pytest.mark.parametrize("whose", ["owner", "both"])
def test_what_the_other_broker_took_with_it_is_told_as_not_known(
    two: tuple[Node, Node, Proxy], whose: str
) -> None:
    a, b, proxy = two
    put = Call(a, "cw.put('//b/in', [1], replace=False)")
    with unanswered(proxy):
        put.begin()
        assert eventually(lambda: "in" in names(b))
        assert b.process is not None
        b.process.kill()
        b.process.wait()
        b.process = None
        assert eventually(lambda: b.bridge_pid() == 0)
        b.start()
        if whose == "both":
            anew(a)
    said = put.said()
    assert said.startswith("RemoteError") and "not known" in said
    assert "in" not in names(b)


def test_a_put_that_was_never_begun_is_done_by_the_next_bridge(
    two: tuple[Node, Node, Proxy],
) -> None:
    a, b, _ = two
    put = Call(a, "cw.put('//b/in', [1], replace=False)")
    os.kill(a.bridge_pid(), signal.SIGSTOP)
    put.begin()
    assert put.said() == ""  # the broker killed who stood
    assert "it stands, and is killed" in a.said()
    assert "in" in names(b)


def test_what_the_next_bridge_cannot_ask_for_is_told_as_not_known(
    two: tuple[Node, Node, Proxy],
) -> None:
    a, b, proxy = two
    with removed_unanswered(a, b, proxy) as remove:
        pid = a.bridge_pid()
        os.kill(pid, signal.SIGSTOP)
        a.command("peers", "remove", "b")
        os.kill(pid, signal.SIGKILL)
        said = remove.said()
    assert said.startswith("RemoteError") and "not known" in said


def removed(link: Raw, name: bytes, **more: int) -> tuple[int, bytes]:
    """Asks for a removal: status and sentence."""
    link.send(raw.removing(name, **more))
    answer = link.receive()
    assert answer is not None and answer[0] == raw.REMOVE | raw.REPLY
    return answer[2], answer[3]


def test_a_token_counts_once_for_its_node_alone_and_until_it_is_settled() -> None:
    with bridge_support.net("a", "b", "c") as made:
        a, b, c = made.nodes.values()
        for other in (a, c):
            b.knows(other, "--read", "*", "--write", "*", address="")
        b.start()
        with Raw(a.keys, b.port) as link, Raw(c.keys, b.port) as another, b.here():
            cw.put("x", np.array([1]))
            assert removed(link, b"x", number=5) == (0, b"")
            cw.put("x", np.array([2]))
            assert removed(link, b"x", number=5, flags=AGAIN) == (0, b"")
            assert removed(link, b"x", number=5) == (0, b"")
            assert list(cw.names()) == ["x"]
            assert removed(another, b"x", number=5) == (0, b"")
            cw.put("x", np.array([3]))
            assert removed(link, b"x", number=5, instance=10) == (0, b"")
            cw.put("x", np.array([4]))
            assert removed(link, b"y", number=9, settled=7)[0] < 0  # there is none
            for late in (5, 6):  # a first frame that is read after its repetition was answered
                assert removed(link, b"x", number=late)[0] < 0
            assert list(cw.names()) == ["x"]
            assert removed(link, b"x", number=8) == (0, b"")  # which is not settled


def test_what_had_to_be_forgotten_is_told_as_not_known() -> None:
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        b.knows(a, "--read", "*", "--write", "*", address="")
        b.start()
        with Raw(a.keys, b.port) as link, b.here():
            for instance in range(1, 6):  # one more than are kept
                cw.put("x", np.array([1]))
                assert removed(link, b"x", instance=instance) == (0, b"")
            cw.put("x", np.array([1]))
            status, sentence = removed(link, b"x", instance=1, flags=AGAIN)
            assert status < 0 and b"not known" in sentence
            assert removed(link, b"x", instance=5, flags=AGAIN) == (0, b"")
            assert list(cw.names()) == ["x"]
