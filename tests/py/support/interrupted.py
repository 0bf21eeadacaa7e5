"""Exceptions at every step of the package's Python, as a signal's handler may raise them; also for scripts that the tests
run."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import cableway

FOLDER = str(Path(cableway.__file__).parent)
STEPS_MAX = 20000


class Interrupted(BaseException):
    """What the handler raises."""


def _once(action: Callable[[], object], step: int) -> bool:
    """Runs an action that is interrupted before its step-th instruction in the package; False: it has no so many."""
    left = step

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if left == 0:
                raise Interrupted
            left -= 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return left == 0  # it was raised, and something took it: there may be more steps


def everywhere(action: Callable[[], object], check: Callable[[], object], every: int = 1) -> int:
    """Interrupts an action before each of its instructions in turn, and looks after each time that nothing is left.
    Returns how many there were.
    """
    for step in range(0, STEPS_MAX, every):
        going_on = _once(action, step)
        if step % 50 == 0:
            gc.collect()
        check()
        if not going_on:
            return step
    raise AssertionError(f"it takes more than {STEPS_MAX} steps")
