"""Arrays of other nodes by name: the same calls, the same errors, whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import bridge_support
import numpy as np
import pytest
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

RIGHTS = ("--read", "open/*", "--write", "in/*")
INSIDE = 16384  # bytes that go inside one frame; more goes by pieces


@pytest.fixture(scope="module", params=["io_uring", "epoll"])
def two(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    """Two nodes that know each other, with each of the two ways to wait for sockets."""
    with bridge_support.pair(
        *RIGHTS, **({"CABLEWAY_BRIDGE_EPOLL": "1"} if request.param == "epoll" else {})
    ) as made:
        yield made


def bytes_of(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize(
    "values",
    [
        np.float64(2.5),
        np.zeros((0, 3), "i4"),
        np.arange(12, dtype=">i2").reshape(3, 4)[:, ::-2],
        np.asfortranarray(np.arange(20000.0).reshape(100, 200)),
        np.array([(1, 2.0), (3, 4.0)], dtype=[("n", "i8"), ("x", "f4")]),
        bytes_of(INSIDE),
        bytes_of(INSIDE + 1),
        bytes_of(3 * 262144),
        bytes_of(10_000_019),
    ],
    ids=["scalar", "empty", "reversed", "fortran", "structured", "inside", "one-more", "chunks", "large"],
)  # fmt: skip
def test_what_is_put_on_one_node_is_got_on_the_other(
    two: tuple[Node, Node], values: np.ndarray
) -> None:
    a, b = two
    name = f"x{values.dtype.str}{values.size}"  # its own: that a name means another is told some time later
    with b.here():
        cw.put(f"open/{name}", values)
    with a.here():
        found = cw.get(f"//b/open/{name}").numpy()
        assert found.dtype == values.dtype and found.shape == values.shape
        assert (found == values).all()
        cw.put(f"//b/in/{name}", values)
    with b.here():
        found = cw.get(f"in/{name}").numpy()
        assert found.dtype == values.dtype and found.shape == values.shape
        assert (found == values).all()
        assert found.flags.f_contiguous == np.asarray(values).flags.f_contiguous


def test_the_errors_are_those_of_home(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("in/taken", [1])
    with a.here():
        with pytest.raises(cw.NameNotFound, match="on node b: .*open/none"):
            cw.get("//b/open/none")
        with pytest.raises(cw.Timeout, match=r"0\.2 s"):
            cw.get("//b/open/none", timeout=0.2)
        with pytest.raises(cw.Timeout, match=r"0\.2 s"):
            cw.wait("//b/open/none", timeout=0.2)
        with pytest.raises(cw.NameTaken, match="on node b: .*by process"):
            cw.put("//b/in/taken", [2], replace=False)
        with pytest.raises(cw.NameNotFound):
            cw.remove("//b/in/none")
        with pytest.raises(cw.RemoteError, match="there is no peer"):
            cw.get("//nobody/x")
        for bad in ("//", "//b", "//b/", "///x", "//b//x", "//b/x/..", "//" + "n" * 64 + "/x"):
            with pytest.raises(ValueError):
                cw.get(bad)
        with pytest.raises(ValueError, match="other node"):
            cw.put("//b/in/x" + "y" * 300, [1])
        with pytest.raises(ValueError, match="own node"):
            cw.put("//b/in/x", [1], remote="read")


def test_nothing_is_seen_or_written_that_no_pattern_allows(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("secret/x", [1])
        cw.put("shown/x", [2], remote="read")
        cw.put("open/seen", [3])
    with a.here():
        with pytest.raises(cw.NameNotFound) as hidden:
            cw.get("//b/secret/x")
        with pytest.raises(cw.NameNotFound) as missing:
            cw.get("//b/secret/y")
        assert str(hidden.value).replace("/x", "/y") == str(missing.value)
        assert cw.get("//b/shown/x").numpy().tolist() == [2]
        names = cw.names("//b")
        assert names == cw.names("//b/")
        assert "shown/x" in names and "open/seen" in names
        assert not [name for name in names if name.startswith("secret")]
        assert cw.names("//b/sho") == ["shown/x"]
        for write in (lambda: cw.put("//b/secret/x", [9]), lambda: cw.remove("//b/shown/x")):
            with pytest.raises(cw.RemoteError, match="does not let this one write"):
                write()
        with pytest.raises(cw.Timeout):
            cw.wait("//b/secret/x", timeout=0.2)
    with b.here():
        assert cw.get("secret/x").numpy().tolist() == [1]
        cw.put("shown/x", [4])  # without remote=, it is as any other
    with a.here():
        assert eventually(lambda: not _there("//b/shown/x"))


def _there(name: str) -> bool:
    try:
        cw.get(name)
    except cw.NameNotFound:
        return False
    return True


def test_an_array_is_fetched_once_and_again_when_its_name_means_another(
    two: tuple[Node, Node],
) -> None:
    a, b = two
    first, second = bytes_of(1_000_000), bytes_of(1_000_001)
    with b.here():
        cw.put("open/w", first)
    with a.here():
        held = cw.get("//b/open/w")
        before = int(a.state_of(b)["bytes_in"])
        for _ in range(20):
            assert (cw.get("//b/open/w").numpy() == first).all()
        assert int(a.state_of(b)["bytes_in"]) - before < 200_000
        assert "//b/open/w" not in cw.names() and "open/w" not in cw.names()
    with b.here():
        cw.put("open/w", second)
    with a.here():
        assert eventually(lambda: cw.get("//b/open/w").shape == second.shape)
        assert (cw.get("//b/open/w").numpy() == second).all()
        assert (held.numpy() == first).all()  # who has the old one keeps it
    with b.here():
        cw.remove("open/w")
    with a.here():
        assert eventually(lambda: not _there("//b/open/w"))


def test_a_replica_is_read_only(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("open/r", [1, 2])
    with a.here():
        with pytest.raises(ValueError, match="read-only"):
            cw.get("//b/open/r").numpy()[0] = 9
        mine = cw.get("//b/open/r").copy()
        mine.numpy()[0] = 9
        assert cw.get("//b/open/r").numpy().tolist() == [1, 2]


def test_a_replica_under_a_name_of_home_keeps_its_bytes(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("open/k", [1, 2, 3])
    with a.here():
        cw.put("kept", cw.get("//b/open/k"))
        for name in ("kept", "//b/open/k"):
            with pytest.raises(ValueError, match="read-only"):  # else one would change the other
                cw.get(name).numpy()[0] = 9
        views = cw.get("kept")[1:]
        cw.put("part", views)
        with pytest.raises(ValueError, match="read-only"):
            cw.get("part").numpy()[0] = 9
        del views
    with b.here():
        cw.put("open/k", [4, 5, 6])
    with a.here():
        assert eventually(lambda: cw.get("//b/open/k").numpy().tolist() == [4, 5, 6])
        fresh = [cw.put(f"fill/{i}", np.full(3, i)) for i in range(100)]  # into what is free
        assert cw.get("kept").numpy().tolist() == [1, 2, 3]
        assert cw.get("part").numpy().tolist() == [2, 3]
        del fresh
    with b.here():
        cw.remove("open/k")
    with a.here():
        assert eventually(lambda: not _there("//b/open/k"))
        assert cw.get("kept").numpy().tolist() == [1, 2, 3]
        mine = cw.get("kept").copy()
        mine.numpy()[0] = 9


def test_a_thousand_gets_at_once_make_one_transfer(two: tuple[Node, Node]) -> None:
    a, b = two
    values = bytes_of(20_000_000)
    with b.here():
        cw.put("open/many", values)
    wrong: list[object] = []

    def get_some() -> None:
        for _ in range(25):
            found = cw.get("//b/open/many").numpy()
            if found.shape != values.shape or found[-1] != values[-1]:
                wrong.append(found.shape)

    with a.here():
        before = int(a.state_of(b)["bytes_in"])
        threads = [threading.Thread(target=get_some) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert int(a.state_of(b)["bytes_in"]) - before < 1.1 * values.nbytes
        assert (cw.get("//b/open/many").numpy() == values).all()


def test_a_wait_wakes_when_the_name_comes(two: tuple[Node, Node]) -> None:
    a, b = two
    seen: list[object] = []

    with a.here():
        thread = threading.Thread(
            target=lambda: seen.append(cw.get("//b/open/late", timeout=30).numpy().tolist())
        )
        thread.start()
        time.sleep(0.3)
        b.put("open/late", [7])
        thread.join(30)
    assert seen == [[7]]


def test_namespaces_stay_apart(two: tuple[Node, Node]) -> None:
    a, b = two
    with cw.connect(b.folder, namespace="one"):
        cw.put("open/n", [1])
    with cw.connect(b.folder, namespace="two"):
        cw.put("open/n", [2])
    with cw.connect(a.folder, namespace="one"):
        assert cw.get("//b/open/n").numpy().tolist() == [1]
        assert cw.names("//b/") == ["open/n"]
    with cw.connect(a.folder, namespace="two"):
        assert cw.get("//b/open/n").numpy().tolist() == [2]
    with a.here():
        assert not _there("//b/open/n")


def test_a_bridge_that_was_killed_is_started_again(two: tuple[Node, Node]) -> None:
    a, b = two
    values = bytes_of(5_000_000)
    with b.here():
        cw.put("open/k", values)
    for victim in (a, b):
        with a.here():
            held = cw.get("//b/open/k")
            pid = victim.bridge_pid()
            os.kill(pid, signal.SIGKILL)
            assert eventually(lambda v=victim, p=pid: v.bridge_pid() not in (0, p))
            assert eventually(lambda: a.sees(b) and b.sees(a)), a.said() + b.said()
            assert (cw.get("//b/open/k").numpy() == values).all()
            assert (held.numpy() == values).all()
            cw.put("//b/in/k", values)
        with b.here():
            assert (cw.get("in/k").numpy() == values).all()


def test_a_request_outlives_the_bridge_that_had_it(two: tuple[Node, Node]) -> None:
    a, b = two
    seen: list[object] = []
    with a.here():
        thread = threading.Thread(
            target=lambda: seen.append(cw.get("//b/open/after", timeout=60).numpy().tolist())
        )
        thread.start()
        time.sleep(0.2)
        os.kill(a.bridge_pid(), signal.SIGKILL)
        assert eventually(lambda: a.sees(b)), a.said()
        b.put("open/after", [5])
        thread.join(30)
    assert seen == [[5]]


def test_peers_are_told_with_their_figures(two: tuple[Node, Node]) -> None:
    a, b = two
    told = a.state_of(b)
    assert told["state"] == "connected"
    assert told["address"] == f"127.0.0.1:{b.port}"
    assert int(told["bytes_in"]) > 0 and int(told["bytes_out"]) > 0 and int(told["streams"]) >= 1
    assert told["engine"] in ("io_uring", "epoll")


def test_nodes_that_cannot_be_reached_are_told_at_once() -> None:
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        a.knows(b, *RIGHTS)
        a.start()
        with a.here():
            with pytest.raises(cw.RemoteError, match="Connection refused"):
                cw.get("//b/open/x")
            a.knows(b, address="")
            assert eventually(lambda: a.sees(b, "away"))
            with pytest.raises(cw.RemoteError, match="no address"):
                cw.put("//b/in/x", [1])
            a.command("peers", "remove", "b")
            assert eventually(lambda: not a.state_of(b))
            with pytest.raises(cw.RemoteError, match="there is no peer"):
                cw.get("//b/open/x")


def test_a_key_that_is_not_pinned_comes_not_in() -> None:
    with bridge_support.net("a", "b", "c") as made:
        a, b, c = made.nodes.values()
        b.knows(a, *RIGHTS)
        a.knows(b, key=c.print)  # a expects another key than b has
        made.start()
        with a.here(), pytest.raises(cw.RemoteError, match="certificate is refused"):
            cw.get("//b/open/x")
        a.knows(b)
        assert eventually(lambda: a.sees(b)), a.said()
        c.knows(b)  # b does not know c
        with c.here(), pytest.raises(cw.RemoteError):
            cw.get("//b/open/x")
        assert not c.sees(b)
        a.command("peers", "remove", "b")
        assert eventually(lambda: b.sees(a, "away") or b.sees(a, "unreachable")), b.said()


def test_the_command_reaches_other_nodes(two: tuple[Node, Node]) -> None:
    a, b = two
    values = bytes_of(100_000)
    b.put("open/cp", values)
    a.command("wait", "//b/open/cp")
    a.command("cp", "--keep", "//b/open/cp", "mine")
    a.command("cp", "mine", "//b/in/cp")
    a.command("cp", "//b/open/cp", "//b/in/cp2")
    assert "in/cp" not in a.command("ls").stdout and "mine" in a.command("ls").stdout
    a.put("open/cp", [1])
    with a.here():
        mine = cw.get("mine")
        mine.numpy()[:] = 0  # its own memory
        assert (cw.get("//b/open/cp").numpy() == values).all()
        cw.remove("mine")
    with b.here():
        assert (cw.get("in/cp").numpy() == values).all()
        assert (cw.get("in/cp2").numpy() == values).all()
    assert a.command("cp", "//b/open/none", "x", check=False).returncode == 4
    assert a.command("get", "//b/open/none", "-", check=False).returncode == 4
    assert a.command("rm", "//b/in/cp2").returncode == 0
    refused = a.command("cp", "//c/x", "y", check=False)
    assert refused.returncode == 1 and "no peer" in refused.stderr


def test_what_a_peer_puts_stays_where_nobody_has_been_for_long() -> None:
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        made.acquaint("--read", "*", "--write", "*")
        made.start(CABLEWAY_NAMES_LINGER_SECONDS="5")
        made.connected()
        with b.here():
            cw.put("before", [1])
        assert eventually(lambda: "names ended" in b.said(), 30)
        with a.here():
            cw.put("//b/after", [2])
            assert cw.get("//b/after").numpy().tolist() == [2]
            with pytest.raises(cw.NameNotFound):
                cw.get("//b/before")


def test_what_was_put_or_removed_there_is_what_is_got_from_then_on() -> None:
    with bridge_support.net("a", "b") as made:
        made.acquaint("--read", "*", "--write", "*")
        made.start()
        made.connected()
        with made.nodes["a"].here():
            for i in range(200):
                cw.put("//b/again", [i])
                assert cw.get("//b/again").numpy().tolist() == [i]
                if i % 10 == 9:
                    cw.remove("//b/again")
                    with pytest.raises(cw.NameNotFound):
                        cw.get("//b/again")


OWNER = """
import cableway as cw, numpy as np, sys
values = np.zeros(20_000, "i8")
print(flush=True)
while True:
    values += 1
    cw.put("open/clock", values)
