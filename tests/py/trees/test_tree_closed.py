"""A tree that another thread closes in the midst of a call: the call ends as if it had come before, or says that the tree is closed."""

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
from cableway import tree as trees
from cableway._tree import swapping

FILES = (trees.__file__, swapping.__file__)
# From Python 3.12 on, the instructions of a function are not told again once tracing has ended and begun: then lines have to do.
EVENT = "opcode" if sys.version_info < (3, 12) else "line"
ANY: dict[str, Callable[[cw.Tree], object]] = {
    "item": lambda t: t["a"].numpy().sum(),
    "pickle": pickle.dumps,
    "verify": lambda t: t.verify(),
    "device": lambda t: t.device,
    "kind": lambda t: t.kind("a"),
    "in": lambda t: "a" in t,
    "meta": lambda t: t.meta,
    "list": list,
    "ties": lambda t: t.ties(),
    "state": lambda t: t.state,
    "newer": lambda t: t.newer(),
}
SWAPPABLE: dict[str, Callable[[cw.Tree], object]] = {
    **ANY,
    "unmap": lambda t: t.unmap(),
    "map": lambda t: t.map(),
    "park": lambda t: t.park(),
    "swap": lambda t: t.swap(),
}


def closing(tree: cw.Tree, place: int) -> Callable[[], bool]:
    """Closes the tree before the instruction, or line, of that number of a call, as another thread may.

    Returns:
        ends that, and says whether the call came so far.
    """
    numbers = count()
    came = False

    def look(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal came
        if frame.f_code.co_filename not in FILES or frame.f_code.co_name == "close":
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = EVENT == "opcode", EVENT == "line"
        if event == EVENT and next(numbers) == place:
            came = True
            sys.settrace(None)
            tree.close()
        return look

    def end() -> bool:
        sys.settrace(None)
        return came

    sys.settrace(look)
    return end


@pytest.fixture
def untraced() -> Iterator[None]:
    """What measures coverage comes back."""
    before = sys.gettrace()
    yield
    sys.settrace(before)


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize(
    ("swappable", "call"),
    [(False, name) for name in ANY] + [(True, name) for name in SWAPPABLE],
)
def test_a_tree_may_be_closed_between_any_two_steps_of_a_call(swappable: bool, call: str) -> None:
    values = {"a": np.ones(1000), "b": {"c": np.ones(10)}}
    versions = [cw.put("m", values, meta={"step": 1})]
    for place in count():
        tree = cw.get("m", swappable=swappable)
        if call == "swap":
            versions = [tree, cw.put("m", values)]
        end = closing(tree, place)
        came = False
        try:
            SWAPPABLE[call](tree)
        except ValueError as error:
            came = end()
            assert came and "is closed" in str(error), (place, error)
        finally:
            came = end() or came
        assert tree.closed == came
        if not came:
            break
        assert tree._described.pointer is None and tree._table is None, place  # it keeps no memory
    assert place > 5
    tree.close()
    del versions
