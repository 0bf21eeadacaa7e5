"""A constant that another thread closes in the midst of a call: the call ends as if it had come before, or says that it is closed."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any

import numpy as np
import pytest

import cableway as cw
from cableway.constant import Constant, _cache, sweep

# From Python 3.12 on, the instructions of a function are not told again once tracing has ended and begun: then lines have to do.
FILE = Constant.close.__code__.co_filename
EVENT = "opcode" if sys.version_info < (3, 12) else "line"
USES: dict[str, Callable[[Any], object]] = {
    "value": lambda c: c.value["a"].sum(),
    "closed": lambda c: c.closed,
    "repr": repr,
    "pickle": lambda c: pickle.loads(pickle.dumps(c)).value,
    "tokenize": lambda c: c.__dask_tokenize__(),
    "with": lambda c: c.__enter__(),
    "close": lambda c: c.close(),
}


def closing(made: Any, place: int) -> list[int]:
    """Closes it before the instruction, or line, of that number of a call, as another thread may, which lets go of its memory.

    Returns:
        has an element once the call came so far.
    """
    numbers, came = count(), []

    def look(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != FILE:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = EVENT == "opcode", EVENT == "line"
        if event == EVENT and next(numbers) == place:
            came.append(place)
            sys.settrace(None)
            made.close()
            sweep()
        return look

    sys.settrace(look)
    return came


@pytest.fixture(autouse=True)
def _untraced() -> Iterator[None]:
    """What measures coverage comes back."""
    before = sys.gettrace()
    yield
    sys.settrace(before)


@pytest.mark.parametrize("use", USES)
def test_a_constant_may_be_closed_between_any_two_steps_of_a_call(use: str) -> None:
    for place in count():
        made: Any = cw.constant({"a": np.ones(1000)})
        came = closing(made, place)
        try:
            USES[use](made)
        except cw.Stale as error:
            assert came and "is closed" in str(error) and use not in ("closed", "repr", "close"), (
                place,
                error,
            )
        finally:
            sys.settrace(None)
        if not came:
            break
        assert made.closed
        assert not _cache
    assert place > 5
    made.close()
