"""Operations on objects, and messages from one member to another."""

from __future__ import annotations

import random
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest
from group_support import group, outcomes

import cableway as cw

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
LONG = "x" * 1_000_000


def thing(rank: int) -> dict[str, Any]:
    return {"rank": rank, "text": LONG[: 10 ** (rank * 2)]}


def everything(g: cw.Group, _pipe: Any) -> None:
    n, rank = g.size, g.rank
    for root in {0, n - 1}:
        assert g.bcast(thing(rank) if rank == root else None, root) == thing(root)
        assert g.gather(thing(rank), root) == ([*map(thing, range(n))] if rank == root else None)
        given = [thing(i) for i in range(n)] if rank == root else None
        assert g.scatter(given, root) == thing(rank)
        assert g.reduce(rank + 1, "prod", root) == (
            int(np.prod(range(1, n + 1))) if rank == root else None
        )
    assert g.allgather(thing(rank)) == [*map(thing, range(n))]
    assert g.allreduce(rank) == sum(range(n))
    assert g.allreduce(str(rank)) == "".join(map(str, range(n))), "in the order of the ranks"
    assert g.allreduce(rank, max) == n - 1
    assert g.allreduce({rank}, lambda a, b: a | b) == set(range(n))
    assert g.reduce_scatter([i * rank for i in range(n)]) == rank * sum(range(n))
    assert g.alltoall([(rank, i) for i in range(n)]) == [(i, rank) for i in range(n)]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_operations_on_objects(size: int) -> None:
    outcomes("objects", size, everything)


def test_small_and_other_objects_may_meet() -> None:
    """Small plain ones take a way of their own, which nobody sees: whoever gives another one, and whatever is made of them."""
    small: list[Any] = [None, True, 7, -(2**40), 2.5, "text", b"bytes", (1, "two"), [3, 4]]
    other: list[Any] = [2**80, {"a": 1}, "x" * 300, {2}]
    ops = {"sum": sum, "prod": np.prod, "min": min, "max": max}

    def meets(g: cw.Group, _pipe: Any) -> None:
        n, rank = g.size, g.rank
        for own, theirs in [(a, b) for a in small + other for b in small + other]:
            mine = own if rank == 0 else theirs
            assert g.allgather(mine) == [own] + [theirs] * (n - 1)
            assert g.bcast(mine, n - 1) == theirs
            assert g.gather(mine, 1) == ([own] + [theirs] * (n - 1) if rank == 1 else None)
        for op, function in ops.items():
            for values in ([3, -1, 4], [0.5, 2.0, -1.0], [2, 0.5, 2**70]):
                found, wanted = g.allreduce(values[rank], op), function(values[:n])
                assert found == wanted and (op == "prod" or type(found) is type(wanted)), (
                    op,
                    values,
                )
            assert g.reduce([3, -1, 4][rank], op, 2) == (
                function([3, -1, 4]) if rank == 2 else None
            )
        assert g.allreduce((rank,)) == (0, 1, 2) and g.allreduce(rank == 1) == 1
        completed = g.completed
        with pytest.raises(TypeError, match="unsupported operand"):
            g.allreduce(None if rank == 1 else 1)
        assert g.completed == completed + 1 and g.allreduce(1) == n, "all go on"
        with pytest.raises(ValueError, match="op is a function of two objects or one of"):
            g.allreduce(1, "mean")

    outcomes("small", 3, meets)


def test_small_and_other_messages_keep_their_order() -> None:
    things: list[Any] = [1, "x" * 300, None, {"a": 1}, (2, 3), [], 2**80, "end"]

    def sends(g: cw.Group, _pipe: Any) -> None:
        status = cw.group.Status()
        for n in range(3 * len(things)):
            g.send(things[n % len(things)], np.int64(0), tag=n % 2)
        for tag in (1, 0):  # those that were passed over come in their order
            for n in range(tag, 3 * len(things), 2):
                assert g.recv(tag=tag, status=status) == things[n % len(things)]
                assert (status.Get_source(), status.Get_tag()) == (0, tag) and status.count > 0
        g.Send(np.arange(3), 0)
        with pytest.raises(ValueError, match="has elements: receive it with Recv"):
            g.recv()
        assert g.Recv(np.empty(3, int))[2] == 2
        with pytest.raises(ValueError, match="rank 5"):
            g.send(1, 5)
        with pytest.raises(ValueError, match="a rank is 0 or more"):
            g.send(1, -1)
        with pytest.raises(ValueError, match="a tag is from 0"):
            g.send(1, 0, tag=2**31)

    outcomes("small messages", 1, sends)


