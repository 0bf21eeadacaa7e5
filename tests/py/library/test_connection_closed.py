"""A connection that another thread closes in the midst of a call: the call is made, or says that it is closed."""

from __future__ import annotations

import pytest
from closing_support import holds

PROGRAM = """
import pickle, sys
from itertools import count
import cableway as cw
from cableway import client, group, name
from cableway._core import leases

# From Python 3.12 on, the instructions of a function are not told again once tracing has ended and begun: then lines have to do.
EVENT = "opcode" if sys.version_info < (3, 12) else "line"
files = client.__file__, group.__file__, leases.__file__, name.__file__
uses = {
    "address": lambda c: c.address,
    "namespace": lambda c: c.namespace,
    "broker_pid": lambda c: c.broker_pid,
    "lost": lambda c: c.lost,
    "repr": repr,
    "close": lambda c: c.close(),
    "names": lambda c: cw.names(),
    "group": lambda c: cw.Group("a", 1).barrier(),
    "pickle": lambda c: pickle.loads(pickle.dumps(cw.empty(10))),
}

def closing(connection, place):
    numbers, came = count(), []
    def look(frame, event, argument):
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = EVENT == "opcode", EVENT == "line"
        if event == EVENT and next(numbers) == place:
            came.append(place)
            sys.settrace(None)
            connection.close()
        return look
    sys.settrace(look)
    return came

for place in count():
    connection = cw.connect(namespace="closing")
    came = closing(connection, place)
    try:
        uses[sys.argv[1]](connection)
    except ValueError as error:
        assert type(error) is ValueError and "is closed" in str(error), (place, error)
        assert sys.argv[1] not in ("lost", "repr", "close"), (place, error)
    finally:
        sys.settrace(None)
    connection.close()
    if not came:
        break
assert place > 3, place
print("held")
"""
USES = [
    "address", "namespace", "broker_pid", "lost", "repr", "close", "names", "group", "pickle",
]  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_a_connection_may_be_closed_between_any_two_steps_of_a_call(use: str) -> None:
    holds(PROGRAM, use)
