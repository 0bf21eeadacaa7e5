"""A .safetensors file that another thread closes in the midst of a read: the read is made, or says that the file is closed."""

from __future__ import annotations

from pathlib import Path

import pytest
from closing_support import holds

PROGRAM = """
import numpy as np
from safetensors.numpy import save_file
import cableway as cw
from cableway import safetensors
from cableway._load import checkpoint

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

kept = None
for place in count():
    file = safetensors.safe_open(path, "np")
    came = closing(file, place, lambda f: f.__exit__(None, None, None), lambda code: code.co_filename in files)
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
