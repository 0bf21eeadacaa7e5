"""When a member of a group dies, leaves or gives up, everybody is told who it was, at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from group_support import Member, group, has_arrived
from waiting import eventually

import cableway as cw

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")


def for_ever(g: cw.Group, pipe: Any) -> None:
    """Barrier after barrier, until one fails."""
    pipe.send("begins")
    while True:
        g.barrier()


def check_told(facts: dict[str, Any], rank: int, pid: int, reason: str) -> None:
    assert facts["kind"] == "GroupBroken", facts["trace"]
    assert (facts["rank"], facts["pid"], facts["reason"]) == (rank, pid, reason), facts["text"]


@pytest.mark.parametrize("call", ["recv", "probe", "wait", "test", "send"])
def test_who_waits_for_a_message_of_the_living_is_told_too(call: str) -> None:
    """All wait in a ring for messages that nobody sends, or for room, and none of them for the dead."""

    def waits(g: cw.Group, pipe: Any) -> None:
        g.barrier()
        pipe.send("there")
        if g.rank == 2:
            pipe.recv()  # is killed here
        peer = 1 - g.rank
        if call == "recv":
            g.recv(peer)
        elif call == "probe":
            g.probe(peer, tag=1)
        elif call == "wait":
            g.irecv(peer).wait()
        elif call == "test":
            request = g.irecv(peer)
            while not request.test()[0]:
                pass
        while True:
            g.send("until there is no room", peer)

    with group("living", 3, waits, timeout=None) as (zero, one, two):
        for member in (zero, one, two):
            assert member.next() == "there"
        two.kill()
        check_told(zero.raised(), 2, two.pid, "died")
        check_told(one.raised(), 2, two.pid, "died")


def test_many_members_find_a_death_as_well() -> None:
    """Of more than 32 others not all are looked at each time."""

    def waits(g: cw.Group, pipe: Any) -> None:
        g.barrier()
        pipe.send("there")
        if g.rank:
            pipe.recv()
        g.recv(1)

    with group("many", 36, waits, timeout=None) as started:
        for member in started:
            assert member.next() == "there"
        for rank in (34, 33):
            started[rank].kill()
        facts = started[0].raised()
        assert (facts["kind"], facts["reason"]) == ("GroupBroken", "died"), facts["trace"]
        assert facts["rank"] in (33, 34)


def test_who_leaves_ends_no_messages_of_others() -> None:
    def talks(g: cw.Group, pipe: Any) -> Any:
        g.barrier()
        if g.rank == 2:
            return "left"
        if g.rank == 0:
            pipe.send("waits")
            return g.recv(1)
        pipe.recv()
        g.send("x", 0)
        return "sent"

    with group("leaves", 3, talks, timeout=None) as (zero, one, two):
        assert (two.returned(), zero.next()) == ("left", "waits")
        time.sleep(0.2)  # some looks
        one.pipe.send("on")
        assert (zero.returned(), one.returned()) == ("x", "sent")


@pytest.mark.parametrize("size", [2, 3, 6])
def test_a_killed_member_is_named_to_all(size: int) -> None:
    with group("kill", size, for_ever, timeout=None) as started:
        for member in started:
            assert member.next() == "begins"
        rank = random.randrange(size)
        started[rank].kill()
        for member in started[:rank] + started[rank + 1 :]:
            check_told(member.raised(), rank, started[rank].pid, "died")


def test_who_sleeps_and_who_computes_are_told() -> None:
    def sleeps(g: cw.Group, pipe: Any) -> None:
        g.barrier()
        pipe.send("there")
        if g.rank == 1:
            pipe.recv()  # is killed here
        if g.rank == 2:
            pipe.recv()  # computes
        g.barrier()

    with group("sleep", 3, sleeps, timeout=None) as (zero, one, two):
        for member in (zero, one, two):
            assert member.next() == "there"
        one.kill()
        check_told(zero.raised(), 1, one.pid, "died")
        two.pipe.send("on")
        check_told(two.raised(), 1, one.pid, "died")


def test_a_forked_child_of_the_dead_changes_nothing() -> None:
    def forks(g: cw.Group, pipe: Any) -> None:
        g.barrier()
        if g.rank == 1:
            child = os.fork()
            if child == 0:
                time.sleep(600)
            pipe.send(child)
            pipe.recv()
        g.barrier()

    with group("child", 2, forks, timeout=None) as (zero, one):
        child = one.next()
        one.kill()
        check_told(zero.raised(), 1, one.pid, "died")
        os.kill(child, signal.SIGKILL)


def test_who_leaves_is_named() -> None:
    def leaves(g: cw.Group, pipe: Any) -> None:
        g.barrier()
        if g.rank == 0:
            return
        g.barrier()

    with group("leave", 3, leaves, timeout=None) as (zero, one, two):
        assert zero.returned() is None
        first, second = one.raised(), two.raised()
        for facts in (first, second):
            assert (facts["kind"], facts["reason"]) == ("GroupBroken", "left"), facts["trace"]
        # The one who noticed leaves too; each names the one that broke it.
        assert (first["rank"], first["pid"]) == (second["rank"], second["pid"]) == (0, zero.pid)


def test_an_end_without_close_counts_as_a_death() -> None:
    def exits(g: cw.Group, pipe: Any) -> None:
        g.barrier()
        if g.rank == 0:
            os._exit(0)
        g.barrier()

    with group("exit", 2, exits, timeout=None) as (zero, one):
        check_told(one.raised(), 0, zero.pid, "died")


def test_a_time_that_runs_out_breaks_the_group() -> None:
    def stops(g: cw.Group, pipe: Any) -> None:
        g.barrier()
        if g.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        g.barrier()

    with group("stopped", 3, stops, timeout=0.3) as (zero, one, two):
        facts = [zero.raised(), two.raised()]
        assert sorted(f["kind"] for f in facts) in (["GroupBroken", "Timeout"], ["Timeout"] * 2)
        late = next(f for f in facts if f["kind"] == "Timeout")
        assert f"rank 1 (pid {one.pid}; last in Barrier)" in late["text"]
        assert "is in operation 1, Barrier" in late["text"]
        os.kill(one.pid, signal.SIGCONT)
        told = one.raised()
        assert (told["kind"], told["reason"]) == ("GroupBroken", "timeout"), told["trace"]
        assert told["rank"] in (0, 2)


def test_ctrl_c_breaks_the_group_and_says_who() -> None:
    def waits(g: cw.Group, pipe: Any) -> None:
        g.barrier()
        pipe.send("there")
        if g.rank == 0:
            pipe.recv()
        g.barrier()

    with group("interrupt", 3, waits, timeout=None) as (zero, one, two):
        for member in (zero, one, two):
            assert member.next() == "there"
        for rank in (1, 2):
            assert eventually(lambda rank=rank: has_arrived("interrupt", rank, 2))
        os.kill(one.pid, signal.SIGINT)
        assert one.raised()["kind"] == "KeyboardInterrupt"
        check_told(two.raised(), 1, one.pid, "interrupted")
        zero.pipe.send("on")
        check_told(zero.raised(), 1, one.pid, "interrupted")


def test_a_handler_that_returns_ends_nothing() -> None:
    def waits(g: cw.Group, pipe: Any) -> int:
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: (seen.append(1), pipe.send("handled")))
        g.barrier()
        pipe.send("there")
        if g.rank == 0:
            pipe.recv()
        g.barrier()
        return len(seen)

    with group("handler", 2, waits, timeout=None) as (zero, one):
        assert (zero.next(), one.next()) == ("there", "there")
        os.kill(one.pid, signal.SIGUSR1)
        assert one.next() == "handled"
        zero.pipe.send("on")
        assert (zero.returned(), one.returned()) == (0, 1)


def test_a_broken_group_is_broken_until_it_is_joined_anew() -> None:
    def twice(g: cw.Group, pipe: Any) -> int:
        if g.rank == 1:
            pipe.send("there")
            pipe.recv()
        for _ in range(3):
            with pytest.raises(cw.GroupBroken):
                g.barrier()
        return g.completed

    with group("broken", 2, twice, timeout=None) as (zero, one):
        assert one.next() == "there"
        one.kill()
        assert zero.returned() == 0

        def barrier(pipe: Any, rank: int) -> int:
            with cw.Group("broken", 2, rank) as g:
                g.barrier()
                return g.completed

        anew = [Member(barrier, rank) for rank in range(2)]
        assert [member.returned() for member in anew] == [1, 1]
        for member in anew:
            member.end()


def test_a_death_while_others_join_is_no_end() -> None:
    """Who waits for members takes whoever has the rank at last."""

    def joins(pipe: Any, rank: int) -> int:
        with cw.Group("late", 3, rank) as g:
            g.barrier()
            return g.rank

    first = [Member(joins, rank) for rank in range(2)]
    first[1].kill()
    second = [Member(joins, rank) for rank in (1, 2)]
    assert [member.returned() for member in (first[0], *second)] == [0, 1, 2]
    for member in (*first, *second):
        member.end()
    assert eventually(lambda: not cw.names(".group/late"))


BROKER_GONE = """
import os, signal, sys
import numpy as np, cableway as cw

