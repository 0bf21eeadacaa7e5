"""Messages without waiting: requests, probes, and what a receiver is told, as programs for mpi4py use them."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import time
from typing import Any

import numpy as np
import pytest
from group_support import group, outcomes

import cableway as cw
from cableway.group import Request, Status

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
ROOM = 4096  # messages that wait at a receiver at most


def test_the_tutorials_messages() -> None:
    """Those of mpi4py's tutorial: objects with and without waiting, and buffers."""

    def tutorial(g: cw.Group, _pipe: Any) -> Any:
        data, rank = {"a": 7, "b": 3.14}, g.Get_rank()
        assert g.Get_size() == 2
        if rank == 0:
            g.send(data, dest=1, tag=11)
            g.isend(data, dest=1, tag=12).wait()
            g.Send(np.arange(1000, dtype="i"), dest=1, tag=77)
            g.Isend(np.arange(100.0), dest=1, tag=13).Wait()
        else:
            assert g.recv(source=0, tag=11) == data
            assert g.irecv(source=0, tag=12).wait() == data
            numbers = np.empty(1000, dtype="i")
            g.Recv(numbers, source=0, tag=77)
            np.testing.assert_array_equal(numbers, np.arange(1000))
            floats = np.empty(100)
            request = g.Irecv(floats, source=0, tag=13)
            assert request.Wait() and request.Test() and floats[-1] == 99
        g.Barrier()
        return True

    assert outcomes("tutorial", 2, tutorial) == [True, True]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_ring_of_sendrecv(size: int) -> None:
    def ring(g: cw.Group, _pipe: Any) -> list[Any]:
        right, left, status = (g.rank + 1) % g.size, (g.rank - 1) % g.size, Status()
        for n in range(200):
            assert g.sendrecv((n, g.rank), right, 3, left, 3) == (n, left)
            out = np.empty(50)
            got = g.Sendrecv(np.full(50, float(n + g.rank)), right, 4, out, left, 4, status)
            assert got is out and out[-1] == n + left
            assert (status.source, status.tag, status.count) == (left, 4, 400)
        return [g.rank]

    assert outcomes("ring", size, ring) == [[rank] for rank in range(size)]


def test_sendrecv_does_not_wait_for_itself_when_nobody_has_room() -> None:
    def fill(g: cw.Group, _pipe: Any) -> bool:
        for n in range(ROOM):
            g.send(n, 1 - g.rank, tag=1)
        g.barrier()
        assert g.sendrecv(g.rank, 1 - g.rank, 2, 1 - g.rank, 2) == 1 - g.rank
        return [g.recv(tag=1) for _ in range(ROOM)] == list(range(ROOM))

    assert outcomes("full", 2, fill) == [True, True]


def endless() -> np.ndarray[Any, Any]:
    """More bytes than any machine has, none of which takes memory."""
    no_reserve = 0x4000  # mmap.MAP_NORESERVE, from Python 3.11 on
    return np.frombuffer(mmap.mmap(-1, 1 << 42, flags=mmap.MAP_PRIVATE | no_reserve), "u1")


@pytest.mark.parametrize("kind", ["pickle", "out", "send", "source", "memory"])
def test_sendrecv_that_cannot_be_done_sends_nothing_and_says_so(kind: str) -> None:
    """Rank 1 cannot do its part; who waits for its message is told, and the next one works."""

    def refuses(g: cw.Group, _pipe: Any) -> Any:
        g.timeout = 20
        peer, readonly, out = 1 - g.rank, np.zeros(3), np.zeros(3)
        readonly.flags.writeable = False
        if g.rank == 1:
            with pytest.raises(
                (TypeError, ValueError, AttributeError, pickle.PicklingError, cw.LimitExceeded)
            ) as told:
                if kind == "pickle":
                    g.sendrecv(lambda: None, peer, 3, peer, 4)
                elif kind == "out":
                    g.Sendrecv(np.zeros(3), peer, 3, readonly, peer, 4)
                elif kind == "send":
                    g.Sendrecv(np.zeros((3, 3)).T[1:], peer, 3, out, peer, 4)
                elif kind == "memory":
                    g.Sendrecv(endless(), peer, 3, out, peer, 4)
                else:
                    g.Sendrecv(np.zeros(3), peer, 3, out, 5, 4)
            assert "rank 1 could not send" not in str(told.value)
        elif kind == "pickle":
            with pytest.raises(
                ValueError, match="rank 1 could not send its message with tag 3: .*lambda"
            ):
                g.sendrecv("mine", peer, 4, peer, 3)
        else:
            with pytest.raises(ValueError, match="rank 1 could not send its message with tag 3: "):
                g.Sendrecv(np.ones(3), peer, 4, out, peer, 3)
        rest = [g.recv(0, 4) if kind == "pickle" else g.Recv(out, 0, 4)] if g.rank else []
        assert g.sendrecv(g.rank, peer, 3, peer, 3) == peer
        assert not g.iprobe()
        g.barrier()  # who leaves breaks the group for who still looks
        return len(rest)

    assert outcomes(f"refuses/{kind}", 2, refuses) == [0, 1]


