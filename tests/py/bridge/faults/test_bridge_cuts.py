"""Connections that are cut, stand, crawl or lie: an array arrives whole and checked, or the caller is told.

Runs in `make test-more`: storms of cuts take minutes.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import bridge_proxy
import bridge_support
import numpy as np
import pytest
from bridge_proxy import FROM, TO, Proxy
from bridge_storm import MUST, Account, Storm
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

SOAK = bool(os.environ.get("CABLEWAY_SOAK"))
CUTS = 5000  # of each of the two storms: 10,000 with `make soak`
NO_NAMESPACES = bridge_support.namespaces_lacking()


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[Node, Node, Proxy]]:
    """a reaches b through a proxy; b does not dial."""
    with bridge_proxy.proxied() as made:
        yield made


def bytes_of(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([size, seed]).integers(0, 256, size, dtype=np.uint8)


def insist(call: object, seconds: float = 30) -> object:
    """Calls until no RemoteError comes."""
    limit = time.monotonic() + seconds
    while True:
        try:
            return call()  # type: ignore[operator]
        except cw.RemoteError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.01)


def one_cut(a: Node, b: Node, proxy: Proxy, way: int, at: int, kind: str, number: int) -> bool:
    """A 4 KiB get or put over a connection that is cut at one byte. Returns whether it was cut."""
    values = bytes_of(4096, number)
    name = f"cut/{kind}{number}"
    if kind == "get":
        with b.here():
            cw.put(name, values)
    before = proxy.cuts
    proxy.cut_at = (way, at)
    proxy.cut()
    with a.here():
        try:
            if kind == "get":
                assert (cw.get(f"//b/{name}").numpy() == values).all()
            else:
                cw.put(f"//b/{name}", values)
        except cw.RemoteError:
            pass  # told: that is allowed; a wrong byte is not
        else:
            if kind == "put":
                assert (cw.get(f"//b/{name}").numpy() == values).all()
        was_cut = proxy.cuts > before
        proxy.cut_at = None
        if kind == "get":
            found = insist(lambda: cw.get(f"//b/{name}").numpy().copy())
            assert (found == values).all()  # type: ignore[attr-defined]
    if kind == "put":
        with b.here():
            if name in cw.names():
                assert (cw.get(name).numpy() == values).all()
                cw.remove(name)
    else:
        with b.here():
            cw.remove(name)
    return was_cut


@pytest.mark.timeout(3000 if SOAK else 120)
def test_a_cut_at_any_byte_gives_no_wrong_byte(world: tuple[Node, Node, Proxy]) -> None:
    a, b, proxy = world
    chance = random.Random(seed := random.randrange(1 << 30))
    print("seed", seed)
    reached = 0
    if SOAK:
        places = [
            (way, at, kind)
            for kind in ("get", "put")
            for way in (TO, FROM)
            for at in range(1, 8000)
        ]
    else:
        places = [
            (way, chance.randrange(1, 541) + 541 * part, kind)  # so many early and late ones in every run
            for kind in ("get", "put") for way in (TO, FROM) for part in range(12)
        ]  # fmt: skip
    before = [node.bridge_pid() for node in (a, b)]
    for number, (way, at, kind) in enumerate(places):
        reached += one_cut(a, b, proxy, way, at, kind, number)
    print(reached, "cuts at", len(places), "places")
    assert reached >= len(places) // 4
    assert [node.bridge_pid() for node in (a, b)] == before
    assert eventually(lambda: a.sees(b))
    for pid in before:  # the last connection may still be closing
        assert eventually(lambda p=pid: len(os.listdir(f"/proc/{p}/fd")) < 40)
        memory = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]
        assert int(memory) < 200_000 + bridge_support.KEPT_BY_SANITIZER // 1024, (
            f"{memory} kB after {len(places)} cuts"
        )
        print("bridge", pid, "has", memory, "kB")


def use_all_streams(node: Node) -> None:
    """Large arrays, until all streams and their threads are there: a storm of three cuts may have used few of them."""
    with node.here():
        for _ in range(10):
            insist(lambda: cw.put("//b/streams", bytes_of(16 << 20)).close())
            insist(lambda: cw.get("//b/streams").close())
            time.sleep(0.1)
        insist(lambda: cw.remove("//b/streams"))


@pytest.mark.timeout(3000 if SOAK else 180)
@pytest.mark.parametrize("kills", [False, True], ids=["cuts", "kills"])
def test_a_storm_of_cuts_leaves_no_wrong_byte_and_nothing_behind(kills: bool) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        with Proxy(b.port) as proxy:
            a.knows(b, "--read", "*", "--write", "*", address=f"127.0.0.1:{proxy.port}")
            b.knows(a, "--read", "*", "--write", "*", address="")
            made.start()
            assert eventually(lambda: a.sees(b)), a.said()
            storm = Storm(a, b, proxy, random.Random(seed))
            with storm.workers(1):
                storm.run(1, kills=False)
            storm.renew()
            before = Account.of(a, b)
            with storm.workers(2):
                storm.run(3, kills=False)
            use_all_streams(a)
            used = Account.of(a, b)
            bridges = [node.bridge_pid() for node in (a, b)]
            with storm.workers(2):
                storm.run(CUTS if SOAK else CUTS // 100, kills)
            print(storm.cuts, proxy.cuts, storm.done)
            assert min(storm.done[what] for what in MUST) > 0
            if not kills:
                assert [node.bridge_pid() for node in (a, b)] == bridges, a.said()[-3000:]
                use_all_streams(a)  # as then: idle ones end, and what the last cut ended is missing
                assert eventually(lambda: not storm.grown(used), 30), storm.grown(used)
            storm.renew()
            last: list[str] = []

            def as_before() -> bool:
                last[:] = Account.of(a, b).beyond(before)
                return not last

            assert eventually(as_before, 30), last
            for node in (a, b):
                with node.here():
                    assert cw.names() == []


@pytest.mark.parametrize("kind", ["get", "put"])
def test_a_large_array_goes_on_where_it_was_cut(world: tuple[Node, Node, Proxy], kind: str) -> None:
    a, b, proxy = world
    values = bytes_of(20_000_000, 5)
    chunk, way = 262144, FROM if kind == "get" else TO
    chance = random.Random(9)
    if kind == "get":
        with b.here():
            cw.put("cuts/large", values)
    before = proxy.cuts
    # Each connection ends within 64 bytes of a chunk's end, as it goes over the wire, records and
    # all: long before the array is through.
    proxy.cut_each = lambda: (way, chunk * chance.randrange(1, 20) + chance.randrange(-64, 64))
    proxy.cut()
    try:
        with a.here():
            if kind == "get":
                found = insist(lambda: cw.get("//b/cuts/large").numpy(), 60)
                assert (found == values).all()  # type: ignore[attr-defined]
            else:
                insist(lambda: cw.put("//b/cuts/large", values), 60)
    finally:
        proxy.cut_each = None
    assert proxy.cuts > before + 2
    with b.here():
        assert (cw.get("cuts/large").numpy() == values).all()
        cw.remove("cuts/large")


def test_a_changed_byte_never_arrives(world: tuple[Node, Node, Proxy]) -> None:
    a, b, proxy = world
    values = bytes_of(2_000_000, 6)
    for number in range(8 if not SOAK else 500):
        with b.here():
            cw.put("flip", values)
        proxy.flip_at = (FROM, 1 + number * 250_123 % 1_900_000)
        proxy.cut()
        with a.here():
            found = insist(lambda: cw.get("//b/flip").numpy().copy())
            assert (found == values).all()  # type: ignore[attr-defined]
        with b.here():
            cw.remove("flip")
        with a.here():
            assert eventually(lambda: not _there("//b/flip"))


def _there(name: str) -> bool:
    try:
        cw.get(name)
    except cw.NameNotFound:
        return False
    except cw.RemoteError:
        return True
    return True


def test_a_slow_connection_is_waited_for(world: tuple[Node, Node, Proxy]) -> None:
    a, b, proxy = world
    values = bytes_of(300_000, 7)
    proxy.piece, proxy.pause = 1500, 0.005
    try:
        proxy.cut()
        with b.here():
            cw.put("slow", values)
        with a.here():
            found = insist(lambda: cw.get("//b/slow").numpy())
            assert (found == values).all()  # type: ignore[attr-defined]
    finally:
        proxy.piece, proxy.pause = 65536, 0.0


def test_a_stopped_peer_is_found_and_found_again(world: tuple[Node, Node, Proxy]) -> None:
    a, b, _ = world
    with b.here():
        cw.put("stop/x", bytes_of(100_000))
    with a.here():
        assert eventually(lambda: a.sees(b))
        kept = cw.get("//b/stop/x")
        with b.standing():
            with pytest.raises(cw.RemoteError):
                cw.get("//b/stop/y")
            # Nobody can say whether what it had is still what the name means.
            with pytest.raises(cw.RemoteError):
                cw.get("//b/stop/x")
        assert (kept.numpy() == bytes_of(100_000)).all()
        assert eventually(lambda: a.sees(b)), a.said()
        assert (cw.get("//b/stop/x").numpy() == bytes_of(100_000)).all()


def test_a_put_whose_nodes_bridge_starts_anew_is_brought_there_once_more(
    world: tuple[Node, Node, Proxy],
) -> None:
    a, b, proxy = world
    values = bytes_of(50_000_000, 8)
    told: list[str] = []
    with a.here():
        assert eventually(lambda: a.sees(b))

        def put() -> None:
            try:
                cw.put("//b/anew", values)
            except cw.RemoteError as error:
                told.append(str(error))

        sent = int(a.state_of(b)["bytes_out"])
        proxy.pause = 0.02  # it takes longer than a busy machine takes to tell how far it is
        thread = threading.Thread(target=put)
        thread.start()
        assert eventually(lambda: int(a.state_of(b)["bytes_out"]) - sent > 1_000_000)
        os.kill(b.bridge_pid(), signal.SIGKILL)
        thread.join(60)
        proxy.pause = 0.0
        assert not thread.is_alive()
        assert not told  # it is brought once more, to the next bridge
        assert eventually(lambda: a.sees(b))
    with b.here():
        assert (cw.get("anew").numpy() == values).all()


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
def test_three_nodes_in_namespaces_of_their_own() -> None:
    with bridge_support.net("a", "b", "c", namespaces=True) as made:
        made.acquaint("--read", "*", "--write", "*")
        made.start()
        made.connected()
        nodes = list(made.nodes.values())
        for one in nodes:
            with one.here():
                cw.put("own", bytes_of(1_000_000, ord(one.name)))
        for one in nodes:
            for other in nodes:
                if one is other:
                    continue
                with one.here():
                    found = cw.get(f"//{other.name}/own").numpy()
                    assert (found == bytes_of(1_000_000, ord(other.name))).all()
                    cw.put(f"//{other.name}/from/{one.name}", [ord(one.name)])
        with nodes[0].here():
            assert cw.get("from/b").numpy()[0] == ord("b")
            assert cw.get("from/c").numpy()[0] == ord("c")


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
def test_a_cable_that_is_pulled_and_put_back() -> None:
    with bridge_support.net("a", "b", namespaces=True) as made:
        made.acquaint("--read", "*", "--write", "*")
        made.start()
        made.connected()
        a, b = made.nodes.values()
        values = bytes_of(150_000_000)
        with b.here():
            cw.put("cable", values)
        got: list[object] = []
        with a.here():
            thread = threading.Thread(target=lambda: got.append(cw.get("//b/cable").numpy()))
            thread.start()
            time.sleep(0.05)
            made.cable("b", "down")
            time.sleep(2)
            made.cable("b", "up")
            thread.join(60)
            assert not thread.is_alive() and len(got) == 1
            assert (got[0] == values).all()  # type: ignore[attr-defined]
            made.cable("b", "down")
            with pytest.raises(cw.RemoteError):
                cw.get("//b/other")
            with pytest.raises(cw.RemoteError):
                cw.get("//b/cable")
            made.cable("b", "up")
            assert eventually(lambda: a.sees(b), 30), a.said()
            assert (cw.get("//b/cable").numpy() == values).all()
