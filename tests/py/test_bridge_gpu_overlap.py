"""Arrays on GPUs over the bridge go out while they are copied, and come in while they land; seen by the order of events."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import bridge_support
import cuda_support
import pytest
from bridge_support import Node
from conftest import eventually
from mover_support import movers

cuda_support.require()
pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())
double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double's faults")

MIB = 1 << 20
BYTES = 40 * MIB  # 8 chunks of 5 MiB, of which 4 are in host memory at once


@contextlib.contextmanager
def two(folder: Path, a: str = "", b: str = "") -> Iterator[tuple[Node, Node]]:
    """Two nodes whose movers (and nobody else) have these faults of the double's."""
    with cuda_support.gpus(folder), bridge_support.net("a", "b") as made:
        made.acquaint("--read", "*", "--write", "*")
        for node, faults in zip(made.nodes.values(), (a, b), strict=True):
            node.start(CAUSEWAY_FAKECUDA_FAULTS=faults)
        made.connected()
        yield made.nodes["a"], made.nodes["b"]


PRELUDE = f"""
import numpy as np, causeway as cw

def values(seed=1, size={BYTES}):
    return np.random.default_rng(seed).integers(0, 1 << 62, size // 8, dtype="i8")
"""


def begin(node: Node, text: str) -> subprocess.Popen[str]:
    """Begins a program as a client of a node."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(text)],
        env=node.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def end(started: subprocess.Popen[str], *nodes: Node) -> str:
    """What it printed; it must not fail."""
    out, err = started.communicate(timeout=60)
    assert started.returncode == 0, err + "".join(node.said() for node in nodes)
    return out


def run(node: Node, text: str) -> str:
    """Runs one to its end."""
    return end(begin(node, text), node)


def came(here: Node, there: Node) -> int:
    """Bytes that came from a peer."""
    return int(here.state_of(there)["bytes_in"])


@double
def test_bytes_leave_before_the_last_chunk_was_copied(tmp_path: Path) -> None:
    with two(tmp_path, b="copy@4=hang") as (a, b):
        run(b, 'cw.put("g", cw.asarray(values(), device="cuda:0"), keep=True)')
        before = came(a, b)
        getter = begin(a, 'assert (cw.get("//b/g").numpy() == values()).all(); print("whole")')
        # Its fourth copy never ends: a mover brings three chunks and dies; and another comes.
        killed = 0
        while getter.poll() is None:
            assert eventually(
                lambda: (
                    came(a, b) - before >= min(3 * (killed + 1) * 5 * MIB, BYTES)
                    or getter.poll() is not None
                )
            )
            for pid in movers(b.folder) if getter.poll() is None else []:
                os.kill(pid, signal.SIGKILL)
                killed += 1
        assert end(getter, a, b) == "whole\n" and killed >= 2
