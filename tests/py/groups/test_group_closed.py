"""What a signal's handler closes, or receives, in the midst of an operation of a group; and a group that is closed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from closing_support import holds_nothing_idle

import cableway as cw
from cableway._group import nccl

# A number whose look-up raises a signal in C: its handler runs where the call looks for one next, and not before.
COMMON = """
import ctypes, functools, pickle, signal, threading
import numpy as np
import cableway as cw
from cableway._group.messages import OBJECT

class Zero:
    __index__ = staticmethod(functools.partial(ctypes.CDLL(None)["raise"], int(signal.SIGUSR1)))

def once(what):
    def handler(*_):
        Zero.__index__ = lambda self: 0
        what()
    signal.signal(signal.SIGUSR1, handler)
"""
CLOSED = """
g = cw.Group("closed", 1)
g.send(list(range(1000)), 0)
g.iprobe()
once(g.close)
try:
    g._calls.receive[-1, Zero(), OBJECT, 0, 0, -1]
except ValueError as error:
    print(error)
"""
RECEIVED = """
g = cw.Group("received", 1)
for first in (0, 1):
    g.send(list(range(first, 1000)), 0)
g.iprobe()
found = []
once(lambda: found.append(g.recv()[0]))
data = g._calls.receive[-1, Zero(), OBJECT, 0, 0, -1][4]
g._calls.received[()]
print(found, pickle.loads(data)[0], g.iprobe())
"""
ARRAY = """
values, begin = np.ones(1 << 17), threading.Event()

def root():
    with cw.Group("array", 2, 0) as g:
        g.Bcast(values)
        begin.wait()
        g.Bcast(values)

thread = threading.Thread(target=root)
thread.start()
with cw.Group("array", 2, 1) as g:
    array = cw.empty(1 << 17)
    g.Bcast(array)
    others = []  # where that lay, if nobody has it

    def closes():
        array.close()
        others.extend(cw.zeros(1 << 17) for _ in range(8))
        begin.set()

    once(closes)
    g.Bcast(array, Zero())
thread.join()
print(array.closed, any(other.numpy().any() for other in others))
"""


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (CLOSED, "the group is closed: join it again\n"),
        (RECEIVED, "[0] 1 False\n"),
        (ARRAY, "True False\n"),
    ],
    ids=["closed", "received", "array"],
)
def test_a_handler_may_close_and_receive_in_an_operation(program: str, told: str) -> None:
    holds_nothing_idle(COMMON + program, told=told)


@pytest.mark.parametrize(
    "call",
    [
        lambda g: g.Alltoall(np.ones(3)),
        lambda g: g.Scatter(np.ones(3), np.ones(3)),
        lambda g: g.Reduce_scatter(np.ones(3)),
    ],
    ids=["Alltoall", "Scatter", "Reduce_scatter"],
)
def test_a_closed_group_has_no_blocks(call: Callable[[cw.Group], object]) -> None:
    group = cw.Group("closed", 1)
    group.close()
    with pytest.raises(ValueError, match="the group is closed"):
        call(group)


def test_what_ends_with_a_group_may_be_stopped_by_two_threads() -> None:
    stopped, watches = [], []

    class Watch:
        def stop(self) -> None:
            stopped.append(self)
            if len(stopped) == 2:  # the other thread, as this one waits here
                nccl.stop(watches)

    watches.extend(Watch() for _ in range(3))
    made = set(watches)
    nccl.stop(watches)
    assert set(stopped) == made and not watches
