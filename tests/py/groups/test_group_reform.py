"""What is left of a broken group goes on, and agrees on what was completed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from typing import Any

import numpy as np
import pytest
from group_support import group, has_arrived
from waiting import eventually

import cableway as cw
from cableway.group import Status

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")


def goes_on(g: cw.Group, pipe: Any, rounds: int) -> Any:
    """Reduces until somebody dies; then says who is left, and that these compute together."""
    a = cw.full(5000, 1.0)
    pipe.send("begins")
    for _ in range(rounds):
        try:
            while True:
                g.barrier()
                if g.Allreduce(a)[7] != g.size:
                    return "wrong"
        except cw.GroupBroken as error:
            before = g.rank, g.size, g.completed
            g.reform()
            pipe.send((before, error.rank, g.rank, g.size, g.completed))
    return float(g.Allreduce(np.array([g.rank]))[0])


def test_the_rest_goes_on_and_keeps_its_order() -> None:
    with group("rest", 4, goes_on, 2) as started:
        for member in started:
            assert member.next() == "begins"
        started[1].kill()
        left = [started[0], started[2], started[3]]
        said = [member.next() for member in left]
        assert [(new, size) for *_, new, size, _ in said] == [(0, 3), (1, 3), (2, 3)]
        assert {broken for _, broken, *_ in said} == {1}
        agreed = {completed for *_, completed in said}
        assert agreed == {min(before[2] for before, *_ in said)}
        left[0].kill()
        again = [member.next() for member in left[1:]]
        assert [(before[:2], broken, new, size) for before, broken, new, size, _ in again] == [
            ((1, 3), 0, 0, 2),
            ((2, 3), 0, 1, 2),
        ]
        assert [member.returned() for member in left[1:]] == [1.0, 1.0]


def test_one_that_is_left_goes_on_alone() -> None:
    with group("alone", 2, goes_on, 1) as (zero, one):
        assert (zero.next(), one.next()) == ("begins", "begins")
        zero.kill()
        _, broken, rank, size, _ = one.next()
        assert (broken, rank, size) == (0, 0, 1)
        assert one.returned() == 0.0


def test_a_whole_group_is_not_reformed() -> None:
    with cw.Group("whole", 1) as g:
        with pytest.raises(ValueError, match="not broken"):
            g.reform()
        g.barrier()


def test_who_closes_is_not_waited_for() -> None:
    def closes(g: cw.Group, pipe: Any) -> Any:
        g.barrier()
        if g.rank == 0:
            pipe.send("there")
            pipe.recv()
        with pytest.raises(cw.GroupBroken):
            g.barrier()
        if g.rank == 1:
            return None
        g.reform()
        return g.rank, g.size

    with group("closes", 4, closes) as (zero, one, two, three):
        assert zero.next() == "there"
        zero.kill()
        assert (one.returned(), two.returned(), three.returned()) == (None, (0, 2), (1, 2))


def test_who_does_not_come_is_named_and_may_come_later() -> None:
    def late(g: cw.Group, pipe: Any) -> Any:
        g.barrier()
        if g.rank == 2:
            pipe.send("there")
            pipe.recv()
        with pytest.raises(cw.GroupBroken):
            g.barrier()
        if g.rank == 1:
            pipe.send("told")
            pipe.recv()
        while True:
            with contextlib.suppress(cw.Timeout):
                g.reform()
                return g.rank, g.size
            pipe.send("waits")

    with group("late", 3, late, timeout=0.5) as (zero, one, two):
        assert two.next() == "there"
        two.kill()
        assert one.next() == "told"
        assert zero.next() == "waits"
        one.pipe.send("on")
        found = zero.next()
        while found == "waits":
            found = zero.next()
        assert found == ("returned", (0, 2))
        assert one.returned() == (1, 2)


def test_after_a_timeout_the_stopped_member_may_be_ended() -> None:
    def stops(g: cw.Group, pipe: Any) -> Any:
        g.barrier()
        if g.rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises((cw.Timeout, cw.GroupBroken)):
            g.barrier()
        pipe.send("told")
        pipe.recv()
        g.reform()
        return g.rank, g.size

    with group("stops", 3, stops, timeout=1) as (zero, one, two):
        assert (one.next(), two.next()) == ("told", "told")
        zero.kill()
        for member in (one, two):
            member.pipe.send("on")
        assert (one.returned(), two.returned()) == ((0, 2), (1, 2))


def test_deaths_during_reform_break_the_next_group_and_nobody_hangs() -> None:
    def storm(g: cw.Group, pipe: Any) -> Any:
        pipe.send("begins")
        while g.size > 1:
            try:
                while True:
                    g.barrier()
            except cw.GroupBroken:
                g.reform()
        return g.rank, g.size

    with group("storm", 6, storm) as started:
        for member in started:
            assert member.next() == "begins"
        random.shuffle(started)
        last = started.pop()
        for member in started:
            os.kill(member.pid, signal.SIGKILL)
        assert last.returned() == (0, 1)


def dies_with_messages_under_way(g: cw.Group, pipe: Any, drop: bool) -> Any:
    """Rank 1 is killed when all have sent rank 0 their messages, of which it has received none. What rank 0 finds afterwards."""
    status = Status()
    if g.rank:
        for n in range(3):
            g.send((g.rank, n), 0, tag=n)
        g.send((g.rank, "x" * 400_000), 0, tag=7)
        g.Send(np.full(3, float(g.rank)), 0, tag=8)
    g.barrier()
    pipe.send("there")
    if g.rank == 1:
        pipe.recv()  # is killed here
    with pytest.raises(cw.GroupBroken):
        g.barrier()
    g.reform(drop_messages=drop)
    g.barrier()
    if g.rank:
        after = g.sendrecv("after", 0, 9, 0, 9)
        g.barrier()  # who leaves breaks the group for who still looks
        return after
    found: list[Any] = [g.sendrecv("after", rank, 9, rank, 9) for rank in (1, 2)]
    while g.iprobe(tag=7, status=status):
        rank, text = g.recv(status.source, 7)
        found.append((rank, len(text), status.source))
    while g.iprobe(tag=8):
        found.append(g.Recv(np.empty(3), tag=8, status=status)[0] == status.source + 1.0)
    while g.iprobe():
        found.append((*g.recv(status=status), status.source, status.tag))
    g.barrier()
    return found


def test_messages_of_those_who_live_are_received_after_a_reform() -> None:
    with group("messages", 4, dies_with_messages_under_way, False) as started:
        for member in started:
            assert member.next() == "there"
        started[1].kill()
        found = started[0].returned()
        assert started[2].returned() == started[3].returned() == "after"
    assert found[:2] == ["after", "after"]
    assert sorted(found[2:4]) == [(2, 400_000, 1), (3, 400_000, 2)], (
        "each from the new rank of its sender"
    )
    assert found[4:6] == [True, True]
    rest = found[6:]
    assert [one for one in rest if one[0] == 2] == [(2, n, 1, n) for n in range(3)], (
        "in their order"
    )
    assert [one for one in rest if one[0] == 3] == [(3, n, 2, n) for n in range(3)]
    assert len(rest) == 6, "those of the dead are gone with its rank"


def test_a_member_may_drop_what_was_sent_before() -> None:
    with group("dropped", 4, dies_with_messages_under_way, True) as started:
        for member in started:
            assert member.next() == "there"
        started[1].kill()
        assert started[0].returned() == ["after", "after"]


def test_ctrl_c_in_a_barrier_loses_no_message() -> None:
    def interrupted(g: cw.Group, pipe: Any) -> Any:
        g.send(("before", g.rank), 1 - g.rank)
        g.barrier()
        pipe.send("there")
        if g.rank:
            with pytest.raises(KeyboardInterrupt):
                g.barrier()
            pipe.send("raised")
        else:
            pipe.recv()
            with pytest.raises(cw.GroupBroken):
                g.barrier()
        g.reform()
        g.send(("behind", g.rank), 1 - g.rank)
        return g.recv(), g.recv()

    with group("interrupted", 2, interrupted) as (zero, one):
        assert (zero.next(), one.next()) == ("there", "there")
        assert eventually(lambda: has_arrived("interrupted", 1, 2))
        os.kill(one.pid, signal.SIGINT)
        assert one.next() == "raised"
        zero.pipe.send("on")
        assert zero.returned() == (("before", 1), ("behind", 1))
        assert one.returned() == (("before", 0), ("behind", 0))


HOLDS: list[Any] = []  # the pipe of a member that stops when it unpickles a Held


def held() -> str:
    """What a Held becomes."""
    for pipe in HOLDS:
        pipe.send("in the middle")
        pipe.recv()
    return "held"


class Held:
    """An object that one member is at when it is killed."""

    def __reduce__(self) -> Any:
        return held, ()


def test_completed_counts_whole_operations_on_objects() -> None:
    def computes(g: cw.Group, pipe: Any) -> Any:
        for n in range(3):
            assert g.allgather(n) == [n] * 3
        g.empty(10)
        before = g.completed
        HOLDS.extend([pipe] * (g.rank == 1))
        with pytest.raises(cw.GroupBroken):
            g.bcast(Held())
        g.reform()
        return before, g.completed

    with group("halves", 3, computes) as (zero, one, two):
        assert one.next() == "in the middle"
        one.kill()
        assert (zero.returned(), two.returned()) == ((4, 4), (4, 4))
