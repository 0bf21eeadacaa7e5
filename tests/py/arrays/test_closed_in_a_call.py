"""An array that another thread closes in the midst of a call: the call is made, or says that the array is closed."""

from __future__ import annotations

import pytest
from closing_support import holds_nothing_idle

PROGRAM = """
import numpy as np
import pickle
import cableway as cw
from cableway import array as arrays
from cableway._array import copies
from cableway._queue import items

values, given, queue = np.ones(1 << 17), cw.put("given", np.ones(1 << 17)), cw.Queue()
files = copies.__file__, arrays.__file__, items.__file__
uses = {
    "values": lambda x: x.__setitem__(..., values),
    "array": lambda x: cw.copy([(x, given)]),
    "source": lambda x: cw.copy([(given, x)]),
    "pickle": pickle.dumps,
    "device": lambda x: x.device,
    "numpy": lambda x: x.numpy().sum(),
    "asarray": lambda x: np.asarray(x).sum(),
    "queue": lambda x: (queue.put([x]), queue.get_nowait()),
}

def is_traced(code):
    return code.co_filename in files and code.co_name != "close"

for place in count():
    array = cw.empty(1 << 17)
    closing(array, place, lambda x: x.close(), is_traced)
    try:
        uses[sys.argv[1]](array)
    except ValueError as error:
        assert "is closed" in str(error), (place, error)
    finally:
        sys.settrace(None)
    if not array.closed:
        break
    assert array._memory is None, place  # it keeps no memory
assert place > (5 if EVENT == "opcode" else 3), place
print("held")
"""


@pytest.mark.parametrize(
    "use", ["values", "array", "source", "pickle", "device", "numpy", "asarray", "queue"]
)
def test_an_array_may_be_closed_between_any_two_steps_of_a_call(use: str) -> None:
    holds_nothing_idle(PROGRAM, use)
