"""GPU arrays between nodes over connections that are cut, and with a peer that reads and sends as it likes.

Runs in `make test-more`.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

import bridge_raw as raw
import bridge_support
import cuda_support
import numpy as np
import pytest
from bridge_gpu_support import BYTES, MIB, begin, empty, end, figures, run, soon
from bridge_proxy import FROM, TO, Proxy
from bridge_raw import Raw, frame, key

cuda_support.require()
pytestmark = [
    pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking()),
    cuda_support.second_gpu,
]

# More than the staging buffers at its owner, and than the ring where it comes to, have room for.
LARGE = 76 * MIB

# What a program of these tests is: it insists, for the link is cut again and again.
INSIST = """
def insist(call):
    while True:
        try: return call()
        except cw.RemoteError: time.sleep(0.01)
"""


@pytest.mark.parametrize("kind", ["get", "put"])
def test_gpu_arrays_go_on_where_they_were_cut(tmp_path: Path, kind: str) -> None:
    with cuda_support.gpus(tmp_path), bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        with Proxy(b.port) as proxy:
            a.knows(b, "--read", "*", address=f"127.0.0.1:{proxy.port}")
            b.knows(a, "--read", "*", "--write", "*", address="")
            made.start()
            assert soon(lambda: a.sees(b)), a.said()
            chance = random.Random(5)
            way = FROM if kind == "get" else TO
            proxy.cut_each = lambda: (way, chance.randrange(1 * MIB, 6 * MIB))
            before = proxy.cuts
            if kind == "get":
                run(b, f'cw.put("x", cw.asarray(values(size={LARGE}), device="cuda:0"), keep=True)')
                proxy.cut()
                done = begin(
                    a, INSIST + 'assert same(insist(lambda: cw.get("//b/x", device="cuda:1")))'
                )
            else:
                proxy.cut()
                done = begin(a, INSIST + f"""
