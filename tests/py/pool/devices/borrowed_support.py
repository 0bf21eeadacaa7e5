"""Programs with a Pool on GPUs and arrays that PyTorch or CuPy allocated by itself.

On the double with stand-ins of the libraries (standins/), on real GPUs with the libraries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import cuda_support
import device_pools
import pytest

gpus = cuda_support.for_module(devices=2)

HEAD = """
import weakref
from cableway._cuda import suballocation
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
    while suballocation._kept or memory():
        assert time.monotonic() < end, suballocation._kept
        time.sleep(0.002)
class Pool(cw.Pool):
    "What went without a copy, and what by one."
    def lent(self):
        return tuple(self.stats()["lent"].values())
"""


def run(script: Callable[..., object], name: str, text: str, **env: str) -> None:
    """Runs a text after what device_pools and HEAD have, with the library named."""
    env = {**device_pools.environment_for(name), **env}
    begin = f"import {name} as library\nLIBRARY = {name!r}\n"
    device_pools.run(script, begin + HEAD + text, env=env)


@pytest.fixture
def program(script: Callable[..., object]) -> Callable[..., None]:
    """run() for the tests of a module."""
    return functools.partial(run, script)