"""
READER = """
import cableway as cw
last = 0
for _ in range(80_000):
    found = cw.get("//b/open/clock").numpy()
    assert found[0] == found[-1] and found[0] >= last, (found[0], found[-1], last)
    last = found[0]
"""


def test_who_gets_a_name_again_never_gets_what_it_meant_before(two: tuple[Node, Node]) -> None:
    a, b = two
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], env=b.environment, stdout=subprocess.PIPE
    )
    try:
        assert owner.stdout is not None and owner.stdout.readline()
        with b.here():
            cw.get("open/clock", timeout=30)
        readers = [
            subprocess.Popen([sys.executable, "-c", READER], env=a.environment) for _ in range(4)
        ]
        assert [reader.wait(100) for reader in readers] == [0] * 4
    finally:
        owner.kill()
        owner.communicate()


def test_a_broker_with_its_bridge_alone_has_nothing_to_lose() -> None:
    with bridge_support.net("a") as made:
        a = made.nodes["a"]
        a.start()
        told = a.command("stop")  # without --yes
        assert "loses no array" in told.stderr and "that nobody uses" in told.stderr, told.stderr
        assert "BrokerLost" not in told.stderr, told.stderr
        assert a.process is not None and a.process.wait(60) == 0
        a.process = None
        a.start()
        with a.here():
            refused = a.command("stop", check=False)  # a client is
        assert (
            refused.returncode == 1
            and "1 program is connected, and would get BrokerLost" in refused.stderr
        )
        assert "cableway-bridge" not in refused.stderr
