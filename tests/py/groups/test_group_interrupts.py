"""What a signal's handler raises in operations and messages, as Ctrl-C does: nothing that came is lost, and all are told or none.

Python 3.10 looks for signals between the `return` of a function and the store of what it returned; there these tests cannot hold.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from group_support import outcomes

import cableway as cw
from cableway.group import Request

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork"),
    pytest.mark.skipif(
        sys.version_info < (3, 11), reason="Python 3.10 raises behind a return, too"
    ),
]
TIMES = int(os.environ.get("CABLEWAY_INTERRUPTS", "3000"))
NOTHING: Any = object()


class Raised(Exception):
    """What the handler raises: of no special class."""


class _Alarm:
    def __init__(self) -> None:
        self.came = 0
        self.error: type[BaseException] = Raised
        signal.signal(signal.SIGALRM, self._handle)

    def _handle(self, _number: int, _frame: Any) -> None:
        self.came += 1
        raise self.error

    def call(self, function: Callable[[], Any], seconds: float) -> Any:
        """What a function returns that is interrupted at some moment of that time; NOTHING: it raised what the handler raised."""
        got, came = NOTHING, self.came
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, seconds))
            got = function()
            self._wait(came)
        except self.error:
            pass
        return got

    def _wait(self, came: int) -> None:
        """Until it raises. A function of its own: where a loop goes back Python 3.13 raises outside of the try that it is in."""
        while self.came == came:
            time.sleep(0)


def received(g: cw.Group, _pipe: Any) -> int:
    """Messages of all kinds to oneself; how many receives were interrupted."""
    alarm, raised = _Alarm(), 0
    random.seed(3)
    g.timeout = 10
    for n in range(TIMES):
        kind = n % 4
        if kind == 3:
            sent: Any = np.full(1000, float(n))
            g.Send(sent, 0, tag=3)
            got = alarm.call(lambda: g.Recv(np.zeros(1000), 0, 3), 60e-6)
            if got is NOTHING:
                raised += 1
                got = g.Recv(np.zeros(1000), 0, 3)
            assert got[-1] == n
        else:
            g.send((n, n, "x" * 400_000, cw.asarray(np.full(9, n)))[: kind + 2], 0, tag=kind)
            got = alarm.call(lambda: g.recv(tag=kind), 200e-6)  # noqa: B023
            if got is NOTHING:
                raised += 1
                got = g.recv(0)
            assert got[0] == n
            assert kind != 2 or got[3][-1] == n
        assert not g.iprobe(), "it comes once"
    return raised


def test_no_message_is_lost_by_what_a_handler_raises() -> None:
    raised = outcomes("received", 1, received)[0]
    assert raised > TIMES // 100


def requested(g: cw.Group, _pipe: Any) -> int:
    """The same by requests, on both sides."""
    alarm, raised = _Alarm(), 0
    random.seed(5)
    g.timeout = 10
    calls: list[Callable[[Request], Any]] = [
        lambda request: request.wait(),
        lambda request: request.test(),
        lambda request: Request.waitall([request]),
        lambda _: g.iprobe(0, 9),
    ]
    for n in range(TIMES):
        request = g.irecv(0, 1)
        sent = alarm.call(lambda: g.isend(n, 0, 1), 30e-6)  # noqa: B023
        if sent is NOTHING:  # nothing says whether it was sent: no object came back
            if request.test()[0]:
                assert request.wait() == n
                continue
            g.isend(n, 0, 1)
        raised += alarm.call(lambda: calls[n % 4](request), 40e-6) is NOTHING  # noqa: B023
        assert request.wait() == n
        assert not g.iprobe(), "it comes once"
    return raised


def test_no_message_of_a_request_is_lost_either() -> None:
    raised = outcomes("requested", 1, requested)[0]
    assert raised > TIMES // 100


def test_messages_that_were_given_back_keep_their_order() -> None:
    def receives(g: cw.Group, _pipe: Any) -> bool:
        alarm = _Alarm()
        random.seed(4)
        for n in range(TIMES // 10):
            for tag in (1, 2, 3):
                g.send((n, tag), 0, tag)
            got = alarm.call(lambda: g.recv(tag=2), 30e-6)
            rest = [g.recv() for _ in range(3 if got is NOTHING else 2)]
            assert rest == [(n, tag) for tag in ((1, 2, 3) if got is NOTHING else (1, 3))]
        return True

    assert outcomes("order", 1, receives) == [True]


# The call, which is the last of its function; and what comes of it.
OPERATIONS: dict[str, tuple[Callable[[cw.Group, int], Any], Callable[[int, int], Any]]] = {
    "Allreduce": (lambda g, n: g.Allreduce(np.full(3, n)), lambda n, size: [n * size] * 3),
    "Allgather": (lambda g, n: g.Allgather(np.full(300, n)), lambda n, size: [[n] * 300] * size),
    "allreduce": (lambda g, n: g.allreduce(n), lambda n, size: n * size),
    "allgather": (lambda g, n: g.allgather(n), lambda n, size: [n] * size),
    # One member's object is small, the other one's is not: they take different ways.
    "small here": (
        lambda g, n: g.allgather((n, "x" * 300 * (1 - g.rank))),
        lambda n, size: [(n, "x" * 300), (n, "")],
    ),
    "small there": (
        lambda g, n: g.allreduce((n, "x" * 300 * g.rank)),
        lambda n, size: (n, "", n, "x" * 300),
    ),
    "bcast": (lambda g, n: g.bcast(n if g.rank == 0 else None), lambda n, _size: n),
    "alltoall": (lambda g, n: g.alltoall([n] * g.size), lambda n, size: [n] * size),
}


@pytest.mark.parametrize("error", [Raised, KeyboardInterrupt])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_its_result_or_all_are_told(
    name: str, error: type[BaseException]
) -> None:
    """Rank 1 is interrupted at any moment. Then it has the result; or the group is broken; or it has failed for all, or not begun."""
    call, expected = OPERATIONS[name]

    def computes(g: cw.Group, _pipe: Any) -> list[int]:
        alarm, ends, n = _Alarm(), [0, 0, 0], 0
        alarm.error = error
        random.seed(5)
        while n < TIMES // 10 or (sum(ends[1:]) == 0 and n < 10 * TIMES):  # some take a microsecond
            met = g._end.meetings
            try:
                got = alarm.call(lambda: call(g, n), 50e-6) if g.rank == 1 else call(g, n)  # noqa: B023
                if got is NOTHING and not g.broken and g._end.meetings == met:
                    got = call(g, n)  # it had not begun
                if got is not NOTHING:
                    if "small" in name:
                        assert got == expected(n, g.size)
                    else:
                        np.testing.assert_array_equal(got, expected(n, g.size))
                    n += 1
                    ends[0] += 1
                elif not g.broken:
                    ends[2] += 1
            except ValueError as told:
                assert g.rank == 0 and "rank 1 could not take part" in str(told), told
                ends[2] += 1
            except cw.GroupBroken as broken:
                assert broken.reason == "interrupted", broken
            if g.broken:
                g.reform()
                n = g.allreduce(n, min)
                ends[1] += 1
        return ends

    zero, one = outcomes(f"interrupts/{name}", 2, computes)
    # Both are told; but of the end of the last one rank 0 is not, when it had its result and left.
    assert zero[2] == one[2] and zero[1] <= one[1] <= zero[1] + 1
    assert sum(one[1:]) > 0, "else nothing was tried"
