"""A peer that answers heartbeats and nothing else holds nobody up for ever; what is slow, or may be long, goes on.

Runs in `make test-more`.
"""

from __future__ import annotations

import concurrent.futures
import errno
import struct
import subprocess
import time
from collections.abc import Iterator

import bridge_raw as raw
import bridge_support
import numpy as np
import pytest
from bridge_liar import Liar, about, known, opened
from bridge_raw import Raw, begun_stream, frame, greeted, key
from bridge_support import Node
from conftest import eventually
from streams_support import has_streams
from test_bridge_silence import CALLS

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

STALL = 2  # seconds, --stall
RUN = 7  # of evil's bridge
SIZE = 1_000_000


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    """A node that waits for no longer than that, and one with a key that it knows, whose broker never runs."""
    with bridge_support.net("b", "evil") as made:
        b, evil = made.nodes.values()
        b.options = ["--stall", str(STALL)]
        b.knows(evil, "--read", "open/*", "--write", "in/*", address="")
        b.start()
        yield b, evil


def test_what_is_never_answered_fails_and_a_wait_goes_on(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    asked: list[tuple[int, int]] = []
    late = False

    def nothing(op: int, id: int, body: bytes) -> bytes:
        nonlocal late
        if op == raw.CANCEL:  # has no reply
            return b""
        asked.append((op, id))
        late = late or body.endswith(b"now")
        if not late:
            return b""
        # All that was asked is answered late, which is no breach; a wait was asked again and again.
        replies = [
            frame(op | raw.REPLY, id=id)
            if op == raw.WAIT
            else frame(op | raw.REPLY, b"no", id=id, status=-errno.ENOENT)
            for op, id in asked
        ]
        asked.clear()
        return b"".join(replies)

    calls = {**CALLS, "wait": lambda: cw.wait("//evil/later", timeout=None)}
    with (
        b.here(),
        concurrent.futures.ThreadPoolExecutor(len(calls)) as pool,
        Raw(evil.keys, b.port) as connection,
    ):
        known(connection, b, evil)
        with Liar(connection, nothing):
            told = {name: pool.submit(call) for name, call in calls.items()}
            wait = told.pop("wait")
            for name, call in told.items():
                error = call.exception(60)
                assert isinstance(error, cw.RemoteError) and "--stall" in str(error), error
                assert ("not known" in str(error)) == (name in ("remove", "put", "put-large"))
            assert not wait.done()
            with pytest.raises(cw.NameNotFound):
                cw.get("//evil/now")
            wait.result(60)
            assert b.sees(evil)


@pytest.mark.parametrize("size", [SIZE, 8 * SIZE])
def test_a_transfer_of_which_nothing_comes_fails(nodes: tuple[Node, Node], size: int) -> None:
    b, evil = nodes
    reads: list[tuple[int, bytes]] = []

    def piece(id: int, body: bytes) -> bytes:
        return frame(raw.READ | raw.REPLY, body + bytes(struct.unpack("<QQII", body)[2]), id=id)

    def answer(op: int, id: int, body: bytes) -> bytes:
        if body.endswith(b"now"):  # all that was asked is answered late, which is no breach
            late = b"".join(piece(*read) for read in reads[1:])
            return late + frame(op | raw.REPLY, b"no", id=id, status=-errno.ENOENT)
        if op == raw.OPEN:
            return frame(op | raw.REPLY, opened(size, about((size,))), id=id)
        if op == raw.READ:
            reads.append((id, body))
            if len(reads) == 1:  # some of it comes
                return piece(id, body)
        return b""

    with b.here(), Raw(evil.keys, b.port) as connection:
        known(connection, b, evil)
        with Liar(connection, answer):
            with pytest.raises(cw.RemoteError, match="--stall"):
                cw.get("//evil/x", timeout=None)
            with pytest.raises(cw.NameNotFound):
                cw.get("//evil/now")
            assert len(reads) > 1 and b.sees(evil)


def test_a_transfer_over_a_stream_of_which_nothing_comes_fails() -> None:
    seen: list[int] = []

    def answer(op: int, id: int, body: bytes) -> bytes:
        if op == raw.OPEN:
            return frame(op | raw.REPLY, opened(8 * SIZE, about((8 * SIZE,))), id=id)
        return b""

    def nothing(op: int, id: int, body: bytes) -> bytes:
        seen.append(op)
        return b""

    with bridge_support.net("b", "evil") as made:
        b, evil = made.nodes.values()
        b.options = ["--stall", str(STALL), "--streams", "3"]
        b.knows(evil, address="")
        b.start()
        link, run, _ = greeted(evil.keys, b.port, RUN)
        with b.here(), link:
            link.send(frame(raw.STREAMS, struct.pack("<II", 4, 0)))
            with (
                begun_stream(evil.keys, b.port, RUN, run) as stream,
                Liar(link, answer),
                Liar(stream, nothing),
            ):
                assert eventually(lambda: has_streams(b, evil, 1))
                with pytest.raises(cw.RemoteError, match="--stall"):
                    cw.get("//evil/x", timeout=None)
                assert set(seen) == {raw.READ}
                assert eventually(lambda: has_streams(b, evil, 0))  # it can carry nothing more
                assert b.sees(evil)


def test_a_transfer_that_is_slow_goes_on(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    begun: list[float] = []

    def answer(op: int, id: int, body: bytes) -> bytes:
        if op == raw.OPEN:
            begun.append(time.monotonic())
            return frame(op | raw.REPLY, opened(SIZE, about((SIZE,))), id=id)
        if op == raw.READ:
            time.sleep(STALL / 2)  # the slowness that is tried
            return frame(op | raw.REPLY, body + bytes(struct.unpack("<QQII", body)[2]), id=id)
        return frame(op | raw.REPLY, struct.pack("<Q", 0), id=id)  # of the hash it is a lie

    with b.here(), Raw(evil.keys, b.port) as connection:
        known(connection, b, evil)
        with Liar(connection, answer), pytest.raises(cw.RemoteError, match="not those that were"):
            cw.get("//evil/x", timeout=None)
    assert (
        len(begun) > 1 and begun[1] - begun[0] > STALL
    )  # all of it came, before the hash was wrong


def test_who_says_that_it_must_wait_is_asked_again(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    said: list[float] = []

    def answer(op: int, id: int, body: bytes) -> bytes:
        if op == raw.OPEN:
            return frame(op | raw.REPLY, opened(SIZE, about((SIZE,))), id=id)
        if op == raw.READ and (not said or time.monotonic() - said[0] < 2 * STALL):
            said.append(time.monotonic())
            time.sleep(STALL / 20)
            return frame(op | raw.REPLY, b"a kernel runs", id=id, status=-errno.EINPROGRESS)
        if op == raw.READ:
            return frame(op | raw.REPLY, b"it is over", id=id, status=-errno.EOWNERDEAD)
        return frame(op | raw.REPLY, struct.pack("<Q", 0), id=id)

    with b.here(), Raw(evil.keys, b.port) as connection:
        known(connection, b, evil)
        with Liar(connection, answer), pytest.raises(cw.Error, match="it is over"):
            cw.get("//evil/x", timeout=None)
    assert len(said) > 1


def test_a_put_whose_bytes_never_come_is_refused(
    nodes: tuple[Node, Node],
) -> None:
    b, evil = nodes
    size = 64 << 20

    with Raw(evil.keys, b.port) as connection:
        connection.send(frame(raw.PING))
        assert connection.receive() is not None
        meta = about((size,))
        head = struct.pack("<QQQ", 9, 1, 0) + struct.pack(
            "<QQQIIII", 3, size, 0, 0, 1, len(key(b"in/x")), len(meta)
        )
        connection.send(frame(raw.OFFER, head + key(b"in/x") + meta, id=9))
        answer = connection.receive()
        assert answer is not None and answer[:2] == (raw.OFFER | raw.REPLY, 9), answer
        assert answer[2] == -errno.EREMOTEIO and b"--stall" in answer[3], answer
        assert b.sees(evil)


def test_a_put_that_is_read_slowly_goes_on(nodes: tuple[Node, Node]) -> None:
    b, evil = nodes
    values = np.zeros(SIZE, "u1")
    with (
        b.here(),
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        Raw(evil.keys, b.port) as connection,
    ):
        known(connection, b, evil)
        told = pool.submit(cw.put, "//evil/x", values)
        offer = connection.receive(requests=True)
        assert offer is not None and offer[0] == raw.OFFER
        source = struct.unpack("<QQQQ", offer[3][:32])[3]
        for i in range(5):
            time.sleep(STALL / 2)  # the slowness that is tried
            connection.send(frame(raw.READ, struct.pack("<QQII", source, 0, 1000, 0), id=50 + i))
            answer = connection.receive()
            assert answer is not None and answer[1:3] == (50 + i, 0)
        assert not told.done()
        connection.send(frame(raw.OFFER | raw.REPLY, id=offer[1]))
        told.result(60)


@pytest.mark.parametrize("bad", ["x", "-1", "86401"])
def test_the_option_is_checked(bad: str) -> None:
    words = [bridge_support.program("cablewayd"), "--foreground", "--stall", bad]
    told = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert told.returncode == 2 and "stall" in told.stderr and "86400" in told.stderr
