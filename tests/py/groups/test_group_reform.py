"""What is left of a broken group goes on, and agrees on what was completed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from typing import Any

import numpy as np
import pytest
from group_support import group

import cableway as cw

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
