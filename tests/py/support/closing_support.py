"""Programs in which an object is closed in the midst of a call."""

from __future__ import annotations

import os
import subprocess
import sys

BEGIN = """
import gc, multiprocessing, os, sys, time
from itertools import count

# From Python 3.12 on, the instructions of a function are not told again once tracing has ended and begun: then lines have to do.
EVENT = "opcode" if sys.version_info < (3, 12) else "line"

def closing(it, place, close, is_traced):
    "Closes it before the instruction, or line, of that number of code that is traced, as another thread may: the list is not empty then."
    numbers, came = count(), []
    def look(frame, event, argument):
        if not is_traced(frame.f_code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = EVENT == "opcode", EVENT == "line"
        if event == EVENT and not came and next(numbers) == place:
            came.append(place)
            sys.settrace(None)
            close(it)
        return look
    sys.settrace(look)
    return came

def leaves_nothing(close_at, step, forget=lambda: None):
    "close_at(place), which says whether it came so far, at each place by steps: no descriptor, thread or process stays."
    step = step if EVENT == "opcode" else step // 4 + 1
    def there():
        forget(), gc.collect()
        return len(os.listdir("/proc/self/fd")), len(sys._current_frames()), len(multiprocessing.active_children())
    def more(there):
        return any(one > other for one, other in zip(there, before))
    close_at(-1)
    before = there()
    for place in count(0, step):
        if not close_at(place):
            break
    until = time.monotonic() + 20
    while more(there()) and time.monotonic() < until:
        time.sleep(0.01)
    assert not more(there()), (there(), before)
    assert place > 5 * step, place
    print("held")
"""


def holds(program: str, *arguments: str, told: str = "held\n", **environment: str) -> None:
    """Runs a program, behind BEGIN, which must end well and say so. What it frees is overwritten."""
    run = subprocess.run(
        [sys.executable, "-c", BEGIN + program, *arguments],
        env={**os.environ, "MALLOC_PERTURB_": "165", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, told), run.stderr


def holds_nothing_idle(program: str, *arguments: str, told: str = "held\n") -> None:
    """The same where memory that nobody has is gone at once."""
    holds(program, *arguments, told=told, CABLEWAY_CACHE_BYTES="0")
