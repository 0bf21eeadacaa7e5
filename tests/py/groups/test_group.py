"""Groups: joining by name, barriers, leaving."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from group_support import Member, group, has_joined, members, outcomes
from waiting import eventually

import cableway as cw

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")


def test_unrelated_processes_join_by_name() -> None:
    script = """
import cableway as cw
with cw.Group("train", 3) as g:
    for _ in range(100):
        g.barrier()
    print(g.rank, g.size, g.name, g.completed)
"""
    started = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = sorted(process.communicate(timeout=120)[0].split() for process in started)
    assert said == [[str(rank), "3", "train", "100"] for rank in range(3)]
    assert not cw.names(".group/"), "who leaves last takes the name away"


@pytest.mark.parametrize("given", [True, False], ids=["ranks given", "ranks found"])
def test_a_name_is_used_again_and_again(given: bool) -> None:
    """By members of whom some join anew while others leave."""

    def rounds(_pipe: Any, rank: int) -> int:
        for _ in range(150):
            with cw.Group("again", 3, rank if given else None, timeout=60) as g:
                g.barrier()
        return rank

    started = [Member(rounds, rank) for rank in range(3)]
    try:
        assert [each.returned() for each in started] == [0, 1, 2]
    finally:
        for each in started:
            each.end()


def test_nobody_passes_a_barrier_before_all_have_come() -> None:
    steps = cw.zeros(4, "i8")

    def step(g: cw.Group, _pipe: Any, rounds: int) -> bool:
        mine = steps.numpy()
        for i in range(rounds):
            mine[g.rank] = i
            g.barrier()
            if (mine < i).any():
                return False
            g.barrier()
        return True

    assert outcomes("steps", 4, step, 2000) == [True] * 4


def test_ranks_are_given_or_found() -> None:
    def rank_of(_pipe: Any, rank: int | None) -> tuple[int, int]:
        with cw.Group("ranks", 2, rank) as g:
            g.barrier()
            return g.rank, g.size

    with members(2, rank_of, None) as found:
        assert sorted(member.returned() for member in found) == [(0, 2), (1, 2)]
    one, zero = Member(rank_of, 1), Member(rank_of, 0)
    assert (one.returned(), zero.returned()) == ((1, 2), (0, 2))
    one.end()
    zero.end()


def waits(pipe: Any, name: str, size: int, rank: int | None = None) -> None:
    with cw.Group(name, size, rank):
        pipe.recv()


def test_a_rank_is_taken_once() -> None:
    with members(1, waits, "taken", 2, 1) as (first,):
        assert eventually(lambda: has_joined("taken", 1))
        with pytest.raises(cw.NameTaken, match=f"rank 1 .* process {first.pid}"):
            cw.Group("taken", 2, 1)


def test_all_give_the_same_size() -> None:
    with members(1, waits, "sizes", 3) as (first,):
        assert eventually(lambda: has_joined("sizes", 0))
        with pytest.raises(ValueError, match=f"processes {first.pid}; .* same size"):
            cw.Group("sizes", 2)


def test_more_than_all_cannot_join() -> None:
    def stays(g: cw.Group, pipe: Any) -> None:
        pipe.send("there")
        pipe.recv()

    with group("full", 2, stays) as started:
        for member in started:
            assert member.next() == "there"
        with pytest.raises(cw.Error, match="all of its 2 members"):
            cw.Group("full", 2)
        with pytest.raises(cw.Timeout, match="runs, or has not ended"):
            cw.Group("full", 3, timeout=0.5)


@pytest.mark.parametrize(
    ("name", "size", "rank", "kind", "text"),
    [
        ("x", 0, None, ValueError, "1 to 256"),
        ("x", 257, None, ValueError, "1 to 256"),
        ("x", 2, 2, ValueError, "ranks 0 to 1"),
        ("x", 2, -1, ValueError, "rank -1"),
        ("", 1, None, ValueError, "name"),
        ("x" * 191, 1, None, ValueError, "190 bytes"),
        ("//node/x", 1, None, ValueError, "one machine"),
        ("x", 1.5, None, TypeError, "float"),
    ],
)
def test_bad_arguments(name: str, size: Any, rank: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        cw.Group(name, size, rank)
    assert not cw.names(".group/")


def test_who_is_missing_is_named() -> None:
    cw.names()  # the broker has begun: the group's time is for its members
    with pytest.raises(
        cw.Timeout, match=r"not complete after 0.500 s: 1 of 3 members came; missing: rank 0, 2"
    ):
        cw.Group("missing", 3, 1, timeout=0.5)


def test_what_is_no_group_is_refused() -> None:
    cw.put(".group/other", [1, 2, 3])
    with pytest.raises(cw.Error, match="no group"):
        cw.Group("other", 1)
    cw.remove(".group/other")


def test_a_name_serves_group_after_group() -> None:
    def again(pipe: Any, rank: int) -> int:
        for _ in range(50):
            with cw.Group("again", 2, rank) as g:
                g.barrier()
        return rank

    started = [Member(again, rank) for rank in range(2)]
    assert [member.returned() for member in started] == [0, 1]
    for member in started:
        member.end()
    with cw.Group("again", 1) as g:  # of another size
        g.barrier()
    assert not cw.names(".group/")


def test_a_killed_group_makes_room_for_the_next() -> None:
    def barrier(g: cw.Group, pipe: Any) -> None:
        g.barrier()
        pipe.send("there")
        pipe.recv()

    with group("killed", 2, barrier) as started:
        for member in started:
            assert member.next() == "there"
        for member in started:
            member.kill()
        with cw.Group("killed", 1) as g:
            g.barrier()


def test_who_dies_while_it_joins_is_replaced() -> None:
    with members(1, waits, "replaced", 2, 0) as (first,):
        assert eventually(lambda: has_joined("replaced", 0))
        first.kill()

        def rank(g: cw.Group, pipe: Any) -> int:
            g.barrier()
            return g.rank

        assert outcomes("replaced", 2, rank) == [0, 1]


def test_two_members_may_be_threads_of_one_process() -> None:
    found: list[int] = []

    def join(rank: int) -> None:
        with cw.Group("threads", 2, rank) as g:
            for _ in range(100):
                g.barrier()
            found.append(g.rank)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 1]


def test_a_forked_child_is_no_member() -> None:
    with cw.Group("forked", 1) as g:

        def child(pipe: Any) -> None:
            g.barrier()

        member = Member(child)
        facts = member.raised()
        member.end()
        assert facts["kind"] == "ValueError"
        assert "no member" in facts["text"]
        g.barrier()


def test_a_closed_group_is_told() -> None:
    g = cw.Group("closed", 1)
    g.close()
    g.close()
    with pytest.raises(ValueError, match="group"):
        g.barrier()
    assert repr(g) == "<cableway.Group 'closed' closed>"


def test_the_broker_may_go_while_a_group_runs() -> None:
    def crosses(g: cw.Group, pipe: Any) -> int:
        g.barrier()
        pipe.send("there")
        pipe.recv()
        for _ in range(100):
            g.barrier()
        return g.completed

    with group("brokerless", 2, crosses) as started:
        for member in started:
            assert member.next() == "there"
        os.kill(cw.connect().broker_pid, signal.SIGKILL)
        for member in started:
            member.pipe.send("on")
        assert [member.returned() for member in started] == [101, 101]
    with pytest.raises(cw.BrokerLost):
        cw.names()
    cw.names()  # a new broker


@pytest.mark.parametrize("size", [0, -1, 257, 2**32 + 1, -(2**32) + 1, 2**64 + 1])
def test_a_size_that_no_group_has_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"size {size}: a group has 1 to 256 members"):
        cw.Group("sizes", size)


@pytest.mark.parametrize("rank", [-1, 2, 2**32, 2**40])
def test_a_rank_that_no_member_has_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank}: a group of 2 has ranks 0 to 1"):
        cw.Group("ranks", 2, rank)


def test_without_time_what_needs_no_wait_is_done() -> None:
    with cw.Group("hurry", 1, timeout=0) as g:
        g.barrier()
        assert g.allreduce(3) == 3
        g.send("x", 0)
        assert g.recv(0) == "x"
        with pytest.raises(cw.Timeout, match="no message"):
            g.recv(0)
    with pytest.raises(cw.Timeout, match='"hurry"'):
        cw.Group("hurry", 2, timeout=0)


@pytest.mark.parametrize("timeout", [-1, -1e-9, -np.inf])
def test_a_timeout_below_nothing_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="seconds are 0 or more; None is without limit"):
        cw.Group("hurry", 1, timeout=timeout)
    with cw.Group("hurry", 1, timeout=7) as g:
        with pytest.raises(ValueError, match="0 or more"):
            g.timeout = timeout
        assert g.timeout == 7


def test_a_timeout_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="timeout is not a number"):
        cw.Group("hurry", 1, timeout=float("nan"))
    with cw.Group("hurry", 1) as g:
        with pytest.raises(ValueError, match="timeout is not a number"):
            g.timeout = float("nan")
        with pytest.raises(TypeError, match="number of seconds or None"):
            g.timeout = "1"  # type: ignore[assignment]


def test_a_member_is_not_copied() -> None:
    with cw.Group("alone", 1) as g:
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="join there"):
                copied(g)
        g.barrier()


def leaves_at_once(pipe: Any, rank: int) -> bool:
    for n in range(150):
        with cw.Group(f"leaves/{n % 5}", 2, rank) as g:
            x, root = np.full(300, float(n + rank)), n // 5 % 2
            kind = n % 4
            if kind == 0:
                assert g.Allgather(x)[1 - rank, -1] == n + 1 - rank
            elif kind == 1:
                assert g.Allreduce(x)[-1] == 2 * n + 1
            elif kind == 2:
                assert g.Bcast(x, root)[-1] == n + root
            else:
                found = g.Gather(x, root=root)
                assert (found is None) == (rank != root)
                assert found is None or found[1 - rank, -1] == n + 1 - rank
    return True


def test_all_may_close_at_once_after_their_first_operation() -> None:
    """Who is through leaves while the other one still looks for what it contributed."""
    both = [Member(leaves_at_once, rank) for rank in range(2)]
    assert [member.returned() for member in both] == [True, True]
    for member in both:
        member.end()