def test_an_array_in_an_object_is_shared_with_all() -> None:
    def shares(g: cw.Group, _pipe: Any) -> list[float]:
        for _ in range(10):
            w = g.bcast([cw.zeros(1000)] if g.rank == 0 else None)[0]
            w.numpy()[g.rank] = g.rank + 1
            g.barrier()
            found = w.numpy()[: g.size].tolist()
            g.barrier()
        return found

    assert outcomes("arrays", 4, shares) == [[1, 2, 3, 4]] * 4


def test_what_a_member_cannot_take_part_in_is_told_to_all_and_they_stay_in_step() -> None:
    """Rank 1 fails in its own way; the others are told its reason."""
    shape = np.zeros(4)

    def calls(g: cw.Group) -> list[Any]:
        """Of each: what is right, what rank 1 does instead, and what it says."""
        n = g.size
        strange: Any = "strange"
        no_pickle = "pickle|get local object"  # the second from Python 3.13 on
        return [
            (lambda: g.allgather(1), lambda: g.allgather(lambda: 0), no_pickle),
            (lambda: g.alltoall([1] * n), lambda: g.alltoall([1]), "one for each"),
            (lambda: g.reduce_scatter([1] * n), lambda: g.reduce_scatter([1]), "one for each"),
            (lambda: g.scatter(None, 1), lambda: g.scatter([1], 1), "one for each"),
            (lambda: g.bcast(None, 1), lambda: g.bcast(lambda: 0, 1), no_pickle),
            (lambda: g.gather(1), lambda: g.gather(1, root=-1), "root -1"),
            (lambda: g.reduce(1), lambda: g.reduce(1, strange), "op is"),
            (lambda: g.allreduce(1), lambda: g.allreduce(1, strange), "op is"),
            (lambda: g.empty(3), lambda: g.empty(3, strange), "strange"),
            (lambda: g.Bcast(shape), lambda: g.Bcast(shape[::2]), "contiguous"),
            (lambda: g.Scatter(np.zeros(n), shape[:1]), lambda: g.Scatter(None, [0]), "out is"),
            (lambda: g.Gather(shape), lambda: g.Gather([object()]), "object"),
            (lambda: g.Allgather(shape), lambda: g.Allgather(shape, np.zeros(1)), "are received"),
            (lambda: g.Reduce(shape), lambda: g.Reduce(shape, op="land"), "land"),
            (lambda: g.Allreduce(shape), lambda: g.Allreduce(shape, np.zeros(4, "i4")), "dtypes"),
            (lambda: g.Allreduce(shape), lambda: g.Allreduce(shape, op=strange), "op is"),
            (
                lambda: g.Reduce_scatter(np.zeros(n)),
                lambda: g.Reduce_scatter(np.zeros(n + 1)),
                "divide",
            ),
            (lambda: g.Alltoall(np.zeros(n)), lambda: g.Alltoall(np.zeros(n + 1)), "divide"),
            (lambda: g.Bcast(shape), lambda: g.Bcast(shape, root=n), f"ranks 0 to {n - 1}"),
        ]

    def refuses(g: cw.Group, _pipe: Any) -> int:
        for number, (right, wrong, reason) in enumerate(calls(g)):
            completed = g.completed
            with pytest.raises(Exception, match=reason) as told:
                wrong() if g.rank == 1 else right()
            if g.rank != 1:
                assert type(told.value) is ValueError, (number, told.value)
                assert "rank 1 could not take part" in str(told.value), (number, told.value)
            assert g.completed == completed
            assert g.allgather(number) == [number] * g.size
        return g.allreduce(1)

    for size in (2, 3):
        assert outcomes("unpicklable", size, refuses) == [size] * size


def test_where_all_fail_each_says_why_and_they_stay_in_step() -> None:
    def refuses(g: cw.Group, _pipe: Any) -> int:
        with pytest.raises(ValueError, match="one for each"):
            g.alltoall([1] * (g.size + 1))
        with pytest.raises(ValueError, match="op is"):
            g.Allreduce(np.zeros(3), op="strange")
        return g.allreduce(1)

    assert outcomes("all", 3, refuses) == [3] * 3