folder = os.environ["CABLEWAY_DIR"]
g = cw.Group("orphans", 2, int(sys.argv[1]), timeout=30)
g.barrier()
if g.rank == 0:
    (lock,) = [name for name in os.listdir(folder) if name.endswith(".lock")]
    os.kill(int(open(os.path.join(folder, lock)).read().split()[0]), signal.SIGKILL)
g.barrier()  # needs no broker
try:
    while True:
        g.bcast("x" * 100_000 if g.rank == 0 else None)
except (cw.BrokerLost, cw.GroupBroken) as error:
    print(type(error).__name__)
try:
    g.barrier()
except cw.GroupBroken as error:
    print(error.rank, error.reason)
"""


def test_without_a_broker_an_operation_that_needs_it_breaks_the_group(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", BROKER_GONE, str(rank)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "CABLEWAY_DIR": str(tmp_path)},
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=60)[0].split() for process in started]
    assert "BrokerLost" in (said[0][0], said[1][0]), said  # where it was noticed first
    assert said[0][1:] == said[1][1:] and said[0][2] == "failed", said


BROKER_STOPPED = """
import os, signal, sys, time
import cableway as cw

with cw.connect(sys.argv[1]) as connection:
    pid = connection.broker_pid
joined = cw.Group("joined", 1) if sys.argv[2] == "connected" else None
if joined:
    joined.timeout = 0.5