def test_a_request_that_was_done_before_the_group_broke_has_its_message() -> None:
    def reforms(g: cw.Group, pipe: Any) -> Any:
        g.send("came", g.rank, tag=1)
        request = g.irecv(g.rank, tag=1)
        g.iprobe()
        g.barrier()
        if g.rank == 0:
            pipe.send("there")
            pipe.recv()
        with pytest.raises(cw.GroupBroken):
            g.barrier()
        before = request.test()
        g.reform()
        return before, request.test(), request.wait()

    with group("done", 2, reforms) as (zero, one):
        assert zero.next() == "there"
        zero.kill()
        assert one.returned() == ((True, "came"), (True, "came"), "came")


def test_a_request_is_done_when_its_message_came() -> None:
    def waits(g: cw.Group, _pipe: Any) -> Any:
        if g.rank:
            g.barrier()
            g.send("x", 0, tag=5)
            g.barrier()
            return None
        request, status = g.irecv(1, 5), Status()
        assert request.test() == (False, None) and not g.iprobe()
        g.barrier()
        g.barrier()
        assert request.test(status) == (True, "x") == request.test()
        assert (status.Get_source(), status.Get_tag()) == (1, 5) and status.Get_count() > 0
        assert request.wait() == "x"
        return True

    assert outcomes("request", 2, waits)[0]


def test_what_is_given_up_takes_no_message() -> None:
    def gives_up(g: cw.Group, _pipe: Any) -> None:
        first, second = g.irecv(0, 1), g.irecv(0, 1)
        first.cancel()
        assert first.test() == (True, None) and first.wait() is None
        g.send("one", 0, 1)
        assert second.wait() == "one"
        second.cancel()  # it is done: nothing happens
        assert second.wait() == "one"
        g.timeout = 0.05
        out = np.zeros(3)
        waits = g.Irecv(out, 0, 2)
        with pytest.raises(cw.Timeout):
            waits.Wait()
        waits.Cancel()
        g.Send(np.ones(3), 0, 2)
        assert g.Recv(np.zeros(3), 0, 2).sum() == 3 and out.sum() == 0
        sent = g.isend("two", 0, 3)
        sent.cancel()
        assert g.recv(0, 3) == "two"

    outcomes("given up", 1, gives_up)


def test_a_message_goes_to_the_request_that_was_first() -> None:
    with cw.Group("first", 1) as g:
        first, second, other = g.irecv(0, 1), g.irecv(), g.irecv(0, 9)
        for n in range(4):
            g.send(n, 0, tag=1)
        assert g.recv() == 2, "behind the two that were posted before"
        assert not other.test()[0] and second.test() == (True, 1) and first.wait() == 0
        assert not g.iprobe(tag=9) and g.iprobe(tag=1)
        g.send("nine", 0, tag=9)
        assert not g.iprobe(tag=9), "it is the request's"
        assert Request.waitall([other, g.irecv(tag=1)]) == ["nine", 3]


