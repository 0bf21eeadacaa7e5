"""Who dies, is cut or is replaced while a tree is fetched: it is whole or absent, and who asks is told.

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
SECONDS = 60  # for what has to come in the end

# Reads until told to end; each version is one number throughout, or the reader says what was wrong.
READER = """
import sys
import numpy as np
import cableway as cw
print("ready", flush=True)
seen = failed = 0
while seen < int(sys.argv[2]):
    try:
        with cw.get(sys.argv[1]) as tree:
            found = {int(tree[path].numpy().min()) for path in tree} | {int(tree[path].numpy().max()) for path in tree}
            assert len(tree) == int(sys.argv[3]) and len(found) == 1, found
    except (cw.RemoteError, cw.NameNotFound, cw.Stale) as error:
        failed += 1
    seen += 1
print("ended", seen, failed, flush=True)
"""


@pytest.fixture
def world() -> Iterator[tuple[Node, Node, Proxy]]:
    """a reaches b through a proxy; b does not dial."""
    with bridge_proxy.proxied() as made:
        yield made


def state_of(number: int) -> dict[str, np.ndarray]:
    """Leaves in arrays of their own, so that each is a part."""
    return {f"x{i}": cw.asarray(np.full(LEAF_BYTES, number, "u1")) for i in range(LEAVES)}


def publish(node: Node, number: int) -> None:
    with node.here():
        cw.put("m", state_of(number), copy=False, keep=True)


def is_whole(name: str = "//b/m") -> int:
    """The number that is in all of its leaves."""
    with cw.get(name, timeout=SECONDS) as tree:
        found = {int(value) for path in tree for value in np.unique(tree[path].numpy())}
        assert len(tree) == LEAVES and len(found) == 1, found
        return found.pop()


def insist(call: Callable[[], int]) -> int:
    """Calls until no RemoteError comes."""
    limit = time.monotonic() + SECONDS
    while True:
        try:
            return call()
        except (cw.RemoteError, cw.NameNotFound):
            if time.monotonic() > limit:
                raise
            time.sleep(0.01)


def reader(node: Node, rounds: int) -> subprocess.Popen[str]:
    made = subprocess.Popen(
        [sys.executable, "-c", READER, "//b/m", str(rounds), str(LEAVES)],
        env=node.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert made.stdout is not None and made.stdout.readline() == "ready\n"
    return made


def while_it_is_fetched(a: Node, b: Node, harm: Callable[[], None], seed: int) -> None:
    """In each round a new version is fetched, and somebody is harmed in the midst; then it comes whole."""
    chance = random.Random(seed)
    print("seed", seed)
    for number in range(ROUNDS):
        publish(b, number)
        told: list[object] = []

        def fetch(told: list[object] = told) -> None:
            try:
                told.append(is_whole())
            except (cw.RemoteError, cw.NameNotFound, cw.Stale) as error:
                told.append(error)

        with a.here():
            fetcher = threading.Thread(target=fetch)
            fetcher.start()
            time.sleep(chance.random() * 0.05)
            harm()
            fetcher.join(2 * SECONDS)
            assert len(told) == 1, "it hangs, or was wrong"
            assert isinstance(told[0], Exception) or told[0] in (number - 1, number)
            assert eventually(lambda: insist(is_whole) == number), number  # noqa: B023


def test_the_readers_die(world: tuple[Node, Node, Proxy]) -> None:
    a, b, _ = world
    publish(b, 255)
    for number in range(ROUNDS):
        dying = reader(a, 1000)
        time.sleep(random.random() * 0.05)
        dying.kill()
        dying.wait()
        if number % 5 == 0:
            publish(b, number)
            with a.here():
                assert eventually(lambda: insist(is_whole) == number)  # noqa: B023


def test_the_connection_is_cut(world: tuple[Node, Node, Proxy]) -> None:
    a, b, proxy = world
    while_it_is_fetched(a, b, lambda: None if proxy.cut() else None, random.randrange(1 << 30))


def test_the_owners_bridge_dies(world: tuple[Node, Node, Proxy]) -> None:
    a, b, _ = world
    while_it_is_fetched(a, b, lambda: kill_bridge(b), random.randrange(1 << 30))


def test_the_bridge_of_this_node_dies(world: tuple[Node, Node, Proxy]) -> None:
    a, b, _ = world
    while_it_is_fetched(a, b, lambda: kill_bridge(a), random.randrange(1 << 30))


def kill_bridge(node: Node) -> None:
    pid = node.bridge_pid()
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_it_is_replaced_and_removed_again_and_again(world: tuple[Node, Node, Proxy]) -> None:
    """Each reader sees one version at a time, whichever; the fetch of one ends though the name means another by then."""
    a, b, _ = world
    publish(b, 0)
    readers = [reader(a, ROUNDS) for _ in range(2)]
    number = 0
    with b.here():
        while any(one.poll() is None for one in readers):
            number += 1
            cw.put("m", state_of(number % 250), copy=False)
            if number % 7 == 0:
                cw.remove("m")
    for one in readers:
        out, _ = one.communicate(timeout=SECONDS)
        assert one.returncode == 0, out
        assert out.startswith(f"ended {ROUNDS} "), out
        assert int(out.split()[2]) < ROUNDS, out


def test_what_was_begun_comes_whole_though_it_is_replaced(
    world: tuple[Node, Node, Proxy],
) -> None:
    """The owner holds the version that a peer has begun with."""
    a, b, proxy = world
    publish(b, 1)
    told: list[int] = []
    proxy.piece = 65536
    proxy.pause = 0.002
    with a.here():
        fetcher = threading.Thread(target=lambda: told.append(is_whole()))
        fetcher.start()
        before = int(a.state_of(b)["bytes_in"])
        assert eventually(lambda: int(a.state_of(b)["bytes_in"]) > before + LEAF_BYTES // 2)
        publish(b, 2)
        fetcher.join(2 * SECONDS)
        assert told == [1]
        assert eventually(lambda: is_whole() == 2)


def is_refused(name: str) -> bool:
    try:
        cw.get(name)
    except (cw.RemoteError, cw.NameNotFound):
        return True
    return False


def test_the_owners_broker_ends(world: tuple[Node, Node, Proxy]) -> None:
    a, b, _ = world
    for number in range(3):
        publish(b, number)
        with a.here():
            assert eventually(lambda: insist(is_whole) == number)  # noqa: B023
            tree = cw.get("//b/m", timeout=SECONDS)
            b.stop()
            assert eventually(lambda: is_refused("//b/m"))
            assert tree["x0"].numpy()[0] == number
            b.start()
            publish(b, number + 100)
            later = tree.newer(timeout=SECONDS)  # though the new broker counts from 1 on
            assert later is not None and later["x0"].numpy()[0] == number + 100


def test_the_broker_of_this_node_ends(world: tuple[Node, Node, Proxy]) -> None:
    """What is open stays; who fetches is told, and the next broker knows nothing of it."""
    a, b, _ = world
    publish(b, 1)
    with a.here():
        tree = cw.get("//b/m", timeout=SECONDS)
        assert tree["x0"].numpy()[0] == 1
        fetching = reader(a, 1000000)
        assert a.process is not None
        a.process.kill()
        a.process.wait()
        a.process = None
        assert tree["x0"].numpy()[0] == 1
        with pytest.raises(cw.Error):
            tree.newer(timeout=SECONDS)
    fetching.kill()
    fetching.wait()
    assert eventually(lambda: a.bridge_pid() == 0)
