"""A peer that says one kind of frame as fast as it can, in one state of its connection; test_bridge_frames.py runs it.

    python peer_flood.py KEYS PORT

Each line of its standard input is KIND STATE: a frame (KINDS) and what came before it. It prints a line when it is at work,
connects again when it is cut, and goes on to the next line; then it prints as JSON how many bytes it sent and how often it
was cut. That line need be no more than a newline.
"""

from __future__ import annotations

import json
import random
import select
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

import bridge_raw as raw
import numpy as np
from bridge_liar import about
from bridge_raw import Raw, asking, frame

BATCH = 2000  # frames that are made at once
BIG = 64 << 20  # bytes of open/big, which there must be


def offer(name: bytes, size: int, source: int = 3) -> bytes:
    """A put: inside (source 0), or of bytes that never come."""
    inside = source == 0
    meta = about((size,))
    head = struct.pack("<QQQ", 9, 1, 0) + struct.pack(
        "<QQQIIII", source, size, 0x2D06800538D394C2 if inside else 0, inside, 1, len(raw.key(name)), len(meta)
    )  # fmt: skip
    return frame(raw.OFFER, head + raw.key(name) + meta)


def changed(name: bytes) -> bytes:
    """That a name means something else now."""
    return frame(raw.CHANGED, struct.pack("<QQII", 1, 1, len(raw.key(name)), 0) + raw.key(name))


def read(source: int) -> bytes:
    """The first piece of an array."""
    return frame(raw.READ, struct.pack("<QQII", source, 0, 1 << 18, 0))


def close(source: int) -> bytes:
    """The hash of an array, please."""
    return frame(raw.CLOSE, struct.pack("<QII", source, 0, 0))


# Of a source, where the state has one.
KINDS: dict[str, Callable[[int], bytes]] = {
    "hello": lambda _: raw.hello(),
    "ping": lambda _: frame(raw.PING),
    "open": lambda _: asking(raw.OPEN, b"open/small", flags=1),
    "open-ahead": lambda _: asking(raw.OPEN, b"open/big", flags=0x401),
    "open-nothing": lambda _: asking(raw.OPEN, b"open/nothing"),
    "read": read,
    "close": close,
    "offer": lambda _: offer(b"in/large", 1 << 30),
    "offer-inside": lambda _: offer(b"in/small", 0, source=0),
    "wait": lambda _: asking(raw.WAIT, b"open/never"),
    "names": lambda _: asking(raw.NAMES, b"open/"),
    "about": lambda _: asking(raw.NAMES, b"open/small", flags=1),
    "remove": lambda _: raw.removing(b"in/small"),
    "cancel": lambda _: frame(raw.CANCEL, struct.pack("<Q", 12)),
    "changed": lambda _: changed(b"nothing"),
    "streams": lambda _: frame(raw.STREAMS, struct.pack("<II", 4, 0)),
    "stream": lambda _: raw.stream(7, 7),
    "reply": lambda _: frame(raw.OPEN | raw.REPLY, b"no", status=-2),
    "no-op": lambda _: frame(99),
    "no-tls": lambda _: b"\x16\x03\x01\x07\xf0" + bytes(2000),
}  # fmt: skip
AGREED = {"open": 200, "read": 32, "names": 900}  # of these so many at once
TOKENS = ("offer", "offer-inside", "remove")  # each with a number of its own


class Cut(Exception):
    """The other side has ended the connection."""