def test_what_fails_in_the_op_of_one_member_leaves_all_in_step() -> None:
    def fails(g: cw.Group, _pipe: Any) -> int:
        if g.rank == 1:
            with pytest.raises(ZeroDivisionError):
                g.allreduce(1, lambda a, b: a // (b - 1))
        else:
            assert g.allreduce(1, lambda a, b: a + b) == 3
        return g.allreduce(1)

    assert outcomes("ops", 3, fails) == [3] * 3


class Unloadable:
    def __reduce__(self) -> Any:
        return (int, ("no number",))


def test_what_cannot_be_unpickled_raises_and_the_group_goes_on() -> None:
    def loads(g: cw.Group, _pipe: Any) -> int:
        if g.rank == 0:
            g.bcast(Unloadable())
        else:
            with pytest.raises(ValueError, match="no number"):
                g.bcast()
        return g.allreduce(1)

    assert outcomes("unloadable", 2, loads) == [2, 2]


def test_another_operation_is_told_to_all() -> None:
    def differs(g: cw.Group, _pipe: Any) -> str:
        with pytest.raises(ValueError, match="all members call the same") as refused:
            g.allgather(1) if g.rank else g.bcast(1)
        g.barrier()
        return str(refused.value)

    for said in outcomes("others", 3, differs):
        assert "allgather" in said
        assert "bcast" in said


def test_another_op_on_objects_is_told_to_all() -> None:
    def differs(g: cw.Group, _pipe: Any) -> str:
        ops: list[Any] = ["max", "sum", max]
        texts = []
        for call in (g.allreduce, g.reduce, lambda value, op: g.reduce_scatter([value] * 3, op)):
            with pytest.raises(ValueError, match="all members call the same") as refused:
                call(g.rank, ops[g.rank])
            texts.append(str(refused.value))
        assert g.allreduce(g.rank, lambda a, b: a * 10 + b) == 12
        return " ".join(texts)

    for said in outcomes("ops", 3, differs):
        assert "allreduce, " in said and "reduce_scatter, " in said
        assert "max" in said or "a function" in said


# ---- messages


def ring(g: cw.Group, _pipe: Any) -> bool:
    n, rank = g.size, g.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    for count in (0, 1, 1000, 40_000, 300_000):
        for place in (np.asarray, cw.asarray):
            mine, theirs = place(np.arange(float(count)) + rank), place(np.zeros(count))
            g.Send(mine, right, tag=count)
            assert g.Recv(theirs, left, tag=count) is theirs
            np.testing.assert_array_equal(np.asarray(theirs), np.arange(float(count)) + left)
    g.send(thing(rank), right)
    return g.recv(left) == thing(left)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_messages_go_round(size: int) -> None:
    assert outcomes("ring", size, ring) == [True] * size


def test_messages_are_picked_by_source_and_tag_and_keep_their_order() -> None:
    def picks(g: cw.Group, _pipe: Any) -> Any:
        if g.rank:
            for i in range(3):
                for tag in (1, 2):
                    g.send((g.rank, tag, i), 0, tag)
            g.barrier()
            return None
        g.barrier()
        found = [g.recv(2, 2) for _ in range(3)] + [g.recv(1, 1) for _ in range(3)]
        rest = [g.recv() for _ in range(6)]
        return found, sorted(rest)

    found, rest = outcomes("picks", 3, picks)[0]
    assert found == [(2, 2, i) for i in range(3)] + [(1, 1, i) for i in range(3)]
    assert rest == [(1, 2, i) for i in range(3)] + [(2, 1, i) for i in range(3)]


def test_a_message_that_does_not_fit_waits() -> None:
    with cw.Group("fit", 1) as g:
        g.Send(np.arange(3.0), 0)
        for out in (np.zeros(4), np.zeros(2), np.zeros(3, "i8")):
            with pytest.raises(ValueError, match="waits for the next call"):
                g.Recv(out)
        with pytest.raises(ValueError, match="has elements"):
            g.recv()
        assert g.Recv(np.zeros(3)).tolist() == [0, 1, 2]
        g.send("x", 0)
        with pytest.raises(ValueError, match="is an object"):
            g.Recv(np.zeros(1))
        assert g.recv() == "x"
        for call in (
            lambda: g.send(1, 1),
            lambda: g.send(1, -1),
            lambda: g.send(1, 0, -1),
            lambda: g.recv(1),
            lambda: g.recv(0, -1),
        ):
            with pytest.raises(ValueError):
                call()


def test_a_message_that_does_not_come_breaks_nothing() -> None:
    def waits(g: cw.Group, _pipe: Any) -> int:
        with pytest.raises(cw.Timeout, match=r"no message from rank \d with tag 5"):
            g.recv(1 - g.rank, 5)
        g.send("late", 1 - g.rank)
        return g.allreduce(1) if g.recv() == "late" else 0

    assert outcomes("none", 2, waits, timeout=0.5) == [2, 2]


def test_who_sends_to_one_that_left_is_told() -> None:
    def sends(g: cw.Group, pipe: Any) -> None:
        if g.rank == 0:
            pipe.recv()
            g.send("x", 1)

    with group("left", 2, sends) as (zero, one):
        assert one.returned() is None
        zero.pipe.send("on")
        facts = zero.raised()
        assert (facts["kind"], facts["rank"], facts["reason"]) == ("GroupBroken", 1, "left")


def test_who_waits_for_a_message_of_a_dead_member_is_told() -> None:
    def waits(g: cw.Group, pipe: Any) -> Any:
        g.barrier()
        pipe.send("there")
        if g.rank == 1:
            pipe.recv()
        return g.recv(1 if g.rank == 0 else None)

    with group("dead", 3, waits, timeout=None) as (zero, one, two):
        for member in (zero, one, two):
            assert member.next() == "there"
        one.kill()
        for member in (zero, two):
            facts = member.raised()
            assert (facts["kind"], facts["rank"]) == ("GroupBroken", 1), facts["trace"]


def test_what_was_sent_before_leaving_is_received() -> None:
    def leaves(g: cw.Group, pipe: Any) -> Any:
        if g.rank == 1:
            g.send(LONG, 0)
            g.send("last", 0)
            return None
        found = g.recv(1) == LONG, g.recv(1)
        with pytest.raises(cw.GroupBroken):
            g.recv(1)
        return found

    for _ in range(5):
        assert outcomes("leaves", 2, leaves)[0] == (True, "last")


def test_messages_of_before_a_reform_come_first() -> None:
    def reforms(g: cw.Group, pipe: Any) -> Any:
        if g.rank == 1:
            g.send("old", 2)
        g.barrier()
        if g.rank == 0:
            pipe.send("there")
            pipe.recv()
        with pytest.raises(cw.GroupBroken):
            g.barrier()
        g.reform()
        if g.rank == 0:
            g.send("new", 1)
        return [g.recv(0), g.recv(0)] if g.rank == 1 else None

    with group("old", 3, reforms) as (zero, one, two):
        assert zero.next() == "there"
        zero.kill()
        assert (one.returned(), two.returned()) == (None, ["old", "new"])


def test_ctrl_c_ends_a_wait_for_a_message_and_breaks_nothing() -> None:
    def waits(g: cw.Group, pipe: Any) -> Any:
        g.barrier()
        if g.rank == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                g.recv()
            time.sleep(0)
        return g.allreduce(1)

    assert outcomes("interrupted", 2, waits) == [2, 2]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 raises behind a return, too")
def test_what_a_handler_raises_ends_a_send_and_nothing_is_sent() -> None:
    class Raised(Exception):
        pass

    def raises(*_: object) -> None:
        raise Raised

    def sends(g: cw.Group, _pipe: Any) -> bool:
        raised = number = 0
        chosen = random.Random(1)
        signal.signal(signal.SIGALRM, raises)
        g.timeout = 0
        while raised < 300:
            sent = False
            try:
                signal.setitimer(signal.ITIMER_REAL, chosen.uniform(1e-6, 2e-4))
                g.send((number, LONG[:100_000]), 0)
                sent = True
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Raised:
                raised += not sent
            signal.setitimer(signal.ITIMER_REAL, 0)
            if sent:
                assert g.recv(0)[0] == number
            assert not g.iprobe()
            number += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        return True

    assert outcomes("interrupted", 1, sends) == [True]


def test_what_a_handler_raises_keeps_nobody_at_an_operation_on_objects() -> None:
    class Raised(Exception):
        pass

    calls = False

    def raises(*_: object) -> None:
        if calls:  # and not behind a call that ended otherwise
            raise Raised

    def gathers(g: cw.Group, _pipe: Any) -> bool:
        """One rank is interrupted: the others have the result, or are told."""
        nonlocal calls
        chosen = random.Random(2)
        signal.signal(signal.SIGALRM, raises)
        for _ in range(200):
            try:
                try:
                    try:
                        if g.rank == 1:
                            calls = True
                            signal.setitimer(signal.ITIMER_REAL, chosen.uniform(1e-6, 1e-3))
                        g.allgather(LONG[:1000])
                        signal.setitimer(signal.ITIMER_REAL, 0)
                    finally:
                        calls = False
                except Raised:
                    assert g.rank == 1
                g.barrier()
            except cw.GroupBroken as error:
                if error.reason == "left" and g.rank == 1:
                    break  # the others have done their rounds; it was behind by those in which it met them at another call
                assert error.reason == "interrupted", error
                g.reform()
            except ValueError as error:  # it was raised before the call began, or as it began
                text = str(error)
                declined = "rank 1 could not take part" in text and "Raised" in text
                assert declined or ("allgather" in text and "Barrier" in text), error
        return True

    assert outcomes("interrupts", 3, gathers) == [True] * 3


def test_a_group_that_is_closed_says_so() -> None:
    g = cw.Group("closed", 1)
    g.close()
    for call in (
        g.barrier,
        lambda: g.allreduce(1),
        lambda: g.send(1, 0),
        lambda: g.recv(0),
        g.reform,
    ):
        with pytest.raises(ValueError, match="the group is closed"):
            call()