os.kill(pid, signal.SIGSTOP)
try:
    begun = time.monotonic()
    try:
        cw.Group("stopped", 1, timeout=0.5)
    except cw.Timeout as error:
        print("is stopped" in str(error), time.monotonic() - begun < 5)
    for call in (lambda g: g.allgather("x" * 30_000_000), lambda g: g.send("x" * 30_000_000, 0)):
        begun = time.monotonic()
        try:
            if joined:
                call(joined)
            assert not joined, "this needs new memory"
        except cw.Timeout as error:
            assert "is stopped" in str(error) and not joined.broken, error
        assert time.monotonic() - begun < 5
    begun = time.monotonic()
    if joined:
        joined.close()
    print(time.monotonic() - begun < 5)
finally:
    os.kill(pid, signal.SIGCONT)
with cw.Group("stopped", 1) as g:
    print(g.allreduce(1))
"""


@pytest.mark.parametrize("state", ["fresh", "connected"])
def test_the_time_of_a_group_is_for_a_broker_that_does_not_answer_too(
    tmp_path: Path, state: str
) -> None:
    tmp_path.chmod(0o700)
    said = subprocess.run(
        [sys.executable, "-c", BROKER_STOPPED, str(tmp_path), state], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "CABLEWAY_DIR": str(tmp_path)},
    ).stdout  # fmt: skip
    assert said.split() == ["True", "True", "True", "1"]
