"""The timeout of a get holds while the broker is stopped: for a name that is none, and for memory that is to be mapped.

Runs in `make test-more`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import cli_support
import numpy as np
import pytest
from conftest import PATH

import cableway as cw

PROGRAM = """
import os, signal, sys
import cableway as cw
sys.path[:0] = {tests!r}
from cli_support import suspend
{before}
suspend({broker})
for _ in range(2):
    try:
        found = cw.get({name!r}, 0.1{more})
    except cw.Timeout:
        print("timeout")
    else:
        print("found")
os.kill({broker}, signal.SIGCONT)
print(cw.get("a", 60).shape)
"""
BEFORE = {
    "a connection": "c = cw.connect()",
    "names": "cw.names()",
    "a put": "w = cw.put('mine', [1, 2])",
    "a get": "cw.put('mine', [1, 2]); w = cw.get('mine')",
}


@pytest.fixture
def broker(broker_folder: Path) -> Iterator[int]:
    """The broker's pid; whatever becomes of the test, it goes on."""
    cw.names()
    pid = cli_support.broker_pid(broker_folder)
    yield pid
    os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("more", ["", ", readonly=True", ", device='cpu'"])
@pytest.mark.parametrize("name", ["never", "a"])
@pytest.mark.parametrize("before", BEFORE)
def test_a_get_ends_at_its_timeout_while_the_broker_is_stopped(script, broker, before, name, more):
    w = cw.put("a", np.zeros(1 << 20, "u1"))
    text = PROGRAM.format(tests=PATH, broker=broker, before=BEFORE[before], name=name, more=more)
    done = script(text)
    assert done.stdout == f"timeout\ntimeout\n{w.shape}\n"
