"""Programs with a Pool on GPUs and arrays that PyTorch or CuPy allocated by itself.

On the double with stand-ins of the libraries (standins/), on real GPUs with the libraries.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import cuda_support
import device_pools
import pytest

HERE = Path(__file__).parent

HEAD = """
import weakref
from causeway import _loans
def new(values):
    if LIBRARY == "cupy": return library.array(values)
    return library.tensor(values, dtype=library.float32, device="cuda") if hasattr(library, "nn") else library.tensor(values)
def host(x):
    return cw.asarray(x).to("cpu").numpy()
def total(x):
    assert type(x) is type(new([1.0])), type(x)
    return float(host(x).sum())
def mark(x):
    cw.asarray(x)[:1] = np.full(1, 7, "f4")
def gone(memory=lambda: None):
    "Waits until nothing is lent any more, and this memory is free."
    end = time.monotonic() + 30
    while _loans._kept or memory():
        assert time.monotonic() < end, _loans._kept
        time.sleep(0.002)
class Pool(cw.Pool):
    "What went without a copy, and what by one."
    def lent(self):
        return tuple(self.stats()["lent"].values())
"""


def run(script: Callable[..., object], name: str, text: str, **env: str) -> None:
    """Runs a text after what device_pools and HEAD have, with the library named."""
    if cuda_support.REAL:
        pytest.importorskip(name)
    else:
        paths = [str(HERE / "standins"), str(HERE), os.environ.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = ":".join(filter(None, paths))
    begin = f"import {name} as library\nLIBRARY = {name!r}\n"
    device_pools.run(script, begin + HEAD + text, env=env)
