"""A connection that another thread closes in the midst of a call: the call is made, or says that it is closed."""

from __future__ import annotations

import pytest
from closing_support import holds

PROGRAM = """
import pickle
import cableway as cw
from cableway import client, group, name
from cableway._core import leases

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

for place in count():
    connection = cw.connect(namespace="closing")
    came = closing(connection, place, lambda c: c.close(), lambda code: code.co_filename in files)
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
