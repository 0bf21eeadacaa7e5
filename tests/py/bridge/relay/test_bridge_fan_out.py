"""A sealed array goes to many nodes by a tree in which none sends it to more than --fan-out others, whoever dies in it.

Runs in `make test-more`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import bridge_support
import numpy as np
import pytest
from bridge_support import Net, Node

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

FAN_OUT = 2
NODES = 12
ROUNDS = int(os.environ.get("CABLEWAY_FAN_OUT_ROUNDS", "3"))
MIB = 1 << 20


@pytest.fixture(scope="module")
def many() -> Iterator[Net]:
    """Nodes that know each other, without a connection."""
    with bridge_support.net(*(f"n{i:02}" for i in range(NODES))) as made:
        made.acquaint("--read", "*")
        for node in made.nodes.values():
            node.options = ["--fan-out", str(FAN_OUT)]
            node.link_idle = ""
            node.start()
        yield made


def sealed(node: Node, name: str, size: int, seal: bool = True) -> np.ndarray:
    """Puts random bytes there."""
    made = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    with node.here():
        cw.put(name, made, keep=True, seal=seal)
    return made


def sent(node: Node) -> int:
    """How many bytes it has sent to all others."""
    told = json.loads(node.command("peers", "--json").stdout)
    return sum(peer["bytes_out"] for peer in told)


def read(node: Node, name: str, patience: float = 60) -> np.ndarray:
    """What a node reads; it asks again after an error, as long as patience lasts."""
    until = time.monotonic() + patience
    file = node.folder / f"got{time.monotonic_ns()}.npy"
    while True:
        done = node.command("get", name, str(file), check=False)
        if done.returncode == 0:
            break
        assert time.monotonic() < until, done.stderr
        assert "kill" in name, done.stderr  # nobody dies elsewhere
    found = np.load(file)
    file.unlink()
    return found


def all_read(nodes: list[Node], name: str, expected: np.ndarray) -> None:
    """At once, each the same bytes."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        for found in pool.map(lambda node: read(node, name), nodes):
            assert np.array_equal(found, expected)


def test_no_node_sends_it_to_more_than_it_may(many: Net) -> None:
    first, *others = many.nodes.values()
    before = [sent(node) for node in many.nodes.values()]
    expected = sealed(first, "tree", 4 * MIB)
    all_read(others, "//n00/tree", expected)
    times = [
        (sent(node) - was) / expected.nbytes
        for node, was in zip(many.nodes.values(), before, strict=True)
    ]
    assert max(times) < FAN_OUT + 0.1, times
    assert sum(times) > NODES - 1, times  # no node has it without that somebody has sent it
    assert times[0] > FAN_OUT - 0.1, times


def test_what_may_be_written_comes_from_its_owner_alone(many: Net) -> None:
    first, *others = many.nodes.values()
    before = sent(first)
    expected = sealed(first, "plain", MIB, seal=False)
    all_read(others, "//n00/plain", expected)
    assert (sent(first) - before) / expected.nbytes > NODES - 1


def test_a_reader_hears_of_the_next_array_wherever_its_bytes_come_from(many: Net) -> None:
    first, *others = many.nodes.values()
    for size in (MIB, 2 * MIB, 3 * MIB):
        expected = sealed(first, "next", size)
        all_read(others, "//n00/next", expected)


@pytest.mark.parametrize("what", ["bridges", "brokers", "standing"])
def test_deaths_in_the_tree(many: Net, what: str) -> None:
    first, *others = many.nodes.values()
    chance = random.Random(os.environ.get("CABLEWAY_SEED", what))
    for number in range(1 if what == "standing" else ROUNDS):  # one takes 5 s
        expected = sealed(first, f"kill{number}", 8 * MIB)
        struck = chance.sample(others, 3)
        readers = others if what == "bridges" else [node for node in others if node not in struck]
        with ThreadPoolExecutor(len(others)) as pool:
            reads = [pool.submit(read, node, f"//n00/kill{number}") for node in readers]
            if what != "bridges":  # they read as well, so that others are referred to them
                for node in struck:
                    pool.submit(
                        node.command, "get", f"//n00/kill{number}", "/dev/null", check=False
                    )
            time.sleep(chance.random() * 0.3)
            for node in struck:
                if what == "bridges":
                    os.kill(node.bridge_pid(), signal.SIGKILL)
                elif what == "brokers":
                    assert node.process is not None
                    node.process.kill()
                    node.process.wait()
                    node.process = None
                else:
                    os.kill(node.bridge_pid(), signal.SIGSTOP)
            for done in reads:
                assert np.array_equal(done.result(), expected)
        for node in struck:
            if what == "brokers":
                node.start()
            if what == "standing" and node.bridge_pid():
                os.kill(node.bridge_pid(), signal.SIGCONT)


def test_a_limit_that_cannot_be() -> None:
    for wrong in ("-1", "4097", "two"):
        done = subprocess.run(
            [bridge_support.program("cablewayd"), "--foreground", "--fan-out", wrong],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 2 and f"fan-out = {wrong}: it is to how many nodes" in done.stderr
