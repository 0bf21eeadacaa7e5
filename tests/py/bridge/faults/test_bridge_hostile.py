"""Nodes that break the rules of the protocol between nodes: they alone are cut off, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import bridge_raw as raw
import bridge_support
import numpy as np
import pytest
from bridge_raw import Raw, asking, frame, hello, key
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())


@pytest.fixture(scope="module", params=["io_uring", "epoll"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node, Node]]:
    """Two good nodes, and one with a key that b knows, whose broker never runs."""
    with bridge_support.net("a", "b", "evil") as made:
        a, b, evil = made.nodes.values()
        a.knows(b, "--read", "*")
        b.knows(a, "--read", "*", "--write", "*")
        b.knows(evil, "--read", "open/*", "--write", "in/*", address="")
        more = {"CABLEWAY_BRIDGE_EPOLL": "1"} if request.param == "epoll" else {}
        a.start(**more)
        b.start(**more)
        assert eventually(lambda: a.sees(b)), a.said()
        with b.here():
            # Kept, since the tests may take minutes.
            cw.put("open/small", [1, 2, 3], keep=True)
            cw.put("open/large", np.zeros(1_000_000, "u1"), keep=True)
        yield a, b, evil


@pytest.fixture(autouse=True)
def others_notice_nothing(nodes: tuple[Node, Node, Node]) -> Iterator[None]:
    """After each test the good node is served as before, by the same bridge."""
    a, b, _ = nodes
    before = b.bridge_pid()
    yield
    assert b.bridge_pid() == before, b.said()
    with a.here():
        cw.put("//b/in/alive", [5])
        assert cw.get("//b/in/alive").numpy().tolist() == [5]


def refused(keys: Path, port: int, context: ssl.SSLContext | None = None) -> bool:
    """Whether a connection gets no frame at all."""
    plain = socket.create_connection(("127.0.0.1", port), 60)
    try:
        with (context or raw.context(keys)).wrap_socket(plain) as secure:
            secure.sendall(hello())
            return secure.recv(1) == b""
    except OSError:
        return True
    finally:
        plain.close()


def test_an_unknown_key_is_refused(nodes: tuple[Node, Node, Node], tmp_path: Path) -> None:
    _, b, evil = nodes
    stranger = {**evil.environment, "CABLEWAY_NODE_DIR": str(tmp_path)}
    subprocess.run(
        [bridge_support.program("cableway"), "keygen"],
        env=stranger,
        check=True,
        capture_output=True,
    )
    assert refused(tmp_path, b.port)
    assert not refused(evil.keys, b.port)


def test_no_certificate_is_refused(nodes: tuple[Node, Node, Node]) -> None:
    _, b, evil = nodes
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    assert refused(evil.keys, b.port, context)


def test_an_older_tls_is_refused(nodes: tuple[Node, Node, Node]) -> None:
    _, b, evil = nodes
    context = raw.context(evil.keys)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert refused(evil.keys, b.port, context)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")
def test_an_expired_certificate_is_refused(nodes: tuple[Node, Node, Node], tmp_path: Path) -> None:
    _, b, evil = nodes
    (tmp_path / "index").write_text("")
    (tmp_path / "serial").write_text("01")
    (tmp_path / "ca.cnf").write_text(
        f"[ca]\ndefault_ca=d\n[d]\ndatabase={tmp_path}/index\nserial={tmp_path}/serial\n"
        f"new_certs_dir={tmp_path}\ndefault_md=default\npolicy=p\n[p]\ncommonName=supplied\n"
        "[req]\ndistinguished_name=n\nprompt=no\n[n]\nCN=evil\n"
    )
    shutil.copy(evil.keys / "node.key", tmp_path / "node.key")
    config = ["-config", str(tmp_path / "ca.cnf")]
    for words in (
        ["req", "-new", *config, "-key", f"{tmp_path}/node.key", "-out", f"{tmp_path}/csr"],
        ["ca", "-batch", "-selfsign", *config, "-keyfile", f"{tmp_path}/node.key", "-in", f"{tmp_path}/csr",
         "-startdate", "20200101000000Z", "-enddate", "20210101000000Z", "-out", f"{tmp_path}/node.crt",
         "-notext"],
    ):  # fmt: skip
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    assert refused(tmp_path, b.port)


def test_bytes_that_are_no_tls_end_the_connection(nodes: tuple[Node, Node, Node]) -> None:
    _, b, _ = nodes
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x16\x03\x01\xff\xff" + b"\xee" * 3000, os.urandom(4000)):  # fmt: skip
        with socket.create_connection(("127.0.0.1", b.port), 60) as plain:
            plain.sendall(nonsense)
            plain.settimeout(60)
            assert _to_the_end(plain)


def _to_the_end(plain: socket.socket) -> bool:
    try:
        while plain.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def test_who_shows_no_key_may_send_4096_bytes(nodes: tuple[Node, Node, Node]) -> None:
    _, b, evil = nodes
    with socket.create_connection(("127.0.0.1", b.port), 60) as plain:
        hello = raw.client_hello(evil.keys)
        # Behind its hello a record of TLS that goes on and on, and is never whole.
        plain.sendall(hello + b"\x17\x03\x03\x3f\xff" + bytes(4096 - 5 - len(hello)))
        plain.settimeout(0.3)
        with pytest.raises(TimeoutError):
            while plain.recv(65536):  # the server's part of the handshake, and no end yet
                pass
        plain.sendall(b"\0")
        plain.settimeout(60)
        assert _to_the_end(plain)


@pytest.mark.parametrize("cut", [1, 3, 5, 50])
def test_a_first_record_may_come_in_pieces(nodes: tuple[Node, Node, Node], cut: int) -> None:
    _, b, evil = nodes
    hello = raw.client_hello(evil.keys)
    with socket.create_connection(("127.0.0.1", b.port), 60) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for begin in range(0, len(hello), max(cut, len(hello) // 60)) if cut > 5 else (0,):
            plain.sendall(
                hello[begin : begin + max(cut, len(hello) // 60)] if cut > 5 else hello[:cut]
            )
        if cut <= 5:
            time.sleep(0.05)  # it comes alone
            plain.sendall(hello[cut:])
        assert plain.recv(3) == b"\x16\x03\x03"  # the server's


def test_a_first_record_of_more_than_2048_bytes_is_not_read(nodes: tuple[Node, Node, Node]) -> None:
    _, b, _ = nodes
    for length, ends in ((2048 - 5, False), (2048 - 4, True)):
        with socket.create_connection(("127.0.0.1", b.port), 60) as plain:
            plain.sendall(b"\x16\x03\x01" + length.to_bytes(2, "big") + b"\x01")
            plain.settimeout(60 if ends else 0.3)
            if ends:
                assert _to_the_end(plain)
            else:
                with pytest.raises(TimeoutError):
                    plain.recv(1)


CHANGED_SPARE = 1024  # CWB_CHANGED_SPARE
TOKEN = struct.pack("<QQQ", 9, 1, 0)
BREACHES = {
    "no-hello": (b"", frame(raw.PING)),
    "wrong-magic": (hello(magic=1), b""),
    "older-version": (hello(versions=(0, 0)), b""),
    "other-version": (hello(versions=(6, 9)), b""),
    "no-run": (hello(run=0), b""),
    "no-broker": (hello(instance=0), b""),
    "small-read": (hello(read=100), b""),
    "no-requests": (hello(requests=1), b""),
    "bad-node": (hello(node=b"-no"), b""),
    "unterminated-node": (hello(node=b"n" * 64), b""),
    "second-hello": (None, hello()),
    "no-such-op": (None, frame(99)),
    "op-zero": (None, frame(0)),
    "one-byte-too-long": (None, frame(raw.OPEN, bytes(32768 - 23))),
    "four-gigabytes": (None, frame(raw.OPEN, b"", size=0xFFFFFFFF)),
    "shorter-than-a-head": (None, frame(raw.PING, size=5)),
    "flags": (None, frame(raw.PING, flags=1)),
    "reserved": (None, frame(raw.PING, reserved=1)),
    "status-in-a-request": (None, frame(raw.PING, status=-2)),
    "ping-with-body": (None, frame(raw.PING, b"x")),
    "reply-to-nothing": (None, frame(raw.PING | raw.REPLY, id=12345)),
    "data-to-nothing": (None, frame(raw.READ | raw.REPLY, struct.pack("<QQII", 1, 0, 4, 0) + b"abcd")),
    "status-of-no-error": (None, frame(raw.PING | raw.REPLY, status=-5000)),
    "reply-with-good-status": (None, frame(raw.PING | raw.REPLY, status=1)),
    "key-without-namespace": (None, frame(raw.OPEN, struct.pack("<II", 4, 0) + b"open")),
    "key-longer-than-frame": (None, frame(raw.OPEN, struct.pack("<II", 200, 0) + key(b"open/x"))),
    "bytes-behind-the-key": (None, frame(raw.OPEN, struct.pack("<II", 7, 0) + key(b"open/x") + b"yyy")),
    "name-with-dots": (None, asking(raw.OPEN, b"open/../x")),
    "name-of-another-node": (None, asking(raw.OPEN, b"//a/x")),
    "open-flags": (None, asking(raw.OPEN, b"open/x", flags=8)),
    "read-of-nothing": (None, frame(raw.READ, struct.pack("<QQII", 1, 0, 0, 0))),
    "read-too-much": (None, frame(raw.READ, struct.pack("<QQII", 1, 0, 262145, 0))),
    "offer-of-2^63": (
        None,
        frame(raw.OFFER, TOKEN + struct.pack("<QQQIIII", 1, 1 << 63, 0, 0, 0, 5, 0) + key(b"in/x")),
    ),
    "offer-without-metadata": (
        None,
        frame(raw.OFFER, TOKEN + struct.pack("<QQQIIII", 0, 4, 0, 1, 0, 5, 0) + key(b"in/x") + b"abcd"),
    ),
    "offer-flags": (
        None,
        frame(raw.OFFER, TOKEN + struct.pack("<QQQIIII", 0, 0, 0, 1, 64, 5, 0) + key(b"in/x")),
    ),
    "remove-without-token": (None, raw.removing(b"in/x", number=0)),
    "remove-of-no-broker": (None, raw.removing(b"in/x", instance=0)),
    "remove-after-it-was-settled": (None, raw.removing(b"in/x", settled=2)),
    "remove-flags": (None, raw.removing(b"in/x", flags=1)),
    "close-flags": (None, frame(raw.CLOSE, struct.pack("<QII", 1, 2, 0))),
}  # fmt: skip


@pytest.mark.parametrize("versions", [(0, 0), (4, 4), (6, 9)])
def test_who_speaks_another_version_is_told_which_this_is(
    nodes: tuple[Node, Node, Node], versions: tuple[int, int]
) -> None:
    _, b, evil = nodes
    with Raw(evil.keys, b.port, hello(versions=versions)) as connection:
        assert connection.versions() == (5, 5)
        assert connection.ended()
    assert eventually(lambda: "speaks versions {} to {}".format(*versions) in b.said())


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_of_form_ends_the_connection(nodes: tuple[Node, Node, Node], breach: str) -> None:
    _, b, evil = nodes
    greeting, data = BREACHES[breach]
    with Raw(evil.keys, b.port, greeting) as connection:
        connection.send(data)
        assert connection.ended(), breach


def meta(shape: tuple[int, ...], dtype: bytes = b"|u1") -> bytes:
    """The metadata of an array in C order."""
    strides = [1] * len(shape)
    for i in reversed(range(len(shape) - 1)):
        strides[i] = strides[i + 1] * shape[i + 1]
    return (
        struct.pack("<HHIHHI", 1, len(shape), 1, len(dtype), 0, 0)
        + struct.pack(f"<{2 * len(shape)}q", *shape, *strides) + dtype
    )  # fmt: skip


def offer(name: bytes, size: int, about: bytes, token: int = 1, source: int = 3) -> bytes:
    """An offer of an array that does not go inside."""
    head = struct.pack("<QQQ", 9, token, 0) + struct.pack(
        "<QQQIIII", source, size, 0, 0, 1, len(key(name)), len(about)
    )
    return frame(raw.OFFER, head + key(name) + about, id=9)


def test_an_array_larger_than_all_memory_is_refused_and_takes_none(
    nodes: tuple[Node, Node, Node],
) -> None:
    _, b, evil = nodes
    with Raw(evil.keys, b.port) as connection:
        connection.send(offer(b"in/huge", 1 << 46, meta((1 << 46,))))
        answer = connection.receive()
        assert answer is not None
        op, id, status, sentence = answer
        assert (op, id) == (raw.OFFER | raw.REPLY, 9) and status < 0 and b"bytes" in sentence


def test_wrong_bytes_are_never_seen(nodes: tuple[Node, Node, Node]) -> None:
    _, b, evil = nodes
    size = 100_000
    with Raw(evil.keys, b.port) as connection:
        connection.send(offer(b"in/wrong", size, meta((size,)), token=77))
        got = 0
        while (asked := connection.receive(requests=True)) is not None:
            op, id, _, body = asked
            if op == raw.READ:
                _, _, length, _ = struct.unpack("<QQII", body)
                connection.send(frame(raw.READ | raw.REPLY, body + bytes(length), id=id))
                got += length
            elif op == raw.CLOSE:
                connection.send(frame(raw.CLOSE | raw.REPLY, struct.pack("<Q", 12345), id=id))
            else:
                assert op == raw.OFFER | raw.REPLY
                assert asked[2] < 0
                break
        assert got == size
    with b.here(), pytest.raises(cw.NameNotFound):
        cw.get("in/wrong")


def test_other_bytes_than_those_asked_for_end_the_connection(
    nodes: tuple[Node, Node, Node],
) -> None:
    _, b, evil = nodes
    with Raw(evil.keys, b.port) as connection:
        connection.send(offer(b"in/other", 100_000, meta((100_000,)), token=78))
        asked = connection.receive(requests=True)
        assert asked is not None and asked[0] == raw.READ
        source, offset, length, _ = struct.unpack("<QQII", asked[3])
        lie = struct.pack("<QQII", source, offset + 1, length, 0)
        connection.send(frame(raw.READ | raw.REPLY, lie + bytes(length), id=asked[1]))
        assert connection.ended()


def test_a_source_is_read_by_who_opened_it_and_within_its_bounds(
    nodes: tuple[Node, Node, Node],
) -> None:
    _, b, evil = nodes
    with Raw(evil.keys, b.port) as connection:
        connection.send(asking(raw.OPEN, b"open/large"))
        answer = connection.receive()
        assert answer is not None and answer[2] == 0
        source, size = struct.unpack("<QQ", answer[3][:16])
        assert size == 1_000_000
        connection.send(frame(raw.READ, struct.pack("<QQII", source, 999_999, 1, 0), id=2))
        answer = connection.receive()
        assert answer is not None and answer[3][24:] == b"\0"
        connection.send(frame(raw.READ, struct.pack("<QQII", source + 1, 0, 1, 0), id=3))
        answer = connection.receive()
        assert answer is not None and answer[2] < 0
        connection.send(frame(raw.READ, struct.pack("<QQII", source, 999_999, 2, 0), id=4))
        assert connection.ended()


def test_more_requests_than_agreed_end_the_connection(nodes: tuple[Node, Node, Node]) -> None:
    _, b, evil = nodes
    with Raw(evil.keys, b.port) as connection:
        connection.send(asking(raw.OPEN, b"open/large"))
        answer = connection.receive()
        assert answer is not None
        (source,) = struct.unpack("<Q", answer[3][:8])
        for id in range(10, 3000):  # reads without taking anything
            connection.send(frame(raw.READ, struct.pack("<QQII", source, 0, 262144, 0), id=id))
        while connection.receive() is not None:
            pass


def test_who_tells_of_more_changes_than_it_was_asked_for_is_cut(
    nodes: tuple[Node, Node, Node],
) -> None:
    _, b, evil = nodes
    changed = frame(raw.CHANGED, struct.pack("<QQII", 1, 1, len(key(b"x")), 0) + key(b"x"))
    with Raw(evil.keys, b.port) as connection:
        connection.send(frame(raw.PING))
        assert connection.receive() is not None  # before that it may send 4096 bytes
        connection.send(changed * CHANGED_SPARE + frame(raw.PING, id=3))
        answer = connection.receive()
        assert answer is not None and answer[1] == 3
        connection.send(changed)
        assert connection.ended()
    assert eventually(lambda: "1024 changes more than it was asked to" in b.said())


def test_an_id_that_is_under_way_ends_the_connection(nodes: tuple[Node, Node, Node]) -> None:
    _, b, evil = nodes
    with Raw(evil.keys, b.port) as connection:
        connection.send(asking(raw.WAIT, b"open/never", id=5) * 2)
        assert connection.ended()


def test_what_may_not_be_written_is_not(nodes: tuple[Node, Node, Node]) -> None:
    _, b, evil = nodes
    with Raw(evil.keys, b.port) as connection:
        connection.send(offer(b"open/small", 100_000, meta((100_000,)), token=79))
        answer = connection.receive()
        assert answer is not None and answer[2] < 0 and b"write" in answer[3]
        connection.send(raw.removing(b"open/small", id=3))
        answer = connection.receive()
        assert answer is not None and answer[2] < 0
        connection.send(asking(raw.OPEN, b"hidden", id=4))
        connection.send(asking(raw.OPEN, b"in/alive", id=5))
        hidden, other = connection.receive(), connection.receive()
        assert hidden is not None and other is not None
        assert hidden[2] == other[2] and hidden[3].replace(b"hidden", b"in/alive") == other[3]
    with b.here():
        assert cw.get("open/small").numpy().tolist() == [1, 2, 3]


def test_what_may_not_be_seen_is_as_what_is_not_there(nodes: tuple[Node, Node, Node]) -> None:
    """Whatever is asked, the answers about both are the same to the byte, but for the name."""
    _, b, evil = nodes
    with b.here():
        cw.put("hidden/there", np.zeros(5))
    asks = {
        "open": lambda name: asking(raw.OPEN, name, id=7),
        "open-and-watch": lambda name: asking(raw.OPEN, name, id=7, flags=1),
        "names": lambda name: asking(raw.NAMES, name[:-1], id=7),
        "names-all": lambda name: asking(raw.NAMES, name, id=7),
        "remove": lambda name: raw.removing(name, id=7),
        "offer": lambda name: offer(name, 100_000, meta((100_000,)), token=91),
        "wait": lambda name: (
            asking(raw.WAIT, name, id=7) + frame(raw.CANCEL, struct.pack("<Q", 7), id=8)
        ),
    }  # fmt: skip
    for what, ask in asks.items():
        answers = []
        for name in (b"hidden/there", b"hidden/never"):
            with Raw(evil.keys, b.port) as connection:
                connection.send(ask(name))
                answer = connection.receive()
                assert answer is not None, what
                answers.append((*answer[:3], answer[3].replace(name, b"NAME")))
        assert answers[0] == answers[1], what
        # A list is empty; all else is refused.
        assert answers[0][2] < 0 or what.startswith("names"), what
        assert b"hidden" not in answers[0][3]
    with b.here():
        assert cw.get("hidden/there").shape == (5,)


def test_a_cancelled_wait_is_answered_and_forgotten(nodes: tuple[Node, Node, Node]) -> None:
    _, b, evil = nodes
    with Raw(evil.keys, b.port) as connection:
        connection.send(asking(raw.WAIT, b"open/later", id=5))
        connection.send(frame(raw.CANCEL, struct.pack("<Q", 5), id=6))
        answer = connection.receive()
        assert answer is not None and answer[1] == 5 and answer[2] < 0
        connection.send(asking(raw.WAIT, b"open/later", id=5))
        with b.here():
            cw.put("open/later", [1])
        answer = connection.receive()
        assert answer is not None and answer[1:3] == (5, 0)


def test_a_put_offered_again_while_it_is_under_way_is_one_put(
    nodes: tuple[Node, Node, Node],
) -> None:
    _, b, evil = nodes
    size = 100_000

    def offers(connection: Raw) -> None:
        connection.send(again)
        connection.send(frame(raw.PING))  # answered behind it: then the offer is known there
        while (answer := connection.receive(requests=True)) is not None:
            if answer[0] == raw.PING | raw.REPLY:
                return
            unread.append(answer)
        raise AssertionError("the connection ended")

    unread: list[tuple[int, int, int, bytes]] = []
    again = offer(b"in/twice", size, meta((size,)), token=80, source=80)
    with Raw(evil.keys, b.port) as older:
        offers(older)
        with Raw(evil.keys, b.port) as newer:
            unread.clear()  # what was asked over the older one, which has ended
            offers(newer)
            assert older.ended()
            while True:
                asked = unread.pop(0) if unread else newer.receive(requests=True)
                assert asked is not None
                op, id, status, body = asked
                if op == raw.READ:
                    (length,) = struct.unpack("<I", body[16:20])
                    newer.send(frame(raw.READ | raw.REPLY, body + bytes(length), id=id))
                elif op == raw.CLOSE:  # of other bytes
                    newer.send(frame(raw.CLOSE | raw.REPLY, struct.pack("<Q", 12345), id=id))
                else:
                    assert op == raw.OFFER | raw.REPLY and id == 9 and status < 0
                    break
            offers(newer)  # it was done: answered at once, and nothing is asked for
            assert [told[0] for told in unread] == [raw.OFFER | raw.REPLY]
            assert unread[0] == asked
