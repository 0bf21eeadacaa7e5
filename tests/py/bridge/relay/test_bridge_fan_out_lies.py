"""Nodes that were referred to and lie, or that ask with what they were not told: nobody gets a wrong byte, or one too many."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator

import bridge_raw as raw
import bridge_support
import numpy as np
import pytest
from bridge_liar import about
from bridge_raw import Raw, frame
from bridge_support import Node
from waiting import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

MIB = 1 << 20
WATCH, REFER, FAILED, TICKET = 1, 8, 16, 32
REFERRED = 2
PIECE = 16384


class Liar:
    """A node that others may dial. `answer` says what it answers to an OPEN with a ticket; its pieces are all zeros."""

    def __init__(
        self, node: Node, listening: socket.socket, answer: Callable[[bytes], bytes]
    ) -> None:
        self.answer = answer
        self.asked: list[bytes] = []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(node.keys / "node.crt", node.keys / "node.key")
        self.context.verify_mode = ssl.CERT_NONE
        self.listening = listening
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            try:
                plain, _ = self.listening.accept()
            except OSError:
                return
            with contextlib.suppress(OSError, TypeError):
                self._serve(plain)

    def _serve(self, plain: socket.socket) -> None:
        link = Raw.__new__(Raw)
        link.socket = self.context.wrap_socket(plain, server_side=True)
        head = link._exactly(24)
        assert head is not None and link._exactly(struct.unpack("<I", head[:4])[0] - 24)
        link.send(raw.hello(run=5, node=b"evil"))
        while (request := link.receive(requests=True)) is not None:
            op, id, _, body = request
            if op == raw.OPEN:
                self.asked.append(body)
                reply = self.answer(body)
                link.send(frame(op | raw.REPLY, reply, id=id) if reply else
                          frame(op | raw.REPLY, b"no", id=id, status=-errno.ESTALE))  # fmt: skip
            elif op == raw.READ:
                length = struct.unpack("<QQII", body)[2]
                link.send(frame(op | raw.REPLY, body + bytes(length), id=id))
            elif op == raw.CLOSE:
                zeros = sum(hash_of_zeros(number) for number in range(MIB // PIECE))
                link.send(frame(op | raw.REPLY, struct.pack("<Q", zeros % (1 << 64)), id=id))


def hash_of_zeros(number: int) -> int:
    """Of one piece of zeros: XXH3 with the number as the seed."""
    from bridge_liar import _xxhash  # noqa: PLC0415

    seeded = _xxhash.XXH3_64bits_withSeed
    import ctypes  # noqa: PLC0415

    seeded.restype, seeded.argtypes = (
        ctypes.c_uint64,
        [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64],
    )
    return int(seeded(bytes(PIECE), PIECE, number))


class Owner:
    """A node with a sealed array, which sends it to one node itself; "evil", which was first; and b, which is referred to it."""

    def __init__(self, owner: Node, b: Node, evil: Node, held: socket.socket) -> None:
        self.owner, self.b, self.evil = owner, b, evil
        self.held = held
        with owner.here():
            self.values = np.random.default_rng(1).integers(0, 256, MIB, np.uint8)
            cw.put("x", self.values, keep=True, seal=True)

    def opened(self, link: Raw, flags: int = WATCH | REFER, id: int = 1) -> tuple[int, bytes]:
        """What the owner answers to an OPEN: its status and body."""
        link.send(raw.asking(raw.OPEN, b"x", id=id, flags=flags))
        while (answer := link.receive()) is not None:
            if answer[:2] == (raw.OPEN | raw.REPLY, id):
                return answer[2], answer[3]
        raise AssertionError("the link ended")


def referral(body: bytes) -> tuple[int, bytes, bytes, str]:
    """Turn, secret, digest and node, out of the body of a reply."""
    inside, _, meta = struct.unpack_from("<HHI", body, 40)
    assert inside == REFERRED
    at = 48 + meta
    turn = struct.unpack_from("<Q", body, at)[0]
    return (
        turn,
        body[at + 8 : at + 24],
        body[at + 24 : at + 56],
        body[at + 56 : at + 120].rstrip(b"\0").decode(),
    )


@pytest.fixture
def three() -> Iterator[Owner]:
    """See there."""
    with bridge_support.net("owner", "b", "evil") as made:
        owner, b, evil = made.nodes.values()
        made.acquaint("--read", "*")
        owner.options = ["--fan-out", "1"]
        for node in (owner, b):
            node.link_idle = ""
            node.start()
        held = next(held for held in made.held if held.getsockname()[1] == evil.port)
        yield Owner(owner, b, evil, held)


def reply(three: Owner, body: bytes, *, size: int = MIB, entry_more: int = 0) -> bytes:
    """An answer to an OPEN with a ticket, of what the ticket is for."""
    key_bytes = struct.unpack_from("<I", body)[0]
    instance, entry = struct.unpack_from("<QQ", body, 8 + key_bytes)
    meta = about((size,))
    return (
        struct.pack("<QQQQQHHI", 7, size, instance, entry + entry_more, 0, 0, 0, len(meta)) + meta
    )


@pytest.mark.parametrize("lie", ["bytes", "size", "array", "nothing", "silence"])
def test_a_node_that_was_referred_to_lies(three: Owner, lie: str) -> None:
    answers: dict[str, Callable[[bytes], bytes]] = {
        "bytes": lambda body: reply(three, body),
        "size": lambda body: reply(three, body, size=MIB + PIECE),
        "array": lambda body: reply(three, body, entry_more=1),
        "nothing": lambda _: b"",
        "silence": lambda _: threading.Event().wait(20) and b"" or b"",
    }
    listening = socket.socket(fileno=socket.dup(three.held.fileno()))
    listening.listen(8)
    liar = Liar(three.evil, listening, answers[lie])
    with listening, Raw(three.evil.keys, three.owner.port, raw.hello(run=5, node=b"evil")) as link:
        status, body = three.opened(link)
        assert status == 0 and referral(body)[3] == ""  # it was sent the bytes
        answering = threading.Thread(target=lambda: [None for _ in iter(link.receive, None)])
        answering.start()
        with three.b.here():
            assert np.array_equal(cw.get("//owner/x").numpy(), three.values)
        with contextlib.suppress(OSError):
            link.socket.shutdown(socket.SHUT_RDWR)
        answering.join()
    assert liar.asked and struct.unpack_from("<I", liar.asked[0], 4)[0] == TICKET
    said = three.b.said()
    assert "an array of owner did not come from evil, which has it, too" in said
    if lie == "bytes":
        assert "the bytes that came are not those of which owner has the digest" in said
    assert "evil" not in three.b.command("ls", "--all").stdout


def ticket(instance: int, entry: int, turn: int, secret: bytes, id: int) -> bytes:
    """An OPEN of a node's replica of the owner's array."""
    name = raw.key(b"x")
    body = (
        struct.pack("<II", len(name), TICKET)
        + name
        + struct.pack("<QQQ", instance, entry, turn)
        + secret
    )
    return frame(raw.OPEN, body, id=id)


def test_a_replica_is_given_to_who_knows_its_secret(three: Owner) -> None:
    with three.b.here():
        cw.get("//owner/x").close()
    with Raw(three.evil.keys, three.owner.port, raw.hello(run=5, node=b"evil")) as link:
        status, body = three.opened(link)
    turn, secret, digest, node = referral(body)
    instance, entry = struct.unpack_from("<QQ", body, 16)
    assert (status, node) == (0, "b") and any(digest) and struct.unpack_from("<Q", body)[0] == 0
    with Raw(three.evil.keys, three.b.port, raw.hello(run=5, node=b"evil")) as link:
        wrong = {
            11: ticket(instance, entry, turn, bytes(16), 11),
            12: ticket(instance + 1, entry, turn, secret, 12),
            13: ticket(instance, entry + 1, turn, secret, 13),
            14: ticket(instance, entry, turn, secret[:15] + bytes([secret[15] ^ 1]), 14),
        }
        for id, asked in wrong.items():
            link.send(asked)
            answer = link.receive()
            assert answer is not None and answer[1:3] == (id, -errno.ESTALE)
        link.send(ticket(instance, entry, turn, secret, 20))
        answer = link.receive()
        assert answer is not None and answer[1:3] == (20, 0)
        source = struct.unpack_from("<Q", answer[3])[0]
        link.send(frame(raw.READ, struct.pack("<QQII", source, 0, PIECE, 0), id=21))
        answer = link.receive()
        assert answer is not None and answer[3][24:] == three.values[:PIECE].tobytes()


def test_who_may_not_read_it_is_told_no_secret(three: Owner) -> None:
    three.owner.knows(three.evil, "--read", "other/*")

    def refused() -> bool:  # once the bridge has read its file of peers again
        with Raw(three.evil.keys, three.owner.port, raw.hello(run=5, node=b"evil")) as link:
            link.send(raw.asking(raw.OPEN, b"y", id=1, flags=WATCH | REFER))
            none = link.receive()
            link.send(raw.asking(raw.OPEN, b"x", id=2, flags=WATCH | REFER))
            found = link.receive()
        assert none is not None and none[2] == -errno.ENOENT and found is not None
        return found[2] == none[2] and found[3].replace(b'"x"', b'"y"') == none[3]

    assert eventually(refused)


@pytest.mark.parametrize(
    "flags", [REFER, FAILED | WATCH, TICKET | WATCH, TICKET | REFER, 64, REFER | WATCH | 2]
)
def test_flags_that_cannot_be_end_the_link(three: Owner, flags: int) -> None:
    with Raw(three.evil.keys, three.owner.port, raw.hello(run=5, node=b"evil")) as link:
        more = struct.pack("<QQQQQ", 1, 1, 1, 0, 0) if flags & TICKET else b""
        name = raw.key(b"x")
        link.send(frame(raw.OPEN, struct.pack("<II", len(name), flags) + name + more))
        assert link.ended()
