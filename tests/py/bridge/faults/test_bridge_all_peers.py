"""What all peers together may make a bridge keep: beyond, each has a part of its own, and others are served."""

from __future__ import annotations

import contextlib
import errno
import struct
from collections.abc import Iterator

import bridge_raw as raw
import bridge_support
import pytest
from bridge_liar import about
from bridge_raw import Raw, frame, key
from bridge_support import Node

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())
MIB = 1 << 20
LISTS_ALL = 256 * MIB  # CWB_LISTS_ALL_MAX
LISTS_OWN = 128 << 10  # CWB_LISTS_OWN
KEPT, KEPT_ALL, KEPT_OWN = 8192, 65536, 64  # CWB_PUTS_KEPT_MAX, ..._ALL_MAX, ..._OWN
PEERS = 9
AT_ONCE = 512  # offers, of the 1,024 that are agreed
REPLACE = 1  # CW_PUT_REPLACE
NOTHING = 0x2D06800538D394C2  # the hash of no bytes


@pytest.fixture
def crowd() -> Iterator[tuple[Node, list[Node]]]:
    """A node, and some with keys that it knows, whose brokers never run."""
    names = [f"e{i}" for i in range(PEERS)]
    with bridge_support.net("b", *names) as made:
        b, *others = made.nodes.values()
        for other in others:
            b.knows(other, "--read", "*", "--write", "*", address="")
        b.start()
        yield b, others


def idle(connections: list[Raw]) -> None:
    """They are heard of while another one is busy."""
    for connection in connections:
        connection.idle()


def listed(connection: Raw, prefix: bytes, id: int) -> tuple[int, bytes, int]:
    """Asks for a list of names: status, the source or the sentence, its size."""
    connection.send(raw.asking(raw.NAMES, prefix, id=id))
    answer = connection.receive()
    assert answer is not None and answer[1] == id
    if answer[2]:
        return answer[2], answer[3], 0
    return 0, answer[3][:8], int.from_bytes(answer[3][8:16], "little")


@pytest.mark.timeout(300)
def test_lists_of_all_peers_have_a_bound_and_small_ones_are_still_made(
    crowd: tuple[Node, list[Node]],
) -> None:
    b, others = crowd
    with b.here(), contextlib.ExitStack() as stack:
        held = cw.zeros(1)
        for i in range(5800):  # a list of 1 MiB
            cw.put(f"open/{'x' * 90}/{'y' * 90}{i}", held)
        for i in range(100):  # and one that is larger than what an answer has inside
            cw.put(f"few/{'x' * 90}/{'y' * 90}{i}", held)
        connections = [stack.enter_context(Raw(other.keys, b.port)) for other in others[:6]]
        total, refused, sources = 0, 0, [[] for _ in connections]
        for number, connection in enumerate(connections[:5]):
            status = 0
            for i in range(100):
                status, told, size = listed(connection, b"open/", 100 + i)
                if status:
                    break
                idle(connections)
                sources[number].append(told)
                total += size
            assert status == -errno.EDQUOT, number  # its own bound, or that of all
            refused += b"CWB_LISTS_ALL_MAX" in told
        assert refused >= 1 and LISTS_ALL - 2 * MIB < total <= LISTS_ALL
        late = connections[5]
        status, told, _ = listed(late, b"open/", 1)
        assert status == -errno.EDQUOT and b"CWB_LISTS_ALL_MAX" in told
        status, _, size = listed(late, b"few/", 2)  # of its own part
        assert status == 0 and 16 << 10 < size < LISTS_OWN
        for source in sources[0][:4]:  # what is given back others may have
            connections[0].send(frame(raw.CLOSE, source + struct.pack("<II", 1, 0), id=7))
            assert connections[0].receive() is not None
        status, told, _ = listed(late, b"open/", 3)
        assert status == 0, told


def offer(name: bytes, number: int, settled: int, flags: int) -> bytes:
    """A put of an array without elements, by its number; none with a lower one than settled is repeated."""
    meta = about((0,))
    head = struct.pack("<QQQ", 9, number, settled) + struct.pack(
        "<QQQIIII", 0, 0, NOTHING, 1, flags, len(key(name)), len(meta)
    )
    return frame(raw.OFFER, head + key(name) + meta, id=number)


def put(connection: Raw, numbers: range, name: bytes, flags: int, others: list[Raw]) -> list[int]:
    """Puts under one name, or (%d in it) each under its own; returns how each ended. The others stay connected."""
    told: dict[int, int] = {}
    for first in range(numbers.start, numbers.stop, AT_ONCE):
        some = range(first, min(first + AT_ONCE, numbers.stop))
        names = [name % number if b"%d" in name else name for number in some]
        connection.send(
            b"".join(offer(n, number, first, flags) for n, number in zip(names, some, strict=True))
        )
        for _ in some:
            answer = connection.receive()
            assert answer is not None and answer[0] == raw.OFFER | raw.REPLY
            told[answer[1]] = answer[2]
        idle(others)
    return [told[number] for number in numbers]


def one_by_one(connection: Raw, numbers: range, others: list[Raw]) -> list[int]:
    """The same, each under its own name when the one before has ended: then they end in this order."""
    return [put(connection, range(n, n + 1), b"own/%d", 0, others)[0] for n in numbers]


@pytest.mark.timeout(600)
def test_what_became_of_puts_is_kept_for_all_peers_within_a_bound(
    crowd: tuple[Node, list[Node]],
) -> None:
    """A put that is repeated is answered as it was, if it is kept, and else refused by the broker, to which it is settled."""
    b, others = crowd
    with contextlib.ExitStack() as stack:
        *many, last = [stack.enter_context(Raw(other.keys, b.port)) for other in others]
        count = 100
        assert one_by_one(last, range(1, count + 1), many) == [0] * count
        assert one_by_one(last, range(1, 2), many) == [0]  # kept: done once
        for connection in many[: KEPT_ALL // KEPT]:
            assert set(put(connection, range(1, KEPT + 1), b"same", REPLACE, [*many, last])) == {0}
        # Now there is no more room: for each that comes one of its oldest goes.
        more = 60
        assert one_by_one(last, range(count + 1, count + more + 1), many) == [0] * more
        kept = range(count + more + 1 - KEPT_OWN // 2, count + more + 1)
        assert one_by_one(last, kept, many) == [0] * len(kept)
        forgotten = one_by_one(last, range(1, more // 3 + 1), many)
        assert all(status < 0 for status in forgotten), forgotten
    with b.here():
        assert cw.get("same").nbytes == cw.get("own/1").nbytes == 0
