"""Links are made at first use and closed when nobody uses them, and nothing is lost by it.

The storm of closes is 40 of them here, and 1,000 where CABLEWAY_SOAK is set.

Runs in `make test-more`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import bridge_support
import numpy as np
import pytest
from bridge_proxy import Proxy
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())
IDLE = 0.05
CLOSES = 1_000 if os.environ.get("CABLEWAY_SOAK") else 40


def closes(node: Node, other: Node) -> int:
    """How many of its links with another were closed for being idle."""
    return int(node.state_of(other)["idle_closes"])


def linked(node: Node) -> int:
    """How often it had a link with anybody; it makes none by asking."""
    return node.said().count(" is connected (")


def put_later(node: Node, name: str, values: object) -> threading.Thread:
    """Puts an array there after many times as long as an idle link is kept."""

    def run() -> None:
        time.sleep(20 * IDLE)
        node.put(name, values)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.fixture
def two() -> Iterator[tuple[Node, Node]]:
    """a and b, which know each other and close what they do not use; nobody has used anything."""
    with bridge_support.net("a", "b") as made:
        made.acquaint("--read", "*", "--write", "*")
        for node in made.nodes.values():
            node.link_idle = str(IDLE)
        made.start()
        a, b = made.nodes.values()
        yield a, b


def test_the_first_use_makes_a_link_and_the_last_one_ends_it(two: tuple[Node, Node]) -> None:
    a, b = two
    with a.here():
        for count in range(1, 4):
            assert linked(a) == linked(b) == count - 1
            cw.put("//b/x", [count], replace=True)
            assert linked(a) == count  # b may still be writing its line
            assert eventually(lambda n=count: a.said().count("it was idle") == n), a.said()
            assert eventually(lambda n=count: b.said().count("it was idle") == n), b.said()
    told = a.state_of(b)
    assert told["state"] == "idle" and told["error"] == "-" and told["idle_closes"] == "3", told
    # Who asks how a peer is has it dialed.
    assert eventually(lambda: linked(a) == 4), a.said()
    assert closes(b, a) >= 3


def wakes(pid: int) -> int:
    """How often all threads of a process have gone to sleep."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(
        int(
            re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M)[0]
        )
        for task in tasks
    )


def test_a_node_of_which_nothing_is_asked_wakes_twice_a_second(
    two: tuple[Node, Node],
) -> None:
    """Its broker asks its bridge whether it lives, and the bridge looks at its files then; 1,000 nodes may be idle."""
    a, _ = two
    pids = [a.process.pid, a.bridge_pid()]
    time.sleep(2)
    before, begun = [wakes(pid) for pid in pids], time.monotonic()
    time.sleep(5)
    seconds = time.monotonic() - begun
    rates = [(wakes(pid) - was) / seconds for pid, was in zip(pids, before, strict=True)]
    assert all(0 < rate < 1.6 for rate in rates), rates  # 2 and 3 if each had its own timers


def slab_bytes(node: Node) -> int:
    """Shared memory that its broker holds."""
    return int(json.loads(node.command("status", "--json").stdout)["gauges"]["bytes"])


def test_an_idle_bridge_gives_back_what_it_keeps_free(two: tuple[Node, Node]) -> None:
    """A job's memory may be needed for something else; what is still read stays."""
    a, b = two
    before = slab_bytes(a)
    b.put("kept", np.full(3 << 20, 7.0))
    b.put("gone", np.zeros(8 << 20))
    with a.here():
        kept, gone = cw.get("//b/kept"), cw.get("//b/gone")
        assert slab_bytes(a) >= before + (88 << 20)
        del gone
        with b.here():
            cw.remove("gone")
        assert eventually(lambda: slab_bytes(a) <= before + (25 << 20), 40), slab_bytes(a)
        assert (kept.numpy() == 7).all()
        b.put("again", np.ones(8 << 20))
        assert cw.get("//b/again").numpy().sum() == 8 << 20
        assert (kept.numpy() == 7).all()


def test_both_sides_may_begin(two: tuple[Node, Node]) -> None:
    a, b = two
    for number in range(3):
        for one, other in ((a, b), (b, a)):
            with one.here():
                cw.put(f"//{other.name}/x", [number], replace=True)
            assert eventually(lambda n=one: n.said().count("it was idle") == linked(n)), one.said()
    assert linked(a) == linked(b) == 6


def test_two_that_dial_each_other_at_once_have_one_link() -> None:
    """The way there takes so long that each has dialed before it hears of the other."""
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        with Proxy(a.port) as to_a, Proxy(b.port) as to_b:
            to_a.pause = to_b.pause = 0.1  # s, each way
            a.knows(b, "--read", "*", address=f"127.0.0.1:{to_b.port}")
            b.knows(a, "--read", "*", address=f"127.0.0.1:{to_a.port}")
            a.link_idle = b.link_idle = "1"
            made.start()
            for count in range(1, 4):
                calls = [
                    subprocess.Popen(
                        [bridge_support.program("cableway"), "ls", f"//{other.name}/"],
                        env=one.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    )
                    for one, other in ((a, b), (b, a))
                ]  # fmt: skip
                said = [call.communicate(timeout=60)[0] for call in calls]
                assert [call.returncode for call in calls] == [0, 0], said
                for node in (a, b):
                    assert eventually(lambda n=node, c=count: n.said().count("it was idle") == c), (
                        node.said()
                    )
            assert linked(a) == linked(b) == 3, a.said() + b.said()


