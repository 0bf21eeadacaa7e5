"""What the tests of GPU arrays of other nodes share: two nodes with GPUs, and programs as their clients."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import bridge_support
import cuda_support
from bridge_support import Node
from conftest import eventually
from cuda_programs import LIBRARY

MIB = 1 << 20
BYTES = (
    40 * MIB
)  # 8 chunks of 5 MiB at its owner, all of them in host memory; 10 pieces where it comes to

PRELUDE = f"""
{LIBRARY}
BYTES = {BYTES}
def values(seed=1, size=BYTES):
    return np.random.default_rng(seed).integers(0, 1 << 62, size // 8, dtype="i8")
def same(array, seed=1):
    return (array.to("cpu").numpy() == values(seed, array.nbytes)).all()
"""


@contextlib.contextmanager
def two(
    folder: Path, a: str = "", b: str = "", streams: int = 0, **settings: object
) -> Iterator[tuple[Node, Node]]:
    """Two nodes whose movers (and nobody else) have these faults of the double's; they share its GPUs. streams: other
    than by default."""
    with cuda_support.gpus(folder, **settings), bridge_support.net("a", "b") as made:
        made.acquaint("--read", "*", "--write", "*")
        for node, faults in zip(made.nodes.values(), (a, b), strict=True):
            node.options = ["--streams", str(streams)] if streams else []
            node.start(CABLEWAY_FAKECUDA_FAULTS=faults)
        made.connected()
        yield made.nodes["a"], made.nodes["b"]


def begin(node: Node, text: str) -> subprocess.Popen[str]:
    """Begins a program as a client of a node."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(text)], env=node.environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
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


def figures(node: Node) -> dict[str, int]:
    """Counters and gauges of a node's broker."""
    told = json.loads(node.command("status", "--json").stdout)
    return {**told["counters"], **told["gauges"]}


def empty(node: Node) -> bool:
    """Whether nothing lies on GPUs any more."""
    return soon(lambda: figures(node)["gpu_bytes"] == 0)


def soon(condition: Callable[[], bool]) -> bool:
    """Waits for what takes a second where the machine has nothing else to do."""
    return eventually(condition, 60)
