"""A get with a timeout goes on trying while the other node's bridge is killed and comes back, until its time is out.

Runs in `make test-more`.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import bridge_support
import numpy as np
import pytest
from bridge_support import Node, timed_out
from waiting import eventually

import cableway as cw
from cableway import name

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

COUNT = 20_000_000  # of float64: longer on its way than the bridge lives


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Node, Node]]:
    with bridge_support.pair("--read", "open/*") as made:
        yield made


@pytest.fixture
def two(pair: tuple[Node, Node]) -> tuple[Node, Node]:
    """Two nodes that reach each other: after the last kill of the test before, the bridge is back."""
    a, b = pair
    assert eventually(lambda: a.sees(b), 30)
    return a, b


def kills(node: Node, count: int) -> threading.Thread:
    """Kills a node's bridge so often, each time soon after it has come back: the broker starts none again that never gets so far."""

    def listens() -> bool:
        try:
            socket.create_connection((node.host, node.port), 1).close()
        except OSError:
            return False
        return node.bridge_pid() > 1

    def run() -> None:
        for _ in range(count):
            if eventually(listens):
                os.kill(node.bridge_pid(), signal.SIGKILL)
            time.sleep(0.15)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("kind", ["array", "tree", "device"])
def test_what_is_there_comes_although_its_bridge_is_killed_again_and_again(
    two: tuple[Node, Node], kind: str
) -> None:
    a, b = two
    values = np.arange(float(COUNT))
    with b.here():
        cw.put(f"open/{kind}", {"w": values} if kind == "tree" else values, keep=True)
    thread = kills(b, 5)
    with a.here():
        found = cw.get(
            f"//b/open/{kind}", timeout=60, **({"device": "cpu"} if kind == "device" else {})
        )
        got = found["w"] if kind == "tree" else found
        assert got.shape == (COUNT,) and float(got[-1]) == COUNT - 1
    thread.join()
    b.command("rm", f"open/{kind}")


@pytest.fixture
def when_it_waits(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What is called once, when a get was told that nothing is there, and is about to wait for it."""
    calls: list[Callable[[], object]] = []
    wait = name._wait_until

    def wait_after(*arguments: Any) -> None:
        if calls:
            calls.pop()()
        wait(*arguments)

    monkeypatch.setattr(name, "_wait_until", wait_after)
    return calls


def test_what_is_not_there_is_waited_for_until_the_time_is_out(
    two: tuple[Node, Node], when_it_waits: list[Callable[[], object]]
) -> None:
    a, b = two
    threads: list[threading.Thread] = []
    when_it_waits.append(lambda: threads.append(kills(b, 3)))
    begun = time.monotonic()
    with a.here(), pytest.raises(cw.Timeout):
        cw.get("//b/open/none", timeout=2)
    assert timed_out(begun, 2)
    threads[0].join()


def test_a_bridge_that_dies_before_it_is_waited_for_is_waited_for_as_well(
    two: tuple[Node, Node], when_it_waits: list[Callable[[], object]]
) -> None:
    a, b = two

    def killed() -> None:
        os.kill(b.bridge_pid(), signal.SIGKILL)
        assert eventually(lambda: not a.sees(b))

    when_it_waits.append(killed)
    with a.here(), pytest.raises(cw.Timeout):
        cw.get("//b/open/none", timeout=2)
    assert not when_it_waits
