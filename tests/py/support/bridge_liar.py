"""A peer of the tests' own that answers what a node asks of it, truly or not."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import ctypes.util
import errno
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import bridge_raw as raw
import bridge_support
from bridge_raw import Raw, frame
from bridge_support import Node
from conftest import eventually

import cableway as cw


def about(shape: tuple[int, ...]) -> bytes:
    """The metadata of an array of bytes with one dimension."""
    return struct.pack("<HHIHHI", 1, 1, 1, 3, 0, 0) + struct.pack("<2q", *shape, 1) + b"|u1"


def opened(
    size: int, meta: bytes, data: bytes = b"", *, source: int = 5, inside: int = 0, hash: int = 0, ahead: int = 0
) -> bytes:  # fmt: skip
    """The body of a reply to OPEN."""
    fixed = struct.pack("<QQQQQHHI", source, size, 1, 2, hash, inside, ahead, len(meta))
    return fixed + meta + data


_xxhash = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
_xxhash.XXH3_64bits.restype = ctypes.c_uint64
_xxhash.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def hash_of(data: bytes) -> int:
    """The hash of bytes that go inside."""
    return int(_xxhash.XXH3_64bits(data, len(data)))


class Liar:
    """Answers what it is asked on its connection, in a thread of its own, until that ends."""

    def __init__(self, connection: Raw, answer: Callable[[int, int, bytes], bytes]) -> None:
        self.connection = connection
        self.answer = answer
        self.seen: list[int] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while (request := self.connection.receive(requests=True)) is not None:
            op, id, _, body = request
            self.seen.append(op)
            if not op & raw.REPLY:
                self.connection.send(self.answer(op, id, body))

    def __enter__(self) -> Liar:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.connection.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.thread.join(30)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def good_and_evil(engine: str) -> Iterator[tuple[Node, Node]]:
    """A node whose bridge has that engine, and one with a key that it knows, whose broker never runs."""
    with bridge_support.net("b", "evil") as made:
        b, evil = made.nodes.values()
        b.knows(evil, "--read", "open/*", "--write", "in/*", address="")
        b.start(**({"CABLEWAY_BRIDGE_EPOLL": "1"} if engine == "epoll" else {}))
        yield b, evil


def no(op: int, id: int, _: bytes) -> bytes:
    """Says of everything that it is not there."""
    return frame(op | raw.REPLY, b"it is not there", id=id, status=-errno.ENOENT)


def lied_to(
    b: Node, evil: Node, answer: Callable[[int, int, bytes], bytes], call: Callable[[], object], breach: bool
) -> str:  # fmt: skip
    """The error of a call that is answered so. After a breach the connection ends, and who asks again is told the truth:
    a call waits for a while for its peer to come back."""
    pid = b.bridge_pid()
    with b.here(), concurrent.futures.ThreadPoolExecutor() as pool:
        with Raw(evil.keys, b.port) as connection:
            known(connection, b, evil)
            with Liar(connection, answer) as liar:
                told = pool.submit(call)
                if breach:
                    liar.thread.join(30)
                    assert not liar.thread.is_alive()  # the other side has ended it
                else:
                    concurrent.futures.wait([told], 30)
                    assert b.sees(evil), b.said()
                assert liar.seen
        if breach:
            with Raw(evil.keys, b.port) as connection, Liar(connection, no):
                concurrent.futures.wait([told], 30)
        error = told.exception(0)
    assert isinstance(error, cw.Error)
    assert b.bridge_pid() == pid
    print(type(error).__name__, error)
    return str(error)


def known(connection: Raw, b: Node, evil: Node) -> None:
    """The connection is open, and the only one."""
    connection.send(frame(raw.PING))
    assert connection.receive() is not None
    assert eventually(lambda: b.state_of(evil)["streams"] == "1")


def visitor(node: Node, name: bytes) -> socket.socket:
    """A client at the door that asked for a name of the node "evil"."""
    (path,) = node.folder.glob("*.door")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.settimeout(30)
    made.connect(str(path))
    key = b"\0//evil/" + name
    made.send(struct.pack("<IIHH60x", 1, 0, len(key), 0) + key)
    return made