def test_an_array_that_was_fetched_keeps_its_link_and_is_told_of(two: tuple[Node, Node]) -> None:
    a, b = two
    b.put("x", [1])
    with a.here():
        assert cw.get("//b/x").numpy().tolist() == [1]
        time.sleep(10 * IDLE)
        assert linked(a) == 1 and "it was idle" not in a.said()
        b.put("x", [2])
        assert eventually(lambda: cw.get("//b/x").numpy().tolist() == [2])
        time.sleep(10 * IDLE)
        assert linked(a) == 1 and "it was idle" not in a.said()
        with b.here():
            cw.remove("x")
        assert eventually(lambda: "it was idle" in a.said()), a.said()  # no replica is left
        b.put("x", [3])
        assert cw.get("//b/x").numpy().tolist() == [3]


def test_who_waits_for_a_name_keeps_the_link(two: tuple[Node, Node]) -> None:
    a, b = two
    with a.here():
        later = put_later(b, "later", [7])
        cw.wait("//b/later", timeout=60)
        assert linked(a) == 1 and "it was idle" not in a.said()
        later.join()
        assert cw.get("//b/later").numpy().tolist() == [7]


def test_a_large_array_comes_whole_while_links_are_closed_quickly(two: tuple[Node, Node]) -> None:
    a, b = two
    values = np.random.default_rng(3).integers(0, 256, 8 << 20, dtype=np.uint8)
    with a.here():
        for name in ("one", "two"):
            cw.put(f"//b/{name}", values)
            assert (cw.get(f"//b/{name}").numpy() == values).all()
            cw.remove(f"//b/{name}")


@pytest.mark.parametrize("how", ["no address", "--link-idle 0"])
def test_a_node_that_cannot_dial_keeps_the_link(how: str) -> None:
    """b has no address of a: what a dials is its only way there."""
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        a.knows(b, "--read", "*", "--write", "*")
        b.knows(a, "--read", "*", "--write", "*", address="")
        b.link_idle = str(IDLE)
        a.link_idle = "0" if how == "--link-idle 0" else str(IDLE)
        made.start()
        if how == "no address":  # a uses it once; with 0 it dials by itself
            with a.here():
                cw.put("//b/x", [1])
        assert eventually(lambda: linked(b) == 1), b.said()
        time.sleep(10 * IDLE)
        with b.here():
            cw.put("//a/y", [2])
            assert cw.get("//a/y").numpy().tolist() == [2]
        assert linked(a) == linked(b) == 1 and "it was idle" not in a.said() + b.said()


def test_links_that_are_closed_lose_no_request(two: tuple[Node, Node]) -> None:
    """Clients at both nodes, each of which uses the other one just when the link is about to be closed."""
    seed = int.from_bytes(os.urandom(3), "little")
    print("seed", seed)
    a, b = two
    script = Path(__file__).with_name("idle_worker.py")
    words = [sys.executable, "-P", str(script)]
    round_of: dict[int, str] = {}
    workers = []
    for i, (one, other) in enumerate(((a, b), (b, a), (a, b))):
        workers.append(
            subprocess.Popen(
                [*words, other.name, str(IDLE), str(100 * CLOSES), str(seed + i)],
                env=one.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip

    def follow(i: int) -> None:
        stream = workers[i].stdout
        assert stream is not None
        for line in stream:
            round_of[i] = round_of.get(i, "")[-2000:] + line

    followers = [threading.Thread(target=follow, args=(i,)) for i in range(len(workers))]
    for follower in followers:
        follower.start()
    try:
        before = (0, 0)
        while closes(a, b) < CLOSES or closes(b, a) < CLOSES:
            assert all(worker.poll() is None for worker in workers), round_of
            now = (closes(a, b), closes(b, a))
            assert eventually(lambda n=now: (closes(a, b), closes(b, a)) != n, 60), (before, now)
            before = now
        assert all(worker.poll() is None for worker in workers), round_of
    finally:
        for worker in workers:
            worker.terminate()
        for worker, follower in zip(workers, followers, strict=True):
            worker.wait()
            follower.join()
    assert all(len(text.split()) > 10 for text in round_of.values()), round_of
    assert not [text for text in round_of.values() if re.search("Error|Traceback", text)], round_of
    # All that was there is gone again, and so is the link.
    for one, other in ((a, b), (b, a)):
        with one.here():
            cw.put(f"//{other.name}/last", [1])
            cw.remove(f"//{other.name}/last")
