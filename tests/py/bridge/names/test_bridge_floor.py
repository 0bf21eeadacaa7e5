"""Within a node a name of another node never goes back, whatever a client asks and whoever dies or stands."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import bridge_raw as raw
import bridge_support
import pytest
from bridge_floor_storm import NAME, Shared, version_of
from bridge_liar import Liar, good_and_evil, known
from bridge_raw import Raw, frame
from bridge_support import Node
from conftest import eventually
from test_bridge_local_clients import stopped

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

NO_BYTES = 0x2D06800538D394C2  # XXH3, 64 bits
TOLD = {1: 0x157EF230B65C84B5, 2: 0x485C317864A27569}  # the same, of what ABOUT tells of a version
DEATHS = 6
READER = str(Path(__file__).parent / "bridge_floor_storm.py")


class Owner:
    """What a peer has under one name, as it tells it: an array of the shape (version, 0), or nothing. Never CHANGED."""

    def __init__(self) -> None:
        self.version = 1
        self.asked = 0  # OPENs
        self.holds = False  # OPENs are not answered yet
        self.held: list[int] = []
        self.late = b""  # what is to be said before the next answer

    def opened(self) -> bytes:
        """The reply to an OPEN."""
        meta = struct.pack("<HHIHHI4q", 1, 2, 1, 3, 0, 0, self.version, 0, 1, 1) + b"|u1"
        return struct.pack("<QQQQQHHI", 0, 0, 1, self.version, NO_BYTES, 1, 0, len(meta)) + meta

    def text(self, text: bytes, digest: int) -> bytes:
        """The reply to a NAMES."""
        return struct.pack("<QQQQQHHI", 0, len(text), 1, self.version, digest, 1, 0, 0) + text

    def answer(self, op: int, id: int, body: bytes) -> bytes:
        """As Liar calls it."""
        if op == raw.OPEN:
            self.asked += 1
        if op == raw.OPEN and self.holds:
            self.held.append(id)
            return b""
        late, self.late = self.late, b""
        return late + self.truth(op, id, body)

    def truth(self, op: int, id: int, body: bytes) -> bytes:
        """The answer as it is now."""
        if not self.version:
            gone = self.text(b"", NO_BYTES) if op == raw.NAMES and not body[4] & 1 else None
            if gone is not None:
                return frame(op | raw.REPLY, gone, id=id)
            return frame(op | raw.REPLY, b"it is not there", id=id, status=-errno.ENOENT)
        if op == raw.NAMES:
            about = b"0\t%d\t0\t|u1\t%d\t0\0" % (self.version, self.version)
            return frame(op | raw.REPLY, self.text(about, TOLD[self.version]), id=id)
        return frame(op | raw.REPLY, self.opened() if op == raw.OPEN else b"", id=id)


@pytest.fixture
def owned() -> Iterator[tuple[Node, Owner]]:
    """A node, and a peer "evil" with one name."""
    with good_and_evil("io_uring") as (node, evil), Raw(evil.keys, node.port) as connection:
        known(connection, node, evil)
        owner = Owner()
        with Liar(connection, owner.answer):
            yield node, owner


def version() -> int:
    """What the name means; 0: nothing."""
    try:
        return int(cw.get("//evil/x").shape[0])
    except cw.NameNotFound:
        return 0


def told(node: Node) -> object:
    """The shape, as stat tells it."""
    return json.loads(node.command("stat", "--json", "//evil/x").stdout)["shape"]


def test_what_a_list_says_is_gone_is_not_got(owned: tuple[Node, Owner]) -> None:
    node, owner = owned
    with node.here():
        assert version() == 1 == version()
        owner.version = 0
        assert version() == 1  # nobody has said so yet
        assert cw.names("//evil/") == []
        assert version() == 0 and owner.asked == 2


def test_what_a_remove_did_not_find_is_not_got(owned: tuple[Node, Owner]) -> None:
    node, owner = owned
    with node.here():
        assert version() == 1 == version()
        owner.version = 0
        with pytest.raises(cw.NameNotFound):
            cw.remove("//evil/x")
        assert version() == 0
        owner.version = 2
        assert version() == 2


def test_what_stat_tells_of_is_got_or_something_later(owned: tuple[Node, Owner]) -> None:
    node, owner = owned
    with node.here():
        assert version() == 1 == version()
        assert told(node) == [1, 0]
        assert version() == 1 and owner.asked == 1  # it is the same: nothing came again
        owner.version = 2
        assert told(node) == [2, 0]
        assert version() == 2


def test_what_was_asked_for_before_is_not_for_who_asks_after_something_was_told(
    owned: tuple[Node, Owner],
) -> None:
    node, owner = owned
    with node.here(), concurrent.futures.ThreadPoolExecutor() as pool:
        owner.holds = True
        before = pool.submit(version)
        assert eventually(lambda: len(owner.held) == 1)
        early, owner.version = owner.opened(), 0
        with pytest.raises(cw.NameNotFound):
            cw.remove("//evil/x")
        after = pool.submit(version)
        assert not concurrent.futures.wait([after], 0.3).done  # it has asked
        owner.holds = False
        owner.late = frame(raw.OPEN | raw.REPLY, early, id=owner.held[0])
        with pytest.raises(cw.NameNotFound):
            cw.remove("//evil/x")
        assert before.result(30) in (
            0,
            1,
        )  # it may have asked again meanwhile, by way of the broker
        assert after.result(30) == 0 and owner.asked == 2


def test_a_later_array_is_told_while_the_broker_stands(tmp_path: Path) -> None:
    """Nobody takes the earlier one's name away meanwhile; whoever finds it sees that it is outdated."""
    with bridge_support.acquainted("--read", "open/*", "--write", "open/*") as (a, b):
        b.put("open/0", [0])
        b.put("open/x", [1])
        assert a.process is not None
        broker = a.process.pid
        late = threading.Timer(30, os.kill, (broker, signal.SIGCONT))
        late.start()
        with a.here():
            cw.get("//b/open/0")  # the slab and the replica cache are known from here on
            assert eventually(lambda: "//b/open/x" in a.command("ls", "--all").stdout or got(1))
            os.kill(broker, signal.SIGSTOP)
            assert eventually(lambda: stopped(broker))
            b.put("open/x", [2])
            assert eventually(lambda: got(2), 25)
            assert all(got(2) for _ in range(100))
            assert stopped(broker)
            os.kill(broker, signal.SIGCONT)
            assert all(got(2) for _ in range(100))
        late.cancel()


