"""Programs that have Pools on GPUs: what they begin with, and how they are run.

Each is a program of its own, since CUDA does not survive the forks of other tests: on four GPUs of the test double, or on
those of the machine.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cuda_support
import pytest
from gpu_routes import MOVED

GPUS = cuda_support.real_gpus() if cuda_support.REAL else 4

HEAD = """
import collections, contextlib, ctypes, json, os, signal, subprocess, sys, threading, time
import multiprocessing as mp
import numpy as np
import cableway as cw

GPUS = int(os.environ["CABLEWAY_TEST_GPUS"])

POOL_ON = "cuda"
"""
HEAD += (
    MOVED
    + """
def own():
    '''The UUID of this process's first GPU.'''
    return cw.empty(1, device="cuda").device_uuid

def wait(a=None):
    '''Long enough that all workers have begun.'''
    time.sleep(0.2)
    return own(), os.getpid()

def everyone(pool, count):
    '''(GPU, pid) of all workers, once so many have started, and have answered.'''
    for _ in range(100):
        seen = set(pool.map(wait, range(4 * count)))
        if len(seen) == count: return seen
    raise AssertionError((count, seen))

class Driver:
    '''The CUDA driver itself, with a kernel that writes one word wherever it is told to.'''
    PTX = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry poke(.param .u64 p, .param .u32 value) {
.reg .u32 %r<2>; .reg .u64 %rd<2>;
ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [value]; st.u32 [%rd1], %r1;
ret;
}
.visible .entry spin(.param .u64 flag, .param .u32 value) {
.reg .pred %q; .reg .u32 %r<4>; .reg .u64 %rd<2>;
ld.param.u64 %rd1, [flag]; ld.param.u32 %r1, [value];
again: ld.volatile.u32 %r2, [%rd1]; setp.ne.u32 %q, %r2, %r1; @%q bra again;
ret;
}
'''
    def __init__(self):
        self.cuda = ctypes.CDLL(os.environ.get("CABLEWAY_CUDA_DRIVER", "libcuda.so.1"))
        self.context, self.module = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuModuleLoadData", ctypes.byref(self.module), self.PTX)
    def call(self, name, *arguments):
        status = getattr(self.cuda, name)(*arguments)
        if status: raise RuntimeError(f"{name}: {status}")
    def launch(self, kernel, address, value, stream=None):
        '''Only submits it.'''
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, kernel)
        address, value = ctypes.c_uint64(address), ctypes.c_uint32(value)
        pointers = (ctypes.c_void_p * 2)(ctypes.addressof(address), ctypes.addressof(value))
        self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, ctypes.c_void_p(stream), pointers, None)
    def synchronize(self):
        self.call("cuCtxSynchronize")
"""
)


def run(script: Callable[..., object], text: str, **options: object) -> str:
    """Runs a text after HEAD; its main part stands under `if __name__ == "__main__":`. What it printed."""
    environment = {
        **os.environ,
        "CABLEWAY_COMMAND": str(cuda_support.COMMAND),
        "CABLEWAY_TEST_GPUS": str(GPUS),
        **options.pop("env", {}),  # type: ignore[dict-item]
    }
    done = script(HEAD + textwrap.dedent(text), env=environment, **options)
    return str(done.stdout)  # type: ignore[attr-defined]


@pytest.fixture
def program(script: Callable[..., object]) -> Callable[..., str]:
    """Runs a text after HEAD."""
    return partial(run, script)


def environment_for(library: str) -> dict[str, str]:
    """What a program needs to import an array library: itself on real GPUs, where the test is skipped without it, else its stand-in."""
    if cuda_support.REAL:
        pytest.importorskip(library)
        return {}
    here = Path(__file__).resolve().parent
    paths = [str(here / "standins"), str(here), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": ":".join(filter(None, paths))}