def test_a_probe_tells_of_a_message_and_leaves_it() -> None:
    def probes(g: cw.Group, _pipe: Any) -> Any:
        if g.rank:
            g.barrier()
            g.Send(np.zeros(7), 0, tag=6)
            return None
        status = Status()
        assert not g.iprobe(status=status) and status.source is None
        g.barrier()
        assert g.probe(status=status)
        assert (status.source, status.tag, status.count) == (1, 6, 56)
        assert g.iprobe(1, 6) and not g.iprobe(1, 7)
        return float(g.Recv(np.ones(status.count // 8), status.source, status.tag).sum())

    assert outcomes("probe", 2, probes)[0] == 0


def test_isend_waits_for_room_and_messages_keep_their_order() -> None:
    with cw.Group("room", 1) as g:
        for n in range(ROOM):
            g.send(n, 0)
        waiting = [g.isend(ROOM + n, 0) for n in range(3)]
        assert [g.recv() for _ in range(ROOM + 3)] == list(range(ROOM + 3))
        assert Request.waitall(waiting) == [None] * 3


def test_requests_that_are_not_done_in_time_can_be_waited_for_again() -> None:
    with cw.Group("late", 1) as g:
        g.timeout = 0.05
        request = g.irecv()
        for call in (request.wait, g.probe, lambda: g.recv(tag=3)):
            with pytest.raises(cw.Timeout):
                call()
        g.send("x", 0)
        assert request.wait() == "x"
        for n in range(ROOM):
            g.send(n, 0)
        begun = time.monotonic()
        assert g.isend("last", 0).test() == (True, None), "what came is kept: there is room"
        assert time.monotonic() - begun < 10


def test_wrong_arguments_are_refused_at_once() -> None:
    with cw.Group("wrong", 1) as g:
        readonly = np.zeros(3)
        readonly.flags.writeable = False
        for call in (
            lambda: g.isend(1, -1),
            lambda: g.isend(1, 1),
            lambda: g.irecv(0, -1),
            lambda: g.Irecv(readonly),
            lambda: g.iprobe(7),
        ):
            with pytest.raises(ValueError):
                call()
        g.Send(np.zeros(3), 0)
        with pytest.raises(ValueError, match="waits for the next call"):
            g.Irecv(np.zeros(4)).wait()
        assert g.Irecv(np.ones(3)).wait().sum() == 0


@pytest.mark.parametrize("how", ["test", "iprobe", "wait"])
def test_who_asks_again_and_again_is_told_of_a_death(how: str) -> None:
    def asks(g: cw.Group, pipe: Any) -> Any:
        g.barrier()
        pipe.send("there")
        if g.rank == 1:
            signal.pause()
        request = g.irecv(1)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if how == "wait":
                request.wait()
            elif how == "test":
                request.test()
            else:
                g.iprobe(1)
        return None

    with group("asks", 2, asks, timeout=None) as (zero, one):
        assert zero.next() == one.next() == "there"
        os.kill(one.pid, signal.SIGKILL)
        facts = zero.raised()
        assert (facts["kind"], facts["rank"], facts["reason"]) == ("GroupBroken", 1, "died")


def test_requests_of_before_a_reform_are_told_that_it_was() -> None:
    def reforms(g: cw.Group, pipe: Any) -> Any:
        request = g.irecv(tag=1)
        g.barrier()
        if g.rank == 0:
            pipe.send("there")
            pipe.recv()
        with pytest.raises(cw.GroupBroken):
            g.barrier()
        g.reform()
        g.send("new", 1 - g.rank, tag=1)
        for call in (request.wait, request.test):
            with pytest.raises(cw.GroupBroken, match="reformed before the request"):
                call()
        return g.recv(tag=1)

    with group("reformed", 3, reforms) as (zero, one, two):
        assert zero.next() == "there"
        zero.kill()
        assert (one.returned(), two.returned()) == ("new", "new")


def test_what_was_sent_before_a_death_is_found_by_a_probe() -> None:
    def asks(g: cw.Group, pipe: Any) -> Any:
        g.barrier()
        if g.rank == 1:
            g.send("last", 0)
            pipe.send("sent")
            signal.pause()
        pipe.recv()
        time.sleep(0.1)
        assert g.iprobe(1)
        return g.recv(1)

    with group("last", 2, asks) as (zero, one):
        assert one.next() == "sent"
        one.kill()
        zero.pipe.send("on")
        assert zero.returned() == "last"
