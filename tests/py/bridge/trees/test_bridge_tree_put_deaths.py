"""Who dies, is cut or is replaced while a tree is put onto another node: there it is whole or absent, and its memory comes back.

Runs in `make test-more`: many rounds of kills.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import bridge_proxy
import bridge_support
import numpy as np
import pytest
from bridge_proxy import Proxy
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

ROUNDS = 20
LEAVES = 6
LEAF_BYTES = 3_000_000
LIMIT = (
    6 * LEAVES * LEAF_BYTES
)  # bytes that the other node has: what were not freed would soon be too much
SECONDS = 60  # for what has to come in the end

# Puts trees of one number throughout, until it is killed. Leaves lie in arrays of their own, so that each is a part.
WRITER = """
import sys
import numpy as np
import cableway as cw
print("ready", flush=True)
number = int(sys.argv[1])
while True:
    state = {f"x{i}": cw.asarray(np.full(int(sys.argv[3]), number, "u1")) for i in range(int(sys.argv[2]))}
    try:
        print("put", cw.put("//b/m", state, copy=False, keep=True).version, flush=True)
    except cw.RemoteError as error:
        print("failed", error, flush=True)
    number = (number + 1) % 256
"""

# Looks at the tree of its own node until told to end, and says which numbers it saw.
READER = """
import select, sys
import numpy as np
import cableway as cw
print("ready", flush=True)
seen = []
while not select.select([sys.stdin], [], [], 0)[0]:
    with cw.get("m") as tree:
        found = {int(tree[path].numpy().min()) for path in tree} | {int(tree[path].numpy().max()) for path in tree}
        assert len(tree) == int(sys.argv[1]) and len(found) == 1, found
        number = found.pop()
    if seen[-1:] != [number]:
        assert not seen or number > seen[-1], (seen, number)
        seen.append(number)
