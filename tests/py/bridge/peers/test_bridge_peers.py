"""`cableway peers`: the list as people and programs see it, and its changes, made at once or killed. Runs in `make test-more`."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
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


def key(number: int) -> str:
    """A fingerprint that no key has."""
    return f"sha256:{number:064x}"


def add(node: Node, number: int) -> subprocess.Popen[str]:
    """Begins to add a peer."""
    words = [bridge_support.program("cableway"), "peers", "add", f"p{number}", "127.0.0.1:1"]
    return subprocess.Popen(
        [*words, "--key", key(number), "--read", f"r{number}/*", "--write", "*"],
        env=node.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def known(node: Node) -> set[str]:
    """Who stands in the file."""
    told = node.command("peers", "--json")
    return {peer["name"] for peer in json.loads(told.stdout)}


@pytest.fixture
def alone() -> Iterator[Node]:
    """A node whose broker does not run."""
    with bridge_support.net("a") as made:
        yield made.nodes["a"]


def test_changes_at_once_are_all_made(alone: Node) -> None:
    alone.command("peers", "add", "gone", "--key", key(1000))
    removing = subprocess.Popen(
        [bridge_support.program("cableway"), "peers", "remove", "gone"], env=alone.environment
    )
    adding = [add(alone, number) for number in range(40)]
    for process in adding:
        said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    assert removing.wait(60) == 0
    assert known(alone) == {f"p{number}" for number in range(40)}
    text = (alone.keys / "peers").read_text()
    for number in range(40):
        assert text.count(f"[p{number}]\naddress = 127.0.0.1:1\nkey = {key(number)}\n") == 1


def test_a_change_that_is_killed_is_made_or_not(alone: Node) -> None:
    chance = random.Random(seed := random.randrange(1 << 30))
    print("seed", seed)
    sure, ends = set(), []
    begun = time.monotonic()
    for _ in range(5):
        add(alone, 9999).communicate()
    whole = (time.monotonic() - begun) / 5
    for number in range(150):
        begun = time.monotonic()
        process = add(alone, number)
        until = begun + chance.uniform(0, 2 * whole)
        while process.poll() is None and time.monotonic() < until:
            pass
        process.kill()
        process.communicate()
        ends.append(process.returncode)
        # How busy the machine is changes: so it is now.
        whole = time.monotonic() - begun if process.returncode == 0 else 1.05 * whole
        now = known(alone)  # reads: the file is whole
        assert sure | {"p9999"} <= now <= sure | {"p9999", f"p{number}"}
        if process.returncode == 0:
            assert f"p{number}" in now
        sure |= now
    assert 0 in ends and -signal.SIGKILL in ends
    # What one that was killed left does not matter, be it what it may.
    (alone.keys / "peers.new").write_text("half [a secti")
    assert add(alone, 777).wait(60) == 0
    assert known(alone) == sure | {"p777"}
    assert sorted(file.name for file in alone.keys.glob("peers*")) == ["peers", "peers.lock"]


def test_one_who_keeps_the_lock_keeps_others_out_and_they_say_so(alone: Node) -> None:
    assert add(alone, 1).wait(60) == 0
    with (alone.keys / "peers.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        late = add(alone, 2)
        _, said = late.communicate(timeout=60)
        assert late.returncode == 1 and "has been changing the peers for 10 s" in said
    assert known(alone) == {"p1"}
    assert add(alone, 2).wait(60) == 0


def test_the_file_is_made_where_there_was_no_folder(alone: Node) -> None:
    alone.environment["CABLEWAY_NODE_DIR"] = str(alone.folder / "deep/er")
    assert add(alone, 3).wait(60) == 0
    assert (alone.folder / "deep").stat().st_mode & 0o777 == 0o700
    assert (alone.folder / "deep/er/peers").stat().st_mode & 0o777 == 0o600


def test_a_key_is_one_peers(alone: Node) -> None:
    assert add(alone, 5).wait(60) == 0
    again = alone.command("peers", "add", "other", "--key", key(5), check=False)
    assert again.returncode == 1 and "p5 and other have the same key" in again.stderr
    assert known(alone) == {"p5"}
    for words in (["x"], ["x", "--key", key(1), "--ca"], ["x", "--key", "sha256:12"], ["x/y", "--ca"],
                  ["x", "host", "--ca"], ["x", "h:1", "more", "--ca"]):  # fmt: skip
        assert alone.command("peers", "add", *words, check=False).returncode == 2, words
    assert alone.command("peers", "remove", "nobody", check=False).returncode == 4
    assert known(alone) == {"p5"}


def test_what_is_told_without_peers_and_without_a_broker(alone: Node) -> None:
    told = alone.command("peers")
    assert told.stdout == "" and "there are no peers" in told.stderr
    assert json.loads(alone.command("peers", "list", "--json").stdout) == []
    alone.command("peers", "add", "b", "127.0.0.1:1", "--key", key(1))
    alone.command("peers", "add", "c", "--ca")
    told = alone.command("peers")
    assert "this is what the file of peers says" in told.stderr
    head, first, second = told.stdout.splitlines()
    assert head.split()[:4] == ["PEER", "STATE", "ADDRESS", "VERSION"]
    assert first.split() == ["b", "no", "broker", "127.0.0.1:1", "-", "-", "-", "-", "-", "-"]
    assert second.split()[:4] == ["c", "no", "broker", "-"]
    by_json = json.loads(alone.command("peers", "--json").stdout)
    assert [(peer["name"], peer["known_by"], peer["bytes_in"]) for peer in by_json] == [
        ("b", "key", None),
        ("c", "ca", None),
    ]
    assert alone.command("peers", "show", "c").stdout.startswith("c\n  state no broker\n")
    assert alone.command("peers", "show", "d", check=False).returncode == 4
    assert alone.command("peers", "wait", check=False).returncode == 3
    for words in (["lsit"], ["list", "b"], ["show", "a", "b"], ["list", "--all"], ["wait", "a", "b"]):  # fmt: skip
        assert alone.command("peers", *words, check=False).returncode == 2, words
    assert "from-slurm" in alone.command("peers", "--help").stdout


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Node, Node]]:
    """Two nodes that know each other."""
    with bridge_support.acquainted("--read", "*", "--write", "*") as made:
        yield made


def about(one: Node, other: Node) -> dict[str, object]:
    """What one tells of the other."""
    return next(
        peer
        for peer in json.loads(one.command("peers", "--json").stdout)
        if peer["name"] == other.name
    )


def test_each_figure_is_there_and_true(two: tuple[Node, Node]) -> None:
    a, b = two
    values = np.random.default_rng(1).integers(0, 256, 5_000_000, dtype=np.uint8)
    assert a.command("peers", "wait").returncode == 0
    assert eventually(lambda: about(a, b)["rtt_us"] is not None)
    before, there = about(a, b), about(b, a)
    with a.here():
        cw.put("//b/figures", values)
    after, over_there = about(a, b), about(b, a)
    assert after["state"] == "connected" and after["version"] == 5 and after["known_by"] == "key"
    assert after["address"] == f"127.0.0.1:{b.port}" and after["error"] is None
    assert after["engine"] in ("io_uring", "epoll") and after["key_updates"] == 0
    assert 0 < int(str(after["rtt_us"])) < 5_000_000
    # What goes out there comes in here, with the little that TLS and heartbeats add.
    for sent, got in ((before, after), (there, over_there)):
        assert int(str(got["bytes_in"])) >= int(str(sent["bytes_in"]))
    gone = int(str(after["bytes_out"])) - int(str(before["bytes_out"]))
    come = int(str(over_there["bytes_in"])) - int(str(there["bytes_in"]))
    assert values.nbytes < gone < 1.1 * values.nbytes and values.nbytes < come < 1.1 * values.nbytes
    links = after["links"]
    assert isinstance(links, list) and len(links) == after["streams"] >= 1
    assert {link["way"] for link in links} <= {"to", "from"}
    assert {link["kind"] for link in links} <= {"link", "stream"}
    row = a.command("peers").stdout.splitlines()[1].split()
    assert row[:4] == ["b", "connected", f"127.0.0.1:{b.port}", "5"] and row[5] == "us"


def test_the_round_trip_time_is_that_of_the_way() -> None:
    delay = 0.05  # s, each way
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        with Proxy(b.port) as proxy:
            proxy.pause = delay
            a.knows(b, address=f"127.0.0.1:{proxy.port}")
            b.knows(a, address="")
            made.start()
            assert eventually(lambda: about(a, b)["rtt_us"] is not None), a.said()
            assert eventually(lambda: about(b, a)["rtt_us"] is not None), b.said()
            for one, other in ((a, b), (b, a)):
                assert int(str(about(one, other)["rtt_us"])) >= 2e6 * delay


def test_a_peer_that_ends_is_told_with_the_reason(two: tuple[Node, Node]) -> None:
    a, b = two
    b.stop()
    assert eventually(lambda: a.sees(b, "unreachable")), a.state_of(b)
    assert eventually(lambda: "Connection refused" in str(about(a, b)["error"]))
    assert about(a, b)["version"] is None and about(a, b)["rtt_us"] is None
    assert about(a, b)["streams"] == 0 and int(str(about(a, b)["bytes_out"])) > 0  # in all
    late = a.command("peers", "wait", "b", "--timeout", "0", check=False)
    assert late.returncode == 5 and "b is not connected: " in late.stderr
    assert a.command("peers", "wait", "nobody", check=False).returncode == 4
    waiting = subprocess.Popen(
        [bridge_support.program("cableway"), "peers", "wait", "--timeout", "60"], env=a.environment
    )
    b.start()
    assert waiting.wait(60) == 0
    assert about(a, b)["error"] is None


def test_a_bridge_or_broker_that_stands_keeps_nobody_for_ever(two: tuple[Node, Node]) -> None:
    a, b = two
    pid = a.bridge_pid()
    os.kill(pid, signal.SIGSTOP)
    told = a.command("peers", check=False)  # the broker starts another bridge, perhaps in time
    assert told.returncode == 0 or "has not answered for 5 s" in told.stderr, told
    assert eventually(lambda: a.bridge_pid() not in (0, pid) and a.sees(b)), a.said()
    assert a.process
    os.kill(a.process.pid, signal.SIGSTOP)
    try:
        told = a.command("peers", check=False)
        assert "does not answer: it is stopped" in told.stderr and "no broker" in told.stdout, told
    finally:
        os.kill(a.process.pid, signal.SIGCONT)
    assert eventually(lambda: a.sees(b)), a.said()


def test_256_peers_are_told_each_in_its_line(alone: Node) -> None:
    lines = [
        f"[n{number:03}]\naddress = 127.0.0.1:1\nkey = {key(number)}\n" for number in range(256)
    ]
    file = Path(alone.keys / "peers")
    file.write_text("\n".join(lines))
    file.chmod(0o600)
    alone.start()

    def tried() -> bool:
        told = alone.command("peers").stdout.splitlines()[1:]
        return len(told) == 256 and all("Connection refused" in line for line in told)

    assert eventually(tried), alone.command("peers").stdout
    told = json.loads(alone.command("peers", "--json").stdout)
    assert [peer["name"] for peer in told] == [f"n{number:03}" for number in range(256)]
    assert {peer["state"] for peer in told} <= {"unreachable", "connecting"}
    wide = {len(line) for line in alone.command("peers").stdout.splitlines()[1:]}
    assert len(wide) == 1  # columns
