"""The protocol between nodes as bytes, for tests that break it: a TLS connection with a node's key, and frames."""

from __future__ import annotations

import socket
import ssl
import struct
from pathlib import Path
from types import TracebackType

MAGIC = 0x6567646972627763
HELLO, PING, OPEN, READ, CLOSE, OFFER, WAIT, NAMES, REMOVE, CANCEL, CHANGED = range(1, 12)
STREAMS, STREAM = 12, 13
REPLY = 0x8000


def context(keys: Path) -> ssl.SSLContext:
    """TLS with the key of a folder; whoever answers is believed."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.load_cert_chain(keys / "node.crt", keys / "node.key")
    return made


def client_hello(keys: Path) -> bytes:
    """What a TLS client says first."""
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context(keys).wrap_bio(coming, going).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return going.read()


def frame(
    op: int, body: bytes = b"", *, id: int = 1, size: int | None = None, flags: int = 0,
    status: int = 0, reserved: int = 0,
) -> bytes:  # fmt: skip
    """A frame; size may be a lie."""
    length = 24 + len(body) if size is None else size
    return struct.pack("<IHHQiI", length, op, flags, id, status, reserved) + body


def hello(
    *, magic: int = MAGIC, versions: tuple[int, int] = (5, 5), run: int = 7, read: int = 262144,
    requests: int = 1024, node: bytes = b"raw", instance: int = 9,
) -> bytes:  # fmt: skip
    """The greeting."""
    body = struct.pack("<QIIQIIQQ", magic, *versions, run, read, requests, instance, 0)
    return frame(HELLO, body + node.ljust(64, b"\0"))


def stream(run: int, to_run: int, *, magic: int = MAGIC) -> bytes:
    """The first frame of a connection that is to be a stream."""
    return frame(STREAM, struct.pack("<QQQ", magic, run, to_run))


def key(name: bytes, namespace: bytes = b"") -> bytes:
    """A name as the protocol has it."""
    return namespace + b"\0" + name


def asking(op: int, name: bytes, *, id: int = 1, flags: int = 0) -> bytes:
    """OPEN, WAIT or NAMES."""
    return frame(op, struct.pack("<II", len(key(name)), flags) + key(name), id=id)


def removing(
    name: bytes, *, id: int = 1, flags: int = 0, instance: int = 9, number: int = 1, settled: int = 0
) -> bytes:  # fmt: skip
    """REMOVE; whoever removes twice gives two numbers."""
    head = struct.pack("<QQQII", instance, number, settled, len(key(name)), flags)
    return frame(REMOVE, head + key(name), id=id)


class Raw:
    """A connection that has shown its key. It answers PINGs, unless answers_pings is taken away."""

    answers_pings = True
    _ahead = b""  # of the next frame

    def __init__(self, keys: Path, port: int, greeting: bytes | None = None) -> None:
        plain = socket.create_connection(("127.0.0.1", port), 60)
        self.socket = context(keys).wrap_socket(plain)
        if greeting is None or greeting:
            self.send(hello() if greeting is None else greeting)

    def send(self, data: bytes) -> None:
        """Sends; that the other side has ended shows at the next receive."""
        try:
            self.socket.sendall(data)
        except OSError:
            pass

    def receive(
        self, requests: bool = False, pings: bool = False
    ) -> tuple[int, int, int, bytes] | None:
        """The next answer, or (requests) the next frame that is no PING (pings: or one): op, id, status, body; None: the end.

        What an earlier connection had offered is asked for again on this one.
        """
        while True:
            head = self._exactly(24)
            if head is None:
                return None
            size, op, _, id, status, _ = struct.unpack("<IHHQiI", head)
            body = self._exactly(size - 24)
            if body is None:
                return None
            if op == PING:
                if self.answers_pings:
                    self.send(frame(PING | REPLY, id=id))
                if pings:
                    return op, id, status, body
            elif op not in (HELLO, STREAMS) and (requests or op & REPLY):
                return op, id, status, body

    def idle(self) -> None:
        """Answers the PINGs that have come, while a test is busy with other connections; nothing else may have come."""
        while self._next_began():
            head = self._exactly(24)
            if head is None:
                return
            size, op, _, id, _, _ = struct.unpack("<IHHQiI", head)
            self._exactly(size - 24)
            assert op in (PING, HELLO, STREAMS), op
            if op == PING:
                self.send(frame(PING | REPLY, id=id))

    def _next_began(self) -> bool:
        """Whether some of a frame is there."""
        timeout = self.socket.gettimeout()
        self.socket.settimeout(0)
        try:
            self._ahead += self.socket.recv(1)
        except ssl.SSLWantReadError:
            pass
        except OSError:  # the end, which shows at the next receive
            return False
        finally:
            self.socket.settimeout(timeout)
        return bool(self._ahead)

    def versions(self) -> tuple[int, int]:
        """What the other side speaks, from its HELLO, which is the first that it says."""
        head, body = self._exactly(24), self._exactly(112)
        assert head is not None and body is not None
        assert struct.unpack("<IHHQiI", head)[1] == HELLO
        magic, least, most = struct.unpack("<QII", body[:16])
        assert magic == MAGIC
        return least, most

    def ended(self) -> bool:
        """Whether the other side ends the connection."""
        return self.receive() is None

    def _exactly(self, count: int) -> bytes | None:
        data, self._ahead = self._ahead, b""
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except TimeoutError:
                raise
            except OSError:  # a reset, or a TLS end that is none
                return None
            if not more:
                return None
            data += more
        return data

    def close(self) -> None:
        """Ends it."""
        self.socket.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.close()


def greeted(keys: Path, port: int, run_here: int) -> tuple[Raw, int, list[tuple[int, bytes]]]:
    """A link, the run of the other side's bridge, and what it said until it answered."""
    link = Raw(keys, port, hello(run=run_here))
    link.send(frame(PING, id=99))
    said, run = [], 0
    while True:
        size, op, _, id, _, _ = struct.unpack("<IHHQiI", link._exactly(24) or b"")
        body = link._exactly(size - 24) or b""
        if op == HELLO:
            run = struct.unpack_from("<Q", body, 16)[0]
        elif op == PING | REPLY and id == 99:
            return link, run, said
        elif op == PING:
            link.send(frame(PING | REPLY, id=id))
        else:
            said.append((op, body))


def begun_stream(keys: Path, port: int, run_here: int, run_there: int) -> Raw:
    """A stream beside a link, that was let in."""
    made = Raw(keys, port, stream(run_here, run_there))
    answer = made.receive()
    assert answer is not None and answer[0] == STREAM | REPLY and answer[2] == 0
    made.send(frame(PING, id=50))
    answer = made.receive()
    assert answer is not None and answer[:3] == (PING | REPLY, 50, 0)
    return made