print(*seen)
"""


@pytest.fixture
def world() -> Iterator[tuple[Node, Node, Proxy]]:
    """a reaches b through a proxy; b does not dial."""
    with bridge_proxy.proxied() as made:
        a, b, _ = made
        b.stop()
        assert eventually(lambda: not a.sees(b))
        b.start(CABLEWAY_MAX_BYTES=str(LIMIT))
        assert eventually(lambda: a.sees(b))
        yield made


def state_of(number: int) -> dict[str, np.ndarray]:
    return {f"x{i}": cw.asarray(np.full(LEAF_BYTES, number, "u1")) for i in range(LEAVES)}


def put(number: int) -> int:
    """Puts a tree that is this number throughout; its version."""
    return cw.put("//b/m", state_of(number), copy=False, keep=True).version


def insist(call: Callable[[], int]) -> int:
    """Calls until no RemoteError comes."""
    limit = time.monotonic() + SECONDS
    while True:
        try:
            return call()
        except cw.RemoteError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.01)


def there(node: Node) -> int:
    """The number that is in all leaves of the tree there; -1: there is none."""
    with node.here():
        try:
            tree = cw.get("m")
        except cw.NameNotFound:
            return -1
        with tree:
            found = {int(value) for path in tree for value in np.unique(tree[path].numpy())}
            assert len(tree) == LEAVES and len(found) == 1, found
            assert tree.verify() == LEAVES
            return found.pop()


def has_room(node: Node) -> bool:
    """Whether nothing of a tree takes up memory there any more. Removes the name."""
    with node.here():
        if "m" in cw.names():
            cw.remove("m")
        try:
            cw.zeros(LIMIT * 2 // 3, "u1")
        except cw.LimitExceeded:
            return False
        return True


def kill_bridge(node: Node) -> None:
    pid = node.bridge_pid()
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def while_it_is_put(a: Node, b: Node, harm: Callable[[], None]) -> None:
    """In each round a tree is put, and somebody is harmed in the midst; then it is put again, and stands there."""
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    print("seed", seed)
    before = -1
    for number in range(ROUNDS):
        told: list[object] = []

        def publish(told: list[object] = told, number: int = number) -> None:
            try:
                told.append(put(number))
            except cw.RemoteError as error:
                told.append(error)

        with a.here():
            putter = threading.Thread(target=publish)
            putter.start()
            time.sleep(chance.random() * 0.05)
            harm()
            putter.join(2 * SECONDS)
            assert len(told) == 1, "it hangs, or was wrong"
        now = there(b)
        assert now in (before, number), (now, before, number)
        if isinstance(told[0], int):
            assert now == number
            with b.here():
                assert cw.get("m").version == told[0]
        elif "not known" not in str(told[0]):
            assert now == before, (told, now)
        with a.here():
            insist(lambda: put(number))  # noqa: B023
        before = there(b)
        assert before == number
    assert eventually(lambda: has_room(b), SECONDS)


def test_the_connection_is_cut(world: tuple[Node, Node, Proxy]) -> None:
    a, b, proxy = world
    while_it_is_put(a, b, lambda: None if proxy.cut() else None)


def test_the_bridge_of_that_node_dies(world: tuple[Node, Node, Proxy]) -> None:
    a, b, _ = world
    while_it_is_put(a, b, lambda: kill_bridge(b))


def test_the_bridge_of_this_node_dies(world: tuple[Node, Node, Proxy]) -> None:
    a, b, _ = world
    while_it_is_put(a, b, lambda: kill_bridge(a))


def test_those_who_put_die(world: tuple[Node, Node, Proxy]) -> None:
    a, b, _ = world
    chance = random.Random(11)
    for number in range(ROUNDS):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(number * 10), str(LEAVES), str(LEAF_BYTES)],
            env=a.environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
        time.sleep(chance.random() * 0.2)
        writer.kill()
        said = writer.communicate()[0]
        assert "failed" not in said, said
        there(b)
    begun = time.monotonic()
    assert eventually(lambda: has_room(b), SECONDS)
    assert time.monotonic() - begun < 5


def test_a_writer_dies_in_the_midst_and_its_memory_is_back_at_once(
    world: tuple[Node, Node, Proxy],
) -> None:
    """The bridge there hears that nobody puts it any more, and does not read the rest."""
    a, b, proxy = world
    proxy.piece = 65536
    proxy.pause = 0.002
    for number in range(3):
        before = int(b.state_of(a)["bytes_in"])
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(number), str(LEAVES), str(LEAF_BYTES)],
            env=a.environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert eventually(lambda: int(b.state_of(a)["bytes_in"]) > before + LEAF_BYTES * 3 // 2)  # noqa: B023
        writer.kill()
        writer.communicate()
        begun = time.monotonic()
        assert eventually(lambda: has_room(b), SECONDS)
        assert time.monotonic() - begun < 5
        assert there(b) == -1


def test_readers_there_see_one_version_at_a_time(world: tuple[Node, Node, Proxy]) -> None:
    a, b, _ = world
    with a.here():
        put(0)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(LEAVES)],
        env=b.environment, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
    with a.here():
        for number in range(1, ROUNDS):
            insist(lambda: put(number))  # noqa: B023
    out = reader.communicate("\n", timeout=SECONDS)[0]
    assert reader.returncode == 0, out
    assert len(out.split()) > 1, out


def test_the_broker_of_that_node_ends(world: tuple[Node, Node, Proxy]) -> None:
    """Who puts is told; what was put is gone with that broker; the next one takes the next put."""
    a, b, _ = world
    chance = random.Random(5)
    for number in range(3):
        told: list[object] = []

        def publish(told: list[object] = told, number: int = number) -> None:
            try:
                told.append(put(number))
            except cw.RemoteError as error:
                told.append(error)

        with a.here():
            putter = threading.Thread(target=publish)
            putter.start()
            time.sleep(chance.random() * 0.05)
            assert b.process is not None
            b.process.kill()
            b.process.wait()
            b.process = None
            putter.join(2 * SECONDS)
            assert len(told) == 1
            assert eventually(lambda: b.bridge_pid() == 0)
            b.start(CABLEWAY_MAX_BYTES=str(LIMIT))
            insist(lambda: put(number))  # noqa: B023
        assert there(b) == number


def test_the_broker_of_this_node_ends(world: tuple[Node, Node, Proxy]) -> None:
    """What is not all there by then never is, and goes."""
    a, b, proxy = world
    proxy.pause = 0.002
    before = int(b.state_of(a)["bytes_in"])
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, "1", str(LEAVES), str(LEAF_BYTES)],
        env=a.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert eventually(lambda: int(b.state_of(a)["bytes_in"]) > before + LEAF_BYTES * 3 // 2)
    assert a.process is not None
    a.process.kill()
    a.process.wait()
    a.process = None
    writer.kill()
    writer.communicate()
    assert there(b) == -1
    assert eventually(lambda: has_room(b), SECONDS)