class Flood:
    """One kind of frame in one state, over connection after connection."""

    def __init__(self, keys: Path, port: int, kind: str, state: str) -> None:
        self.keys, self.port, self.kind, self.state = keys, port, kind, state
        self.sent = self.cuts = 0
        self.run = random.getrandbits(60)
        self.next_id = 1000
        self.is_told = False

    def tell(self) -> None:
        """Says that it is at work."""
        if not self.is_told:
            print("begun", flush=True)
        self.is_told = True

    def batches(self, source: int) -> Iterator[bytes]:
        """Frames, each batch with ids that none had before."""
        one = KINDS[self.kind](source)
        many = np.frombuffer(one * BATCH, np.uint8).reshape(BATCH, len(one)).copy()
        while True:
            ids = np.arange(self.next_id, self.next_id + BATCH * 8, 8, dtype="<u8")
            self.next_id += BATCH * 8
            many[:, 8:16] = ids.view(np.uint8).reshape(BATCH, 8)
            if self.kind in TOKENS:
                many[:, 32:40] = many[:, 8:16]
            yield many.tobytes()

    def pour(self, plain: ssl.SSLSocket | socket.socket, batches: Iterator[bytes], reads: bool) -> None:  # fmt: skip
        """Says it, and reads the answers (reads), until it is cut, or to the end."""
        plain.setblocking(False)
        data, at = memoryview(next(batches)), 0
        while not ended():
            stuck = True
            try:
                at += (done := plain.send(data[at : at + 65536]))
                self.sent += done
                self.tell()
                stuck = False
                if at == len(data):
                    data, at = memoryview(next(batches)), 0
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError):
                pass
            try:
                for _ in range(8 if reads else 0):
                    if not plain.recv(1 << 18):
                        raise Cut
                    stuck = False
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError):
                pass
            if stuck:
                select.select([plain] if reads else [], [plain], [], 0.05)

    def opens(self, connection: Raw) -> int:
        """A source of the other side's."""
        connection.send(asking(raw.OPEN, b"open/big", id=5))
        answer = connection.receive()
        if answer is None or answer[2]:
            raise Cut
        return int(struct.unpack_from("<Q", answer[3])[0])

    def greeted(self, connection: Raw) -> int:
        """Reads its HELLO: the run of the other side."""
        head, body = connection._exactly(24), connection._exactly(112)
        if head is None or body is None:
            raise Cut
        return int(struct.unpack_from("<Q", body, 16)[0])

    def within(self, connection: Raw, source: int, count: int) -> None:
        """Says it so many times, reads the answers, and so on: no more than was agreed."""
        for data in self.batches(source):
            size = len(data) // BATCH
            connection.send(data[: size * count])
            self.sent += size * count
            self.tell()
            for _ in range(count):
                if connection.receive() is None:
                    raise Cut
            if ended():
                return

    def closes(self, connection: Raw) -> None:
        """Opens and closes arrays of which it reads nothing: all is hashed for it."""
        while not ended():
            connection.send(b"".join(asking(raw.OPEN, b"open/big", id=10 + i) for i in range(200)))
            answers = [connection.receive() for _ in range(200)]
            if None in answers:
                raise Cut
            sources = [struct.unpack_from("<Q", a[3])[0] for a in answers if a and not a[2]]
            asks = b"".join(
                frame(raw.CLOSE, close(source)[24:], id=1000 + i)
                for i, source in enumerate(sources)
            )
            connection.send(asks)
            self.sent += len(asks)
            self.tell()
            connection.socket.settimeout(0.2)
            try:
                for _ in sources:
                    if connection.receive() is None:
                        raise Cut
            except TimeoutError:
                pass  # the rest comes when it comes
            connection.socket.settimeout(30)

    def once(self) -> None:
        """One connection."""
        if self.kind == "no-tls":
            with socket.create_connection(("127.0.0.1", self.port), 30) as plain:
                self.pour(plain, self.batches(0), True)
            return
        self.run += 1  # another bridge each time: what it left open goes
        greeting = b"" if self.state == "before" else raw.hello(run=self.run)
        with Raw(self.keys, self.port, greeting) as connection:
            source = 0
            if self.state != "before":
                run = self.greeted(connection)
            if self.state == "transfer" or self.kind == "read":
                source = self.opens(connection)
                connection.send(b"".join(read(source) for _ in range(16)))
            if self.state == "refused":
                connection.send(asking(raw.OPEN, b"hidden", id=6) + raw.removing(b"hidden", id=7))
                if connection.receive() is None or connection.receive() is None:
                    raise Cut
            if self.state == "stream":
                with Raw(self.keys, self.port, raw.stream(self.run, run)) as stream:
                    if stream.receive() is None:
                        raise Cut
                    self.pour(stream.socket, self.batches(source), True)
            elif self.state == "agreed" and self.kind == "close":
                self.closes(connection)
            elif self.state == "agreed":
                self.within(connection, source, AGREED[self.kind])
            else:
                self.pour(connection.socket, self.batches(source), self.state != "unread")

    def flood(self) -> None:
        """Until the end."""
        while not ended():
            try:
                self.once()
            except (Cut, OSError):
                self.cuts += 1
                self.tell()
        print(json.dumps({"bytes": self.sent, "cuts": self.cuts}), flush=True)


def ended() -> bool:
    """Whether nobody wants more of this."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


if __name__ == "__main__":
    while line := sys.stdin.readline():
        if line.strip():
            Flood(Path(sys.argv[1]), int(sys.argv[2]), *line.split()).flood()