def got(value: int) -> bool:
    """Whether the name means this now."""
    with contextlib.suppress(cw.Timeout, cw.RemoteError):
        return cw.get("//b/open/x", timeout=1).numpy().tolist() == [value]
    return False


def test_nothing_is_believed_of_a_dead_broker(tmp_path: Path) -> None:
    """Who is connected to it reads on and on; others have later values from the next one."""
    shared = Shared(tmp_path / "shared")
    with bridge_support.acquainted("--read", "open/*") as (a, b), contextlib.ExitStack() as stack:
        environment = {**a.environment, "CABLEWAY_BROKER": "/bin/false"}
        put = 1
        b.put(NAME, [[put]])
        words = [sys.executable, READER, "reader", str(a.folder), f"//b/{NAME}"]
        words += [str(tmp_path / "shared"), "[]", str(random.randrange(1 << 30))]
        readers = [
            stack.enter_context(
                subprocess.Popen(
                    words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, text=True,
                )
            )
            for _ in range(2)
        ]  # fmt: skip
        for reader in readers:
            stack.callback(reader.kill)
            assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
        for _ in range(DEATHS):
            assert eventually(lambda: shared.seen() == put)  # noqa: B023
            assert a.process is not None
            a.process.kill()
            a.process.wait()
            a.process = None
            put += 1
            b.put(NAME, [[put % 251]] * put)
            a.start()
            with a.here():
                assert eventually(lambda: version_of(cw.get(f"//b/{NAME}")) == put)  # noqa: B023
                shared.saw(put)
        for reader in readers:
            said, errors = reader.communicate(timeout=60)
            assert reader.returncode == 0 and said, errors
