"""Nobody waits longer than 5 s for a node that cannot be heard, whatever was asked of it, and whenever.

Runs in `make test-more`.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator

import bridge_raw as raw
import bridge_support
import numpy as np
import pytest
from bridge_liar import about, good_and_evil, opened
from bridge_raw import Raw, frame
from bridge_support import Node

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

SOON = 5  # seconds: half of the 10 for which calls once waited for a peer that had been silent
SILENT = 8  # less than these 10
CALLS: dict[str, Callable[[], object]] = {
    "get": lambda: cw.get("//evil/x"),
    "get-within-a-time": lambda: cw.get("//evil/later", timeout=60),
    "names": lambda: cw.names("//evil/"),
    "wait": lambda: cw.wait("//evil/later", timeout=60),
    "remove": lambda: cw.remove("//evil/x"),
    "put": lambda: cw.put("//evil/small", [1, 2]),
    "put-large": lambda: cw.put("//evil/large", np.zeros(1_000_000, "u1")),
}


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    """A node, and one with a key that it knows, whose broker never runs."""
    with good_and_evil("io_uring") as both:
        yield both


def asked(connection: Raw, count: int) -> None:
    """So many requests have come, each of them once."""
    for _ in range(count):
        assert connection.receive(requests=True) is not None


@pytest.mark.parametrize("how", ["silent", "cut"])
def test_no_call_waits_longer_than_5_s_for_a_node_that_is_not_heard(
    nodes: tuple[Node, Node], how: str
) -> None:
    b, evil = nodes
    with b.here(), concurrent.futures.ThreadPoolExecutor(len(CALLS)) as pool:
        with Raw(evil.keys, b.port) as connection:
            connection.send(frame(raw.PING))
            assert connection.receive() is not None
            calls = {name: pool.submit(call) for name, call in CALLS.items()}
            asked(connection, len(CALLS))
            connection.answers_pings = False
            if how == "silent":  # it ends the connection then
                assert connection.ended()
        concurrent.futures.wait(calls.values(), SOON if how == "silent" else SILENT)
        assert [name for name, call in calls.items() if not call.done()] == []
        for name, call in calls.items():
            error = call.exception(0)
            assert isinstance(error, cw.RemoteError), (name, error)
            assert ("not known" in str(error)) == (name in ("remove", "put", "put-large")), error


def test_no_transfer_waits_longer_than_5_s_for_a_node_that_is_not_heard(
    nodes: tuple[Node, Node],
) -> None:
    b, evil = nodes
    size = 1_000_000
    with b.here(), concurrent.futures.ThreadPoolExecutor() as pool:
        with Raw(evil.keys, b.port) as connection:
            connection.send(frame(raw.PING))
            assert connection.receive() is not None
            call = pool.submit(cw.get, "//evil/x")
            request = connection.receive(requests=True)
            assert request is not None and request[0] == raw.OPEN
            body = opened(size, about((size,)))
            connection.send(frame(raw.OPEN | raw.REPLY, body, id=request[1]))
            request = connection.receive(requests=True)
            assert request is not None and request[0] == raw.READ
            connection.answers_pings = False
            assert connection.ended()
        concurrent.futures.wait([call], SOON)
        assert isinstance(call.exception(0), cw.RemoteError)
