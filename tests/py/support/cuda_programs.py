"""Programs of several processes with streams, for tests of GPU work in order.

The work of a stream is held up by a host function that waits for a file, so that every test knows what is under way.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

__all__ = ["LIBRARY", "program"]

LIBRARY = """
import ctypes, os, signal, subprocess, sys, time, numpy as np, cableway as cw
cuda = ctypes.CDLL(os.environ.get("CABLEWAY_CUDA_DRIVER", "libcuda.so.1"))
HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
kept = []
def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)
class Stream:
    def __init__(self):
        context, self.handle = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuInit", 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        call("cuCtxSetCurrent", context)
        call("cuStreamCreate", ctypes.byref(self.handle), 1)
    def hold(self, name):
        "What comes after this in the stream waits until a file is there."
        def wait(_):
            while not os.path.exists(name): time.sleep(0.001)
        kept.append(HOST(wait))
        call("cuLaunchHostFunc", self.handle, kept[-1], None)
    def fill(self, at, value):
        call("cuMemsetD8Async", ctypes.c_uint64(at), ctypes.c_ubyte(value), ctypes.c_size_t(1000), self.handle)
    def fetch(self, at):
        "A copy on the GPU: one to ordinary host memory would make the CPU wait."
        copy = cw.empty(1000, "u1", device="cuda:0")
        call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(low(copy)), ctypes.c_uint64(at), ctypes.c_size_t(1000), self.handle)
        return Fetched(copy)
    def idle(self):
        return cuda.cuStreamQuery(self.handle) == 0
    def finish(self):
        call("cuStreamSynchronize", self.handle)
class Fetched:
    def __init__(self, copy): self.copy = copy
    def __eq__(self, value): return self.copy.to("cpu").numpy() == value
def low(w):
    return w._open_lease().address
def touch(name):
    open(name, "w").close()
def other(text):
    "Another process with all this; it says when it comes to say()."
    return subprocess.Popen([sys.executable, "-c", LIBRARY + text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def say(word="ready"):
    print(word, flush=True)
def heard(child, word="ready"):
    line = child.stdout.readline()
    assert line == word + "\\n", line
def ended(child):
    assert child.wait(30) == 0
"""


@pytest.fixture
def program(script: Callable[..., object], tmp_path: Path) -> Callable[..., object]:
    """Runs a text with LIBRARY before it, in a folder of its own."""

    def run(text: str, **options: object) -> object:
        before = f"LIBRARY = {LIBRARY!r}\nimport os\nos.chdir({str(tmp_path)!r})\nexec(LIBRARY)\n"
        return script(before + textwrap.dedent(text), **options)

    return run
