"""A .safetensors file that another thread closes in the midst of a read: the read is made, or says that the file is closed."""

from __future__ import annotations

from pathlib import Path

import pytest
from closing_support import holds

PROGRAM = """
import os, sys
from itertools import count
import numpy as np
from safetensors.numpy import save_file
import cableway as cw
from cableway import safetensors
from cableway._load import checkpoint

# From Python 3.12 on, the instructions of a function are not told again once tracing has ended and begun: then lines have to do.
EVENT = "opcode" if sys.version_info < (3, 12) else "line"
use, path = sys.argv[1:]
files = safetensors.__file__, checkpoint.__file__
save_file({"big": np.ones(1 << 17), "small": np.arange(8.0)}, path, {"by": "test"})
uses = {
    "big": lambda f: f.get_tensor("big").sum() == 1 << 17,
    "small": lambda f: f.get_tensor("small").sum() == 28,
    "slice": lambda f: f.get_slice("small")[2:4].tolist() == [2, 3],
    "all": lambda f: sorted(f.get_tensors()) == ["big", "small"],
    "metadata": lambda f: f.metadata() == {"by": "test"},
    "keys": lambda f: f.keys() == ["big", "small"],
    "exit": lambda f: f.__exit__(None, None, None) is None,
}

def is_open():
    return any(os.path.realpath(f"/proc/self/fd/{fd}") == os.path.realpath(path) for fd in os.listdir("/proc/self/fd"))

def closing(file, place):
    numbers, came = count(), []
    def look(frame, event, argument):
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = EVENT == "opcode", EVENT == "line"
        if event == EVENT and next(numbers) == place:
            came.append(place)
            sys.settrace(None)
            file.__exit__(None, None, None)
        return look
    sys.settrace(look)
    return came

kept = None
for place in count():
    file = safetensors.safe_open(path, "np")
    came = closing(file, place)
    try:
        assert uses[use](file)
    except safetensors.SafetensorError as error:
        assert "is closed" in str(error), (place, error)
        kept = error  # its traceback keeps no file open
    finally:
        sys.settrace(None)
    assert is_open() == (not came and use != "exit"), place
    if not came:
        break
assert place > 3, place
print("held")
"""


@pytest.mark.parametrize("use", ["big", "small", "slice", "all", "metadata", "keys", "exit"])
def test_a_file_may_be_closed_between_any_two_steps_of_a_read(use: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    holds(PROGRAM, use, str(tmp_path / "file.safetensors"))
