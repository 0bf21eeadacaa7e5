"""Arrays in GPU memory of other nodes: staged through host memory at both ends, never by a driver in the bridge.

Runs in `make test-more`.
"""

from __future__ import annotations

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

cuda_support.require()
pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())


@pytest.fixture(scope="module")
def two(broker_folder: Path) -> Iterator[tuple[Node, Node]]:
    """Two nodes whose processes see GPUs."""
    with cuda_support.gpus(broker_folder), bridge_support.net("a", "b") as made:
        made.acquaint("--read", "*", "--write", "*")
        made.start()
        made.connected()
        yield made.nodes["a"], made.nodes["b"]


def run(node: Node, text: str) -> str:
    """Runs a program as a client of a node."""
    done = subprocess.run(
        [sys.executable, "-c", "import numpy as np, cableway as cw\n" + textwrap.dedent(text)],
        env=node.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + node.said()
    return done.stdout


def no_driver(*nodes: Node) -> None:
    """No bridge has opened a driver."""
    for node in nodes:
        assert "cuda" not in Path(f"/proc/{node.bridge_pid()}/maps").read_text()


def test_gpu_arrays_go_both_ways(two: tuple[Node, Node]) -> None:
    a, b = two
    run(b, """
        cw.put("g", cw.asarray(np.arange(300_000.0), device="cuda:0"), keep=True)
        cw.put("host", np.arange(7), keep=True)
    """)  # fmt: skip
    run(a, """
        here = cw.get("//b/g")
        assert here.device == "cpu" and (here.numpy() == np.arange(300_000.0)).all()
        there = cw.get("//b/g", device="cuda:0")
        assert there.device == "cuda:0" and (there.to("cpu").numpy() == np.arange(300_000.0)).all()
        assert cw.get("//b/host", device="cuda:0").to("cpu").numpy().tolist() == list(range(7))
        w = cw.asarray(np.arange(100_000, dtype="i4").reshape(100, 1000), device="cuda:0")
        cw.put("//b/from_gpu", w[10:20], keep=True)
    """)  # fmt: skip
    run(b, """
        w = cw.get("from_gpu")
        assert w.device == "cpu" and (w.numpy() == np.arange(10_000, 20_000).reshape(10, 1000)).all()
    """)  # fmt: skip
    no_driver(a, b)


@cuda_support.second_gpu
def test_arrays_of_one_gpu_come_to_another(two: tuple[Node, Node]) -> None:
    a, b = two
    run(b, """
        cw.put("far", cw.asarray(np.arange(300_000.0), device="cuda:0"), keep=True)
        cw.put("tiny", cw.asarray(np.arange(5), device="cuda:1"), keep=True)
    """)  # fmt: skip
    run(a, """
        there = cw.get("//b/far", device="cuda:1")
        assert there.device == "cuda:1" and (there.to("cpu").numpy() == np.arange(300_000.0)).all()
        assert cw.get("//b/tiny").numpy().tolist() == [0, 1, 2, 3, 4]
    """)  # fmt: skip
    no_driver(a, b)


def test_a_gpu_that_fails_is_told(two: tuple[Node, Node]) -> None:
    a, b = two
    run(b, 'cw.put("broken", cw.asarray(np.arange(50_000.0), device="cuda:0"), keep=True)')
    told = run(a, """
        try:
            cw.get("//b/broken", device="cuda:9")
        except cw.DeviceError as error:
            print(type(error).__name__)
    """)  # fmt: skip
    assert told.strip() == "DeviceError"
    assert eventually(lambda: a.sees(b))


@pytest.mark.parametrize("count", [50_000, 2_000_000])  # the bridge has room for one kind alone
def test_a_get_ends_when_the_broker_there_stops_before_the_bytes_are_here(
    two: tuple[Node, Node], count: int
) -> None:
    """Its mover has no job then, as with a write that is not complete; but that may take for ever."""
    a, b = two
    run(
        b,
        'cw.put("stood", cw.asarray(np.arange(float(@)), device="cuda:0"), keep=True)'.replace(
            "@", str(count)
        ),
    )
    run(a, 'cw.get("//b/stood")')  # b's bridge has mapped it
    assert b.process is not None
    run(b, """
        w = cw.get("stood", readonly=True)
        cw.put("again", w, keep=True)
    """)  # fmt: skip
    os.kill(b.process.pid, signal.SIGSTOP)
    try:
        told = run(a, """
            try:
                cw.get("//b/again", timeout=40)
            except cw.Error as error:
                print(type(error).__name__, error)
        """)  # fmt: skip
    finally:
        os.kill(b.process.pid, signal.SIGCONT)
    assert told.startswith("RemoteError") and "has not answered" in told
    assert eventually(lambda: a.sees(b))
