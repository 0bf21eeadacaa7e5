"""What programs of test_transfers_gpu and test_overlap begin with."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import cuda_support
from gpu_routes import MOVED

HEAD = """
import contextlib, ctypes, json, os, subprocess, sys, time
sys.path.insert(0, os.environ["CABLEWAY_TESTS"])
import numpy as np
import cableway as cw
import transfer_tasks as tasks
from pathlib import Path

def wait_for(name):
    end = time.monotonic() + 60
    while not Path(name).exists():
        assert time.monotonic() < end, f"{name} never came"
        time.sleep(0.001)

def eventually(seen):
    end = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)

POOL_ON = "cuda:0"
"""
HEAD += (
    MOVED
    + """
class Kernel:
    '''Work on the worker's GPU that is not complete before a file is there.'''
    def __init__(self, name):
        cuda = ctypes.CDLL(os.environ.get("CABLEWAY_CUDA_DRIVER", "libcuda.so.1"))
        def call(name, *arguments):
            status = getattr(cuda, name)(*arguments)
            assert status == 0, (name, status)
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuInit", 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        call("cuCtxSetCurrent", context)
        call("cuStreamCreate", ctypes.byref(stream), 1)
        self.wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: wait_for(name))
        call("cuLaunchHostFunc", stream, self.wait, None)
        self.call, self.stream = call, stream
    def fill(self, x, value):
        '''Behind it in its stream.'''
        at = ctypes.c_uint64(x.__cuda_array_interface__["data"][0])
        self.call("cuMemsetD8Async", at, ctypes.c_ubyte(value), ctypes.c_size_t(x.nbytes), self.stream)
"""
)


def program_of(script: Callable[..., object], folder: Path) -> Callable[..., str]:
    """Runs a text after HEAD in a folder; its main part stands under `if __name__ == "__main__":`."""

    def run(text: str, **options: object) -> str:
        environment = {
            **os.environ,
            "CABLEWAY_COMMAND": str(cuda_support.COMMAND),
            "CABLEWAY_TESTS": str(Path(__file__).parent),
            **options.pop("env", {}),  # type: ignore[dict-item]
        }
        before = f"import os\nos.chdir({str(folder)!r})\n"
        found = script(before + HEAD + textwrap.dedent(text), env=environment, **options)
        return str(found.stdout)  # type: ignore[attr-defined]

    return run
