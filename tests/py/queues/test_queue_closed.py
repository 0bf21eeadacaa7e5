"""A queue that another thread closes in the midst of a call: the call is made, or says that the queue is closed."""

from __future__ import annotations

import pytest
from closing_support import holds_nothing_idle

PROGRAM = """
import pickle
import cableway as cw
from cableway import queue as queues
from cableway._queue import descriptors

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

files, others = (queues.__file__, descriptors.__file__), []

def close(queue):
    queue.close()
    others[:] = [cw.JoinableQueue()]  # where the other one lay, if nobody has that
    others[0].put("b")

use = sys.argv[1]
for place in count():
    queue = cw.JoinableQueue()
    queue.put("a")
    if use == "join":
        queue.get(), queue.task_done()
    came = closing(queue, place, close, lambda code: code.co_filename in files)
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
    assert others[0].qsize() == 1 and others[0].get() == "b", place
    others[0].task_done()
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