x = cw.asarray(values(size={LARGE}), device="cuda:0")
insist(lambda: cw.put("//b/x", x, device="cuda:1", keep=True))
""")  # fmt: skip
            end(done, a, b)
            proxy.cut_each = None
            assert proxy.cuts > before + 2
            run(b, f'x = cw.get("x"); assert x.device == "cuda:{int(kind == "put")}" and same(x)')
            b.command("rm", "x")
            assert empty(a) and empty(b)


def opened(connection: Raw, name: bytes, size_bytes: int = BYTES) -> int:
    """The number of the source that an array has become."""
    connection.send(frame(raw.OPEN, struct.pack("<II", len(key(name)), 0) + key(name), id=1))
    answer = connection.receive()
    assert answer is not None and answer[:3] == (raw.OPEN | raw.REPLY, 1, 0)
    source, size = struct.unpack_from("<QQ", answer[3])
    assert size == size_bytes
    return int(source)


def closed(connection: Raw, source: int) -> int:
    """The hash over all its bytes."""
    connection.send(frame(raw.CLOSE, struct.pack("<QII", source, 0, 0), id=1))
    answer = connection.receive()
    assert answer is not None and answer[:3] == (raw.CLOSE | raw.REPLY, 1, 0)
    return int(struct.unpack("<Q", answer[3])[0])


def test_reads_of_any_range_in_any_order(tmp_path: Path) -> None:
    values = np.random.default_rng(3).integers(0, 256, BYTES, dtype="u1")
    with cuda_support.gpus(tmp_path), bridge_support.net("b", "raw") as made:
        b, reader = made.nodes.values()
        b.knows(reader, "--read", "*", address="")
        b.start()
        run(b, """
            x = np.random.default_rng(3).integers(0, 256, BYTES, dtype="u1")
            cw.put("g", cw.asarray(x, device="cuda:0"), keep=True)
            cw.put("host", x, keep=True)
        """)  # fmt: skip
        with Raw(reader.keys, b.port) as connection:
            source = opened(connection, b"g")
            # Over the bounds of chunks, backwards, again, and one byte at the very end.
            chance = random.Random(4)
            ranges = [(BYTES - 1, 1), (0, 262144)]
            ranges += [(edge - 1000, 200_000) for edge in range(5 * MIB, BYTES, 5 * MIB)][::-1]
            ranges += [
                (chance.randrange(BYTES - 262144), chance.randrange(1, 262144)) for _ in range(100)
            ]
            for i, (offset, length) in enumerate(ranges):
                connection.send(
                    frame(raw.READ, struct.pack("<QQII", source, offset, length, 0), id=2 + i)
                )
            wanted = {2 + i: span for i, span in enumerate(ranges)}
            while wanted:
                answer = connection.receive()
                assert answer is not None and answer[2] == 0, answer
                offset, length = wanted.pop(answer[1])
                assert answer[3][24:] == values[offset : offset + length].tobytes(), (
                    offset,
                    length,
                )
            # The hash is over all, whatever was read: that of the same bytes in host memory, of which none was.
            assert closed(connection, source) == closed(connection, opened(connection, b"host"))


def test_the_hash_of_what_was_hardly_read(tmp_path: Path) -> None:
    """More chunks than are kept in host memory, of which the last one alone was asked for."""
    with cuda_support.gpus(tmp_path), bridge_support.net("b", "raw") as made:
        b, reader = made.nodes.values()
        b.knows(reader, "--read", "*", address="")
        b.start()
        run(b, f"""
            x = np.random.default_rng(5).integers(0, 256, {11 * MIB}, dtype="u1")
            cw.put("g", cw.asarray(x, device="cuda:0"), keep=True)
            cw.put("host", x, keep=True)
        """)  # fmt: skip
        with Raw(reader.keys, b.port) as connection:
            source = opened(connection, b"g", 11 * MIB)
            body = struct.pack("<QQII", source, 11 * MIB - 1000, 1000, 0)
            connection.send(frame(raw.READ, body, id=2))
            answer = connection.receive()
            assert answer is not None and answer[:3] == (raw.READ | raw.REPLY, 2, 0)
            host = opened(connection, b"host", 11 * MIB)
            assert closed(connection, source) == closed(connection, host)


def test_who_stops_reading_or_closes_early_holds_nothing(tmp_path: Path) -> None:
    with cuda_support.gpus(tmp_path), bridge_support.net("b", "raw") as made:
        b, reader = made.nodes.values()
        b.knows(reader, "--read", "*", address="")
        b.start()
        run(b, 'cw.put("g", cw.asarray(values(), device="cuda:0"), keep=True)')
        with Raw(reader.keys, b.port) as connection:
            for i in range(3):
                source = opened(connection, b"g")
                for n in range(160):  # all of it, in pieces, of which nobody waits for the last
                    connection.send(
                        frame(
                            raw.READ, struct.pack("<QQII", source, n * 262144, 262144, 0), id=10 + n
                        )
                    )
                if i:
                    connection.send(frame(raw.CLOSE, struct.pack("<QII", source, 1, 0), id=500))
                    left = set(range(10, 170)) | {500}
                    while left:  # each is answered: with its bytes, or that it was closed
                        answer = connection.receive()
                        assert answer is not None and answer[2] in (0, -116), answer
                        left.remove(answer[1])
                else:
                    left = set(range(10, 170))
                    while left:
                        answer = connection.receive()
                        assert answer is not None and answer[2] == 0
                        left.remove(answer[1])
        b.command("rm", "g")
        assert empty(b)


def test_who_gives_an_array_up_whose_hash_it_asked_for_is_answered_twice(tmp_path: Path) -> None:
    with cuda_support.gpus(tmp_path), bridge_support.net("b", "raw") as made:
        b, reader = made.nodes.values()
        b.knows(reader, "--read", "*", address="")
        b.start()
        run(b, 'cw.put("g", cw.asarray(values(), device="cuda:0"), keep=True)')
        with Raw(reader.keys, b.port) as connection:
            source = opened(connection, b"g")
            # In one record of TLS, so that both are looked at before the mover has copied anything.
            connection.send(
                frame(raw.CLOSE, struct.pack("<QII", source, 0, 0), id=2)
                + frame(raw.CLOSE, struct.pack("<QII", source, 0, 0), id=3)
                + frame(raw.CLOSE, struct.pack("<QII", source, 1, 0), id=4)
            )
            answers = [connection.receive() for _ in range(3)]
            assert all(answers)
            told = {answer[1]: answer[2:] for answer in answers if answer}
            for id in (2, 3):
                status, sentence = told[id]
                assert status == -116 and b"not read any more: it was closed" in sentence
            assert told[4][0] == 0
            connection.send(frame(raw.CLOSE, struct.pack("<QII", source, 0, 0), id=5))
            answer = connection.receive()
            assert answer is not None and answer[1:3] == (5, -116)  # it is gone
        b.command("rm", "g")
        assert empty(b)


def test_wrong_bytes_for_a_gpu_are_never_seen(tmp_path: Path) -> None:
    size = 3_000_000
    about = struct.pack("<HHIHHI", 1, 1, 1, 3, 0, 0) + struct.pack("<2q", size, 1) + b"|u1"
    with cuda_support.gpus(tmp_path), bridge_support.net("b", "raw") as made:
        b, evil = made.nodes.values()
        b.knows(evil, "--write", "*", address="")
        b.start()
        # Of the second both are wrong, bytes and device: what is found first is told.
        for gpu, reasons in ((1, [b"bytes"]), (9, [b"cuda:8", b"bytes"])):
            with Raw(evil.keys, b.port) as connection:
                head = struct.pack("<QQQ", 9, 50 + gpu, 0) + struct.pack(
                    "<QQQIIII", 3, size, 0, 0, 1 | gpu << 16, len(key(b"x")), len(about)
                )
                connection.send(frame(raw.OFFER, head + key(b"x") + about, id=9))
                while True:
                    asked = connection.receive(requests=True)
                    assert asked is not None
                    op, id, status, body = asked
                    if op == raw.READ:
                        length = struct.unpack("<QQII", body)[2]
                        connection.send(frame(raw.READ | raw.REPLY, body + bytes(length), id=id))
                    elif op == raw.CLOSE:
                        connection.send(
                            frame(raw.CLOSE | raw.REPLY, struct.pack("<Q", 12345), id=id)
                        )
                    else:
                        assert op == raw.OFFER | raw.REPLY and status < 0, asked
                        assert any(why in body for why in reasons), asked
                        break
        assert b.command("ls", "--json").stdout.strip() == "[]"
        assert figures(b)["bytes_to_gpu"] <= size
        assert empty(b)
