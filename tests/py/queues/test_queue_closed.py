"""A queue that another thread closes in the midst of a call: the call is made, or says that the queue is closed."""

from __future__ import annotations

import pytest
from closing_support import holds_nothing_idle

PROGRAM = """
import pickle, sys
from itertools import count
import cableway as cw
from cableway import queue as queues
from cableway._queue import descriptors

# From Python 3.12 on, the instructions of a function are not told again once tracing has ended and begun: then lines have to do.
EVENT = "opcode" if sys.version_info < (3, 12) else "line"
uses = {
    "put": lambda q: q.put("x"),
    "get": lambda q: q.get(),
    "qsize": lambda q: q.qsize(),
    "nbytes": lambda q: q.nbytes(),
    "empty": lambda q: q.empty(),
    "full": lambda q: q.full(),
    "task_done": lambda q: q.task_done(),
    "join": lambda q: q.join(),
    "pickle": lambda q: pickle.loads(pickle.dumps(q)).qsize(),
    "reader": lambda q: q._reader.fileno(),
    "close": lambda q: q.close(),
    "repr": repr,
}
told_after_close = {"qsize", "nbytes", "full", "close", "repr"}

def closing(queue, place):
    numbers, came = count(), []
    def look(frame, event, argument):
        if frame.f_code.co_filename not in (queues.__file__, descriptors.__file__):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = EVENT == "opcode", EVENT == "line"
        if event == EVENT and next(numbers) == place:
            sys.settrace(None)
            queue.close()
            came.append(cw.JoinableQueue())  # where the other one lay, if nobody has that
            came[0].put("b")
        return look
    sys.settrace(look)
    return came

use = sys.argv[1]
for place in count():
    queue = cw.JoinableQueue()
    queue.put("a")
    if use == "join":
        queue.get(), queue.task_done()
    came = closing(queue, place)
    try:
        uses[use](queue)
    except (ValueError, OSError) as error:
        assert "is closed" in str(error) and use not in told_after_close, (place, error)
    finally:
        sys.settrace(None)
    if not came:
        break
    assert queue._end is None, place  # it keeps no memory
    assert use in ("get", "put", "join") or queue.qsize() == 1, place
    assert came[0].qsize() == 1 and came[0].get() == "b", place
    came[0].task_done()
assert place > 5, place
print("held")
"""
USES = [
    "put",
    "get",
    "qsize",
    "nbytes",
    "empty",
    "full",
    "task_done",
    "join",
    "pickle",
    "reader",
    "close",
    "repr",
]


@pytest.mark.parametrize("use", USES)
def test_a_queue_may_be_closed_between_any_two_steps_of_a_call(use: str) -> None:
    holds_nothing_idle(PROGRAM, use)
