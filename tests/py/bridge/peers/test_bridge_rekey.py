"""Keys of a connection are changed in the middle of transfers, both ways, and no byte is wrong."""

from __future__ import annotations

import threading

import bridge_support
import numpy as np
import pytest
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

RECORD = 16384
SIZE = 30_000_000


def bytes_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8)


def both_ways(a: Node, b: Node) -> None:
    """A get and a put at once, each checked at its end."""
    mine, other = bytes_of(1), bytes_of(2)
    wrong: list[str] = []
    with b.here():
        cw.put("there", other)
    with a.here():

        def get() -> None:
            if not (cw.get("//b/there").numpy() == other).all():
                wrong.append("get")

        thread = threading.Thread(target=get)
        thread.start()
        cw.put("//b/here", mine)
        thread.join(60)
        assert not thread.is_alive()
    with b.here():
        if not (cw.get("here").numpy() == mine).all():
            wrong.append("put")
    assert not wrong


@pytest.mark.parametrize("engine", ["io_uring", "epoll"])
def test_keys_are_changed_during_transfers(engine: str) -> None:
    records = 100
    with bridge_support.net("a", "b") as made:
        made.acquaint("--read", "*", "--write", "*")
        more = {"CABLEWAY_BRIDGE_EPOLL": "1"} if engine == "epoll" else {}
        made.start(CABLEWAY_BRIDGE_REKEY=str(records), **more)
        made.connected()
        a, b = made.nodes.values()
        pids = [a.bridge_pid(), b.bridge_pid()]
        both_ways(a, b)
        # Each side changes what it writes with: as often as its records ask for, at the least; what each
        # connection has written since its last change asks for none yet.
        least = SIZE // RECORD // records - 4
        for one, other in ((a, b), (b, a)):
            assert eventually(lambda o=one, t=other: int(o.state_of(t)["key_updates"]) >= least), (
                one.command("peers", "show").stdout
            )
        assert [a.bridge_pid(), b.bridge_pid()] == pids
        both_ways(a, b)
        assert len(a.state_of(b)["error"]) == 1, a.said()  # "-": no connection ended


def test_keys_are_not_changed_without_need() -> None:
    with bridge_support.net("a", "b") as made:
        made.acquaint("--read", "*", "--write", "*")
        made.start()
        made.connected()
        a, b = made.nodes.values()
        both_ways(a, b)
        assert a.state_of(b)["key_updates"] == b.state_of(a)["key_updates"] == "0"
